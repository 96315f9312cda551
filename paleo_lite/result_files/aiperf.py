"""AIPerf and genai-perf: metrics with their units, as JSON, CSV, and one record per request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .findings import Findings, ResultFormat
from .json_text import dig, read_documents
from .serving_rows import add_server
from .text import all_lines, mean, split_csv, to_number

_UNITS = {"ms": 1e-3, "ns": 1e-9, "us": 1e-6, "s": 1.0, "sec": 1.0, "seconds": 1.0}

_METRICS = {
    "request_count": ("requests", "avg"),
    "error_request_count": ("failed", "avg"),
    "benchmark_duration": ("duration_s", "avg"),
    "request_throughput": ("requests_per_s", "avg"),
    "output_token_throughput": ("output_tokens_per_s", "avg"),
    "total_token_throughput": ("tokens_per_s", "avg"),
    "output_token_throughput_per_user": ("tokens_per_s_per_user", "avg"),
    "input_sequence_length": ("input_tokens", "avg"),
    "output_sequence_length": ("output_tokens", "avg"),
    "time_to_first_token": ("ttft_s", "avg"),
    "inter_token_latency": ("tpot_reported_s", "avg"),
    "inter_chunk_latency": ("itl_s", "avg"),
    "request_latency": ("e2e_s", "avg"),
}
_OTHER_NAMES = {
    "output_token_throughput_per_request": "tokens_per_s_per_user", "num_output_token": "output_tokens",
    "num_input_token": "input_tokens",
}  # fmt: skip
"""Names that genai-perf has or had for some metrics."""
_MORE = {
    "ttft_median_s": ("time_to_first_token", "p50"), "ttft_p99_s": ("time_to_first_token", "p99"),
    "tpot_median_s": ("inter_token_latency", "p50"), "tpot_p99_s": ("inter_token_latency", "p99"),
    "itl_median_s": ("inter_chunk_latency", "p50"), "itl_p99_s": ("inter_chunk_latency", "p99"),
    "e2e_median_s": ("request_latency", "p50"), "e2e_p99_s": ("request_latency", "p99"),
}  # fmt: skip
_CONCURRENCY = re.compile(r"--concurrency[= ]+['\"]?(\d{1,15})")
_RATE = re.compile(r"--request-rate[= ]+['\"]?(\d+(?:\.\d*)?)")


def read_json(path: Path, findings: Findings) -> None:
    """Read `profile_export_aiperf.json` or `profile_export_genai_perf.json`."""
    for report in read_documents(path, findings):
        if not isinstance(report.get("request_throughput"), dict):
            continue
        findings.tool = "AIPerf" if "aiperf_version" in report else "genai-perf"
        findings.version = str(report.get("aiperf_version") or "")
        input_config = report.get("input_config")
        command = str(dig(report, "run_info", "cli_command") or "")
        findings.record(
            network=_served_name(input_config),
            engine=dig(input_config, "endpoint", "backend") or dig(input_config, "backend"),
        )
        tokenizer = dig(input_config, "tokenizer", "name")
        if isinstance(tokenizer, str) and "/" in tokenizer:
            findings.record(tokenizer=tokenizer)
        values = _figures(report)
        values["concurrency_limit"] = _concurrency_limit(input_config, command)
        rate = _RATE.search(command)
        values["request_rate"] = to_number(rate[1]) if rate else None
        # The first token belongs to the time per token of AIPerf only where an answer has one token.
        few = to_number(dig(report, "inter_token_latency", "count"))
        mismatched = to_number(dig(report, "osl_mismatch_count", "avg"))
        doubts = []
        if mismatched:
            doubts.append(f"{mismatched:g} answers have another length than was asked for")
        if few and values.get("requests") and few < values["requests"]:
            doubts.append(f"{values['requests'] - few:g} answers have one token, and no time per token")
        add_server(findings, tuple(doubts), **values)
        _note_telemetry(report.get("telemetry_data"), findings)
    findings.doubt("tokens are counted by the client's tokenizer")


def _figures(report: dict[str, Any]) -> dict[str, Any]:
    values = {figure: _value(report.get(key), statistic) for key, (figure, statistic) in _METRICS.items()}
    for figure, (key, statistic) in _MORE.items():
        values[figure] = _value(report.get(key), statistic)
    for key, figure in _OTHER_NAMES.items():
        if values[figure] is None:
            values[figure] = _value(report.get(key), "avg")
    return values


def _value(metric: Any, statistic: str) -> float | None:
    """Return a statistic of a metric in SI units."""
    number = to_number(dig(metric, statistic))
    if number is None:
        return None
    return number * _UNITS.get(str(dig(metric, "unit") or ""), 1.0)


def _served_name(input_config: Any) -> str | None:
    """Return the served name of the model."""
    name = dig(input_config, "models")
    if isinstance(name, dict):
        name = name.get("items")
    if isinstance(name, list) and name:
        name = name[0]
    if isinstance(name, dict):
        name = name.get("name")
    for other in (
        dig(input_config, "endpoint", "model_names"),
        dig(input_config, "model"),
        dig(input_config, "model_names"),
    ):
        name = name or (other[0] if isinstance(other, list) and other else other)
    return name if isinstance(name, str) else None


def _concurrency_limit(input_config: Any, command: str) -> float | None:
    """Return the concurrency of the phase that counts."""
    phases = dig(input_config, "phases")
    if isinstance(phases, list):
        counted = [phase for phase in phases if isinstance(phase, dict) and not phase.get("exclude_from_results")]
        if counted:
            return to_number(counted[-1].get("concurrency"))
    match = _CONCURRENCY.search(command)
    return (
        to_number(dig(input_config, "loadgen", "concurrency"))
        or to_number(dig(input_config, "perf_analyzer", "stimulus", "concurrency"))
        or to_number(dig(input_config, "concurrency"))
        or (to_number(match[1]) if match else None)
    )


def _note_telemetry(telemetry: Any, findings: Findings) -> None:
    """Add the power of each GPU, and its name, where telemetry was on."""
    endpoints = dig(telemetry, "endpoints")
    for endpoint in endpoints.values() if isinstance(endpoints, dict) else []:
        gpus = dig(endpoint, "gpus")
        for gpu in gpus.values() if isinstance(gpus, dict) else []:
            findings.record(gpu=dig(gpu, "gpu_name"))
            power = dig(gpu, "metrics", "gpu_power_usage")
            findings.add(
                "power",
                device=str(dig(gpu, "gpu_index") or ""),
                gpu=dig(gpu, "gpu_name"),
                power_w=to_number(dig(power, "avg")),
                power_low_w=to_number(dig(power, "min")),
                power_high_w=to_number(dig(power, "max")),
            )


_CSV_METRICS = {
    "Request Throughput": "requests_per_s", "Output Token Throughput": "output_tokens_per_s",
    "Total Token Throughput": "tokens_per_s", "Time to First Token": "ttft_s", "Inter Token Latency": "tpot_reported_s",
    "Inter Chunk Latency": "itl_s", "Request Latency": "e2e_s", "Output Sequence Length": "output_tokens",
    "Input Sequence Length": "input_tokens", "Request Count": "requests", "Benchmark Duration": "duration_s",
    "Output Token Throughput Per User": "tokens_per_s_per_user",
    "Output Token Throughput Per Request": "tokens_per_s_per_user",
}  # fmt: skip
_FIGURE_OF = {name.lower(): figure for name, figure in _CSV_METRICS.items()}
"""Figures by names in lower case: genai-perf writes Time To First Token, AIPerf Time to First Token."""

_NAME_AND_UNIT = re.compile(r"^(.*?)(?: \((.*)\))?$")


def read_csv(path: Path, findings: Findings) -> None:
    """Read the CSV of AIPerf or genai-perf: a table of statistics, and one of single values."""
    values: dict[str, Any] = {}
    names: list[str] = []
    for line in all_lines(path):
        cells = split_csv(line)
        if len(cells) < 2:
            continue
        if cells[0] == "Metric":
            names = cells
            continue
        match = _NAME_AND_UNIT.match(cells[0])
        figure = _FIGURE_OF.get(match[1].lower()) if match else None
        if match is None or figure is None or not names:
            continue
        row = dict(zip(names, cells, strict=False))
        factor = _UNITS.get(match[2] or "", 1.0)
        number = to_number(row.get("avg", row.get("Value")))
        values[figure] = None if number is None else number * factor
        for statistic, place in (("p50", "median"), ("p99", "p99")):
            stem = figure.removesuffix("_s").removesuffix("_reported")
            statistic_value = to_number(row.get(statistic))
            if stem in ("ttft", "tpot", "itl", "e2e") and statistic_value is not None:
                values[f"{stem}_{place}_s"] = statistic_value * factor
    add_server(findings, **values)
    findings.doubt("the JSON beside this table also has the model and the concurrency")


_SUMMARY_COLUMNS = {
    "concurrency": ("concurrency_limit", 1.0), "request rate": ("request_rate", 1.0),
    "isl": ("input_tokens", 1.0), "osl": ("output_tokens", 1.0),
    "p99 time to first token (ms)": ("ttft_p99_s", 1e-3), "p99 inter token latency (ms)": ("itl_p99_s", 1e-3),
    "p99 request latency (ms)": ("e2e_p99_s", 1e-3),
    "avg. output token throughput (tokens/sec)": ("output_tokens_per_s", 1.0),
    "request throughput (requests/sec)": ("requests_per_s", 1.0),
}  # fmt: skip
"""Figures of the columns of a summary of several scenarios."""


def read_summary(path: Path, findings: Findings) -> None:
    """Read `analyze_export_genai_perf.csv`, a row per scenario; below it is a table of the GPUs, without averages."""
    names: list[str] = []
    for line in all_lines(path):
        cells = split_csv(line)
        if cells[0] == "Config Name":
            names = [cell.lower() for cell in cells]
            continue
        row = dict(zip(names, cells, strict=False))
        values: dict[str, Any] = {}
        for name, (figure, factor) in _SUMMARY_COLUMNS.items():
            number = to_number(row.get(name))
            if number is not None:
                values[figure] = number * factor
        if "requests_per_s" in values or "output_tokens_per_s" in values:
            add_server(findings, label=cells[0], **values)
    findings.doubt("times are 99th percentiles: the means are in the file of each scenario")


def read_records(path: Path, findings: Findings) -> None:
    """Read `profile_export.jsonl` of AIPerf, one record per request, and add their means."""
    columns: dict[str, list[float]] = {}
    starts: list[float] = []
    ends: list[float] = []
    for record in read_documents(path, findings):
        metrics, metadata = record.get("metrics"), record.get("metadata")
        if dig(metadata, "benchmark_phase") not in (None, "profiling"):
            continue
        start, end = (to_number(dig(metadata, key)) for key in ("request_start_ns", "request_end_ns"))
        if start is not None and end is not None:
            starts.append(start)
            ends.append(end)
        for key in ("time_to_first_token", "inter_token_latency", "request_latency", "output_sequence_length",
                    "input_sequence_length"):  # fmt: skip
            number = _value(dig(metrics, key), "value")
            if number is not None:
                columns.setdefault(key, []).append(number)
    means: dict[str, Any] = {_METRICS[key][0]: mean(values) for key, values in columns.items()}
    duration_s = (max(ends) - min(starts)) * 1e-9 if starts else None
    requests = len(columns.get("request_latency", ()))
    findings.tool = "AIPerf"
    means["output_total"] = sum(columns.get("output_sequence_length", ())) or None
    add_server(findings, requests=requests, duration_s=duration_s, **means)


FORMATS = (
    ResultFormat(
        "aiperf", "AIPerf", "`profile_export_aiperf.json` and genai-perf's", read_json,
        keys=("request_throughput", "request_latency", "avg", "unit"),
    ),
    ResultFormat(
        "aiperf-records", "AIPerf", "`profile_export.jsonl` of AIPerf", read_records,
        keys=("metadata", "metrics", "request_latency", "benchmark_phase"),
    ),
    ResultFormat(
        "genai-perf-summary", "genai-perf analyze", "`analyze_export_genai_perf.csv`", read_summary,
        sign=re.compile(r"^\ufeff?Config Name,(?=.*Throughput \((?:tokens|requests)/sec\))", re.MULTILINE),
    ),
    ResultFormat(
        "aiperf-csv", "AIPerf or genai-perf", "the CSV of AIPerf and genai-perf", read_csv,
        sign=re.compile(r"^\ufeff?Metric,(?:.*\b(?:avg|Value)\b.*)$\n(?s:.*)(?:Time [Tt]o First Token|Request Latency|"
                        r"Request Throughput)", re.MULTILINE),
    ),
)  # fmt: skip
