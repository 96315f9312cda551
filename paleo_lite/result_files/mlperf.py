"""MLPerf: the log of a training (`:::MLLOG`) and LoadGen's summary of an inference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .findings import Findings, ResultFormat
from .json_text import decode_json, dig
from .serving_rows import add_server
from .text import all_lines, find_lines, mean, ratio, scaled, to_number

_NS = 1e-9

_FACTS = {
    "submission_benchmark": "network", "submission_platform": "system", "submission_org": "submitter",
    "global_batch_size": "global_batch_size", "gradient_accumulation_steps": "accumulation",
    "max_sequence_length": "sequence_length", "sequence_length": "sequence_length",
}  # fmt: skip
_PLATFORM = re.compile(r"^(\d{1,15})x(\d+x)?(.+)$")
_BLOCKS = {"block_start": "block", "block_stop": "block", "epoch_start": "epoch", "epoch_stop": "epoch"}


def read_training(path: Path, findings: Findings) -> None:
    """Read blocks of training between evaluations; the first one warms up."""
    started: dict[str, tuple[float, float | None]] = {}
    blocks: dict[str, list[tuple[float, float]]] = {}
    rates: list[float] = []
    for line in find_lines(path, (":::MLLOG",)):
        event = decode_json(line[line.find("{") :].strip(), path)
        if not isinstance(event, dict):
            continue
        key, value, time_s = event.get("key"), event.get("value"), scaled(event.get("time_ms"), 1e-3)
        if key in _FACTS:
            findings.record(**{_FACTS[key]: value})
        elif key == "tracked_stats" and (tracked := to_number(dig(value, "throughput"))) is not None:
            rates.append(tracked)
        elif key in _BLOCKS and time_s is not None:
            samples = _samples(event, value)
            name = _BLOCKS[key]
            if key.endswith("start"):
                started[name] = (time_s, samples)
            elif name in started:
                start_s, before = started.pop(name)
                if samples is not None and samples > (before or 0):
                    blocks.setdefault(name, []).append((samples - (before or 0), time_s - start_s))
    _note_platform(findings)
    batch = to_number(findings.configuration.get("global_batch_size"))
    trained_blocks = blocks.get("block") or blocks.get("epoch") or []
    later = trained_blocks[1:] or trained_blocks
    rate = ratio(sum(count for count, _ in later), sum(seconds for _, seconds in later))
    doubts = ("a single block, which contains the warm-up",) if len(trained_blocks) == 1 else ()
    if rate is None:
        rate = mean(rates[1:] or rates)
        doubts = (
            "blocks do not count their samples: the rate is the one that the submitter logs, in a unit of its own",
        )
    if rate is not None:
        findings.add(
            "step",
            doubts,
            phase="training",
            global_batch_size=batch,
            sequence_length=to_number(findings.configuration.get("sequence_length")),
            samples=len(later) or len(rates),
            samples_per_s=rate,
            step_s=ratio(batch, rate),
        )


def _samples(event: dict[str, Any], value: Any) -> float | None:
    """Return the samples that were trained on when a block started or ended."""
    metadata = event.get("metadata")
    count = to_number(dig(metadata, "samples_count"))
    return to_number(value) if count is None and event.get("key") in ("block_stop", "block_start") else count


def _note_platform(findings: Findings) -> None:
    """Guess the device from the platform; its first number may count nodes or devices."""
    platform = str(findings.configuration.get("system") or "")
    match = _PLATFORM.match(platform)
    if match:
        findings.guess(f"the platform {platform}", gpu=match[3])
        findings.doubt(
            f"the {match[1]} of {platform} may count nodes: the submission's system file says how many devices"
        )


_SUMMARY_LINE = re.compile(r"^\s*(.+?)\s*:\s+(\S.*?)\s*$")
_SUMMARY = {
    "Samples per second": ("requests_per_s", 1.0),
    "Completed samples per second": ("requests_per_s", 1.0),
    "Tokens per second": ("output_tokens_per_s", 1.0),
    "Completed tokens per second": ("output_tokens_per_s", 1.0),
    "Mean latency (ns)": ("e2e_s", _NS),
    "50.00 percentile latency (ns)": ("e2e_median_s", _NS),
    "99.00 percentile latency (ns)": ("e2e_p99_s", _NS),
    "Mean First Token latency (ns)": ("ttft_s", _NS),
    "50.00 percentile first token latency (ns)": ("ttft_median_s", _NS),
    "99.00 percentile first token latency (ns)": ("ttft_p99_s", _NS),
    "Mean Time to Output Token (ns)": ("tpot_reported_s", _NS),
    "50.00 percentile time to output token (ns)": ("tpot_median_s", _NS),
    "99.00 percentile time to output token (ns)": ("tpot_p99_s", _NS),
    "90.0th percentile latency (ns)": ("time_s", _NS),
    "90th percentile latency (ns)": ("time_s", _NS),
    "target_qps": ("request_rate", 1.0),
}
_PLACE = re.compile(r"/results/([^/]+)/([^/]+)/([^/]+)/performance/")
_DEVICES = re.compile(r"(\d{1,15})x([A-Z][A-Za-z0-9-]+)")


def read_inference(path: Path, findings: Findings) -> None:
    """Read LoadGen's `mlperf_log_summary.txt`, or several summaries in one file."""
    summaries: list[dict[str, str]] = [{}]
    for line in all_lines(path):
        if line.startswith("MLPerf Results Summary") and summaries[-1]:
            summaries.append({})
        if match := _SUMMARY_LINE.match(line):
            summaries[-1].setdefault(match[1], match[2])
    place = _PLACE.search(f"/{path.absolute().as_posix()}")
    named = _DEVICES.search(place[1] if place else path.name)
    if place:
        findings.guess("the path", network=place[2])
    if named:
        findings.guess("the path" if place else "the name of the file", gpu=named[2], devices=int(named[1]))
    for summary in summaries:
        _add_summary(summary, findings)
    findings.doubt("the figures are those of the whole system; network and devices stand only in the path")


def _add_summary(summary: dict[str, str], findings: Findings) -> None:
    """Add the row of a summary, whose lines are by their names."""
    values: dict[str, Any] = {}
    for name, (figure, factor) in _SUMMARY.items():
        if name in summary:
            values.setdefault(figure, scaled(summary[name].split()[0], factor))
    # Older versions write names of two words: Single Stream, Multi Stream.
    scenario, verdict = summary.get("Scenario", "").replace(" ", ""), summary.get("Result is", "")
    doubts = [] if verdict == "VALID" else [f"the result is {verdict or 'not judged'}"]
    if scenario == "Server":
        doubts.append("tuned to the edge of the latency that the rules allow")
    requests_per_s, tokens = values.get("requests_per_s"), values.get("output_tokens_per_s")
    is_offline = scenario == "Offline"
    if is_offline:
        values.pop("request_rate", None)
    add_server(findings, tuple(doubts), scenario=scenario, at_once=is_offline,
               output_tokens=ratio(tokens, requests_per_s), **values)  # fmt: skip


FORMATS = (
    ResultFormat(
        "mllog", "MLPerf Training", "MLPerf's training logs (`:::MLLOG`)", read_training,
        sign=re.compile(r":::MLLOG \{"), markers=(":::MLLOG",),
    ),
    ResultFormat(
        "mlperf-inference", "MLPerf Inference", "LoadGen's `mlperf_log_summary.txt`", read_inference,
        sign=re.compile(r"^MLPerf Results Summary", re.MULTILINE),
    ),
)  # fmt: skip
