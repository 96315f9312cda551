"""Times of whole networks: timm's `benchmark.py` and trtexec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .findings import Findings, ResultFormat
from .json_text import read_documents
from .text import find_lines, read_table, scaled, to_number

_MS = 1e-3
_TIMM_HEADING = re.compile(
    r"^\ufeff?(?:[\w]+,)*(?:infer_|train_)?samples_per_sec,|^\ufeff?model,.*samples_per_sec", re.MULTILINE
)
_TIMM_NAME = re.compile(
    r"benchmark-(infer|train)-([a-z0-9_]+)(?:-(nhwc|nchw))?-pt(\d{1,15})(?:-cu(\d{1,15}))?-(.+?)(-dynamo)?\.\w+$"
)
_PASS_TIMES = {"forward_s": "fwd_time", "backward_s": "bwd_time", "update_s": "opt_time"}


def read_timm_csv(path: Path, findings: Findings) -> None:
    """Read a table of timm's `benchmark.py`, hundreds of networks by name."""
    _add_timm(read_table(path, _TIMM_HEADING), path, findings)


def read_timm_json(path: Path, findings: Findings) -> None:
    """Read the JSON of timm's `benchmark.py`."""
    _add_timm(read_documents(path, findings), path, findings)


def _add_timm(rows: Any, path: Path, findings: Findings) -> None:
    named = _TIMM_NAME.search(path.name)
    if named:
        how = "the name of the file"
        findings.guess(how, precision=named[2], layout=named[3], gpu=named[6], pytorch=_version_from_digits(named[4]),
                       cuda=_version_from_digits(named[5]), compiled="yes" if named[7] else None)  # fmt: skip
    phase = "training" if named and named[1] == "train" else "inference"
    for row in rows:
        for prefix, row_phase in (("infer_", "inference"), ("train_", "training"), ("", phase)):
            rate = to_number(row.get(f"{prefix}samples_per_sec"))
            batch = to_number(row.get(f"{prefix}batch_size"))
            if rate is None or not row.get("model"):
                continue
            passes: dict[str, Any] = {}
            for name, key in _PASS_TIMES.items():
                passes[name] = scaled(row.get(f"{prefix}{key}"), _MS)
            millions = to_number(row.get("param_count"))
            gmacs = to_number(row.get("infer_gmacs", row.get("gmacs")))
            findings.add(
                "step",
                network=row["model"],
                phase=row_phase,
                batch_size=batch,
                image_size=to_number(row.get(f"{prefix}img_size")),
                step_s=scaled(row.get(f"{prefix}step_time"), _MS),
                samples_per_s=rate,
                parameters=None if millions is None else millions * 1e6,
                flops=None if gmacs is None or batch is None else 2e9 * gmacs * batch,
                **passes,
            )
    findings.record(framework="pytorch")
    findings.doubt(
        "the batch of each network is the largest up to the one asked for that fitted; data are synthetic, and samples "
        "per second count the waiting between batches"
    )


def _version_from_digits(digits: str | None) -> str | None:
    """Return a version from its digits: ``240`` is 2.4.0, and ``124`` 12.4."""
    if not digits:
        return None
    is_pytorch = len(digits) == 3 and digits[0] == "2"
    return ".".join(digits) if is_pytorch else f"{digits[:-1]}.{digits[-1]}"


_STATISTIC = re.compile(r"(min|max|mean|median)(?:\s*=|:)\s*(\d+(?:\.\d*)?) ms(?: \(end to end (\d+(?:\.\d*)?) ms\))?")
_ONE_LINE = re.compile(
    r"(?:^|\] |\s)(Latency|Enqueue Time|H2D Latency|GPU Compute Time|D2H Latency|Host Latency): min = "
)
_SECTION = re.compile(r"\[I\] (Host Latency|GPU Compute|Enqueue Time)\s*$")
_THROUGHPUT = re.compile(r"\b[Tt]hroughput: (\d+(?:\.\d*)?) qps")
_COMMAND = re.compile(r"(?:&&&& (?:RUNNING|PASSED|FAILED) TensorRT\.trtexec.*?# )(\S*trtexec .*)$")
_TRT_RELEASE = re.compile(r"\[TensorRT v(\d{3,6})\]")
_TRT_OPTION = re.compile(r"--(batch|onnx|deploy|uff|int8|fp16|fp8|bf16|best|shapes|optShapes|loadEngine)(?:=(\S+))?")
_TRT_FACT = re.compile(r"\[I\] (Selected Device|Model|Precision|TensorRT version|Averages): (\S.*)$")


def read_trtexec(path: Path, findings: Findings) -> None:
    """Read the summaries of trtexec: computation on the GPU and copies apart."""
    run: dict[str, float] = {}
    section, batch = "", None
    for line in find_lines(path, ("[I] ", "&&&& ", " ms", " qps")):
        if match := _ONE_LINE.search(line):
            statistics = {name: float(text) for name, text, _ in _STATISTIC.findall(line)}
            run[match[1]] = statistics.get("median", statistics.get("mean", 0.0))
        elif match := _SECTION.search(line):
            section = match[1]
        elif match := _THROUGHPUT.search(line):
            if "queries" in run:  # the summary of another run
                _add_trt(run, batch, findings)
                run = {}
            run["queries"] = float(match[1])
        elif match := _TRT_FACT.search(line):
            _note_trt(match[1], match[2].strip(), findings)
        elif match := _COMMAND.search(line):
            release = _TRT_RELEASE.search(line)
            if release:
                findings.version = ".".join(release[1][:3])
            options = dict(_TRT_OPTION.findall(match[1]))
            batch = to_number(options.get("batch"))
            findings.guess(
                "the command line", network=Path(options.get("onnx") or options.get("loadEngine") or "").name
            )
        elif section and (statistic := _STATISTIC.search(line)) and statistic[1] == "median":
            run[section] = float(statistic[2])
            section = ""
    _add_trt(run, batch, findings)
    findings.doubt("a query is a batch, so that queries per second count batches")


def _add_trt(run: dict[str, float], batch: float | None, findings: Findings) -> None:
    """Add a row of one summary, of medians in milliseconds."""
    doubts = []
    if not run.get("queries"):
        doubts.append("the throughput is 0 or missing: the run was too short, or its trace is empty")
    compute_ms = run.get("GPU Compute Time", run.get("GPU Compute"))
    copies = [run[name] for name in ("H2D Latency", "D2H Latency") if name in run]
    if compute_ms is not None and compute_ms < 1 and compute_ms == round(compute_ms, 1):
        doubts.append("the times have one digit after the point: a step below 1 ms is coarse")
    findings.add(
        "step",
        tuple(doubts),
        phase="inference",
        network=findings.configuration.get("network"),
        batch_size=batch,
        step_s=scaled(compute_ms, _MS),
        e2e_s=scaled(run.get("Latency", run.get("Host Latency")), _MS),
        host_s=scaled(run.get("Enqueue Time"), _MS),
        transfer_s=scaled(sum(copies), _MS) if copies else None,
        steps_per_s=run.get("queries") or None,
    )


def _note_trt(name: str, text: str, findings: Findings) -> None:
    fact = {"Selected Device": "gpu", "Model": "network", "Precision": "precision"}.get(name)
    if fact == "network":
        findings.record(network=Path(text).name)
    elif fact:
        findings.record(**{fact: text})
    elif name == "TensorRT version":
        findings.version = text


FORMATS = (
    ResultFormat(
        "timm", "timm", "the tables of timm's `benchmark.py`", read_timm_csv, sign=_TIMM_HEADING,
    ),
    ResultFormat("timm-json", "timm", "", read_timm_json, keys=("model", "infer_samples_per_sec")),
    ResultFormat("timm-json", "timm", "", read_timm_json, keys=("model", "train_samples_per_sec")),
    ResultFormat(
        "trtexec", "trtexec", "logs of trtexec", read_trtexec,
        sign=re.compile(r"\b[Tt]hroughput: \d+(?:\.\d*)? qps|GPU Compute Time: min = |\[I\] === Inference Options ==="),
        markers=("hroughput: ", "GPU Compute Time: "),
    ),
)  # fmt: skip
