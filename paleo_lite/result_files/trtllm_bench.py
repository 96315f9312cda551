"""trtllm-bench: its JSON (`--report_json`) and the report that it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .findings import Findings, ResultFormat
from .json_text import dig, read_documents
from .serving_rows import add_server
from .text import find_lines, ratio, scaled, to_number

_MS = 1e-3
_ALL_AT_ONCE = 1e6  # requests per second; the issue rate of a run without one is 1e13


def read_json(path: Path, findings: Findings) -> None:
    """Read a report of `--report_json`."""
    for report in read_documents(path, findings):
        engine, world = report.get("engine"), report.get("world_info")
        requests, performance = report.get("request_info"), report.get("performance")
        if not isinstance(performance, dict):
            continue
        findings.version = str(dig(engine, "version") or "")
        findings.record(
            engine="tensorrt-llm",
            network=dig(engine, "model"),
            precision=dig(engine, "dtype"),
            weights=dig(engine, "quantization"),
            kv_cache=dig(engine, "kv_cache_dtype"),
            tensor=dig(world, "tp_size"),
            pipeline=dig(world, "pp_size"),
            expert_parallel=dig(world, "ep_size"),
            devices=dig(world, "world_size"),
            max_num_seqs=dig(world, "max_batch_size"),
            chunk_tokens=dig(world, "max_num_tokens"),
            gpu=dig(report, "machine", "name") or dig(report, "machine", "gpu"),
        )
        _doubt_devices(findings, world)
        streamed = report.get("streaming_metrics")
        streamed = streamed if isinstance(streamed, dict) else {}
        rate = to_number(dig(world, "issue_rate"))
        add_server(
            findings,
            requests=to_number(dig(requests, "num_requests")),
            concurrency=to_number(dig(requests, "avg_num_concurrent_requests")),
            input_tokens=to_number(dig(requests, "avg_input_length")),
            output_tokens=to_number(dig(requests, "avg_output_length")),
            at_once=rate is not None and rate > _ALL_AT_ONCE,
            request_rate=rate if rate is not None and rate <= _ALL_AT_ONCE else None,
            duration_s=scaled(performance.get("total_latency_ms"), _MS),
            e2e_s=scaled(performance.get("avg_request_latency_ms"), _MS),
            requests_per_s=to_number(performance.get("request_throughput_req_s")),
            output_tokens_per_s=to_number(performance.get("system_output_throughput_tok_s")),
            tokens_per_s=to_number(performance.get("system_total_throughput_tok_s")),
            tokens_per_s_per_user=to_number(performance.get("output_throughput_per_user_tok_s")),
            tokens_per_s_per_device=to_number(performance.get("output_throughput_per_gpu_tok_s")),
            ttft_s=scaled(streamed.get("avg_ttft_ms"), _MS),
            tpot_reported_s=scaled(streamed.get("avg_tpot_ms"), _MS),
            acceptance_length=to_number(dig(report, "decoding_stats", "acceptance_length", "average")),
        )


def _doubt_devices(findings: Findings, world: Any) -> None:
    """Doubt a number of ranks that is not that of the shares and stages of a model."""
    ranks, tensor, pipeline = (to_number(dig(world, name)) for name in ("world_size", "tp_size", "pp_size"))
    if ranks and tensor and pipeline and ranks != tensor * pipeline:
        findings.doubt(
            f"a world_size of {ranks:g} is not tp_size {tensor:g} times pp_size {pipeline:g}: one of them is wrong, "
            "and rates per device with it"
        )


_NEARLY = 1e-3  # share by which rounded rates may differ
_ISSUE_RATE = "Issue Rate (req/sec)"
_FACTS = {
    "Model": "network", "TensorRT-LLM Version": "engine_version", "TensorRT LLM Version": "engine_version",
    "Dtype": "precision", "KV Cache Dtype": "kv_cache", "Quantization": "weights", "TP Size": "tensor",
    "PP Size": "pipeline", "EP Size": "expert_parallel", "Max Runtime Batch Size": "max_num_seqs",
    "Max Runtime Tokens": "chunk_tokens",
}  # fmt: skip

_FIGURES = {
    "Number of requests": ("requests", 1.0),
    "Number of concurrent requests": ("concurrency", 1.0),
    "Average Input Length (tokens)": ("input_tokens", 1.0),
    "Average Output Length (tokens)": ("output_tokens", 1.0),
    "Token Throughput (tokens/sec)": ("output_tokens_per_s", 1.0),  # of versions up to 0.16
    "Total Output Throughput (tokens/sec)": ("output_tokens_per_s", 1.0),
    "Total Token Throughput (tokens/sec)": ("tokens_per_s", 1.0),
    "Per User Output Throughput (tokens/sec/user)": ("tokens_per_s_per_user", 1.0),
    "Per User Output Throughput (tps/user)": ("tokens_per_s_per_user", 1.0),
    "Per User Output Throughput [w/ ctx] (tps/user)": ("tokens_per_s_per_user", 1.0),
    "Per GPU Output Throughput (tps/gpu)": ("tokens_per_s_per_device", 1.0),
    "Request Throughput (req/sec)": ("requests_per_s", 1.0),
    "Total Latency (ms)": ("duration_s", _MS),
    "Average request latency (ms)": ("e2e_s", _MS),
    "Average time-to-first-token [TTFT] (ms)": ("ttft_s", _MS),
    "Average time-per-output-token [TPOT] (ms)": ("tpot_reported_s", _MS),
}


# Names stand behind prefixes of logs, and values behind any blanks.
_LINE = re.compile(rf"\b({'|'.join(map(re.escape, (*_FACTS, *_FIGURES, _ISSUE_RATE)))}):\s+(\S.*?)\s*$")


def read_text(path: Path, findings: Findings) -> None:
    """Read the reports that trtllm-bench prints, one for each `PERFORMANCE OVERVIEW`."""
    runs: list[dict[str, Any]] = []
    waiting: dict[str, Any] = {}
    is_overview = at_once = False
    for line in find_lines(path, (": ", ":\t", "= ")):
        if "= ENGINE DETAILS" in line or "BACKEND" in line or "= REQUEST DETAILS" in line:
            is_overview = False
        if "= PERFORMANCE OVERVIEW" in line:
            is_overview = True
            runs.append(waiting)
            waiting = {}
        match = _LINE.search(line)
        if match is None:
            continue
        name, text = match.groups()
        if text == "None":
            continue
        if name in _FACTS:
            findings.record(**{_FACTS[name]: to_number(text) if name.endswith("Size") else text})
        elif name == _ISSUE_RATE:
            at_once = (to_number(text) or 0) > _ALL_AT_ONCE
        elif name in _FIGURES:
            figure, factor = _FIGURES[name]
            if not is_overview and name.startswith(("Request Throughput", "Token Throughput")):  # a pasted overview
                is_overview = True
                runs.append(waiting)
                waiting = {}
            elif is_overview and figure in runs[-1]:
                runs.append({})
            row = runs[-1] if is_overview else waiting
            row.setdefault(figure, scaled(text, factor))
    findings.record(engine="tensorrt-llm")
    findings.version = str(findings.configuration.pop("engine_version", ""))
    tensor, pipeline = (to_number(findings.configuration.get(name)) for name in ("tensor", "pipeline"))
    if tensor and pipeline:
        findings.record(devices=tensor * pipeline)
    shares = {_devices_of(run) for run in runs}
    if len(shares) == 1:
        findings.guess("the rates of all GPUs and of one", devices=shares.pop())
    for run in runs:
        add_server(findings, at_once=at_once, **run)


def _devices_of(run: dict[str, Any]) -> int | None:
    """Return by how many the tokens per second of all GPUs are above those of one; None if it is not a whole number."""
    devices = ratio(run.get("output_tokens_per_s"), run.get("tokens_per_s_per_device"))
    return round(devices) if devices and abs(devices - round(devices)) < _NEARLY * devices else None


FORMATS = (
    ResultFormat(
        "trtllm-bench-json", "trtllm-bench", "the JSON of `trtllm-bench --report_json`", read_json,
        keys=("engine", "world_info", "request_info", "performance"),
    ),
    ResultFormat(
        "trtllm-bench", "trtllm-bench", "the printed report of trtllm-bench", read_text,
        sign=re.compile(r"= PERFORMANCE OVERVIEW|Total Output Throughput \(tokens/sec\): +\d+(?:\.\d*)?"),
        markers=("= PERFORMANCE OVERVIEW", "Total Output Throughput (tokens/sec)"),
    ),
)  # fmt: skip
