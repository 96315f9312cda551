"""Clients that load a server: GuideLLM, inference-perf and LLMPerf."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .findings import Findings, ResultFormat
from .json_text import dig, read_documents
from .serving_rows import add_server
from .text import all_lines, mean, product, ratio, scaled, to_number

_MS = 1e-3
_ASKED = re.compile(r"(prompt|output)_tokens['\"]?\s*[=:]\s*(\d{1,15})")


def read_guidellm(path: Path, findings: Findings) -> None:
    """Read GuideLLM's `benchmarks.json`: a row for each strategy of a sweep."""
    for report in read_documents(path, findings):
        findings.version = str(dig(report, "metadata", "guidellm_version") or "")
        benchmarks = report.get("benchmarks")
        for benchmark in benchmarks if isinstance(benchmarks, list) else []:
            if isinstance(benchmark, dict):
                _add_guidellm(report, benchmark, findings)
    findings.doubt(
        "the mean of output_tokens_per_second weights events by slices of time: requests per second times output "
        "tokens is taken"
    )


def _add_guidellm(report: dict[str, Any], benchmark: dict[str, Any], findings: Findings) -> None:
    model = dig(benchmark, "worker", "backend_model") or dig(benchmark, "benchmarker", "backend", "model")
    model = model or dig(report, "args", "model") or dig(benchmark, "config", "backend", "model")
    findings.record(network=model if isinstance(model, str) else None)

    def statistic(name: str, which: str, factor: float = 1.0) -> float | None:
        return scaled(dig(benchmark, "metrics", name, "successful", which), factor)

    totals = benchmark.get("request_totals") or dig(benchmark, "run_stats", "requests_made") or {}
    totals = totals or dig(benchmark, "metrics", "request_totals") or {}
    strategy = dig(benchmark, "args", "strategy") or dig(benchmark, "config", "strategy") or benchmark.get("strategy")
    data = str(dig(benchmark, "request_loader", "data") or dig(report, "args", "data") or "")
    requested_tokens = {side: float(count) for side, count in _ASKED.findall(data[:4096])}
    output_tokens = statistic("output_token_count", "mean")
    requests_per_s = statistic("requests_per_second", "mean")
    doubts = []
    incomplete = to_number(totals.get("incomplete")) if isinstance(totals, dict) else None
    if incomplete:
        doubts.append(f"{incomplete:g} requests were cut off when the run ended, and are not counted")
    rate = dig(strategy, "rate")
    add_server(
        findings,
        tuple(doubts),
        label=dig(strategy, "type_"),
        requests=to_number(totals.get("successful")) if isinstance(totals, dict) else None,
        failed=(to_number(totals.get("errored")) or None) if isinstance(totals, dict) else None,
        duration_s=to_number(benchmark.get("duration")),
        request_rate=to_number(rate),
        concurrency_limit=to_number(dig(strategy, "streams")) or to_number(dig(strategy, "max_concurrency")),
        concurrency=statistic("request_concurrency", "mean"),
        input_tokens_asked=requested_tokens.get("prompt"),
        output_tokens_asked=requested_tokens.get("output"),
        input_tokens=statistic("prompt_token_count", "mean"),
        output_tokens=output_tokens,
        requests_per_s=requests_per_s,
        output_tokens_per_s=None if output_tokens is None or requests_per_s is None else output_tokens * requests_per_s,
        ttft_s=statistic("time_to_first_token_ms", "mean", _MS),
        ttft_median_s=statistic("time_to_first_token_ms", "median", _MS),
        tpot_reported_s=statistic("inter_token_latency_ms", "mean", _MS),
        tpot_median_s=statistic("inter_token_latency_ms", "median", _MS),
        e2e_s=statistic("request_latency", "mean"),
        e2e_median_s=statistic("request_latency", "median"),
    )


_PRINTED_INFO = (
    "label", "", "", "duration_s", "requests", "incomplete", "failed", "input_tokens", "", "", "output_tokens",
)  # fmt: skip
"""Columns of GuideLLM's printed Benchmarks Info that are read, with blanks for others; sums of tokens follow."""
_PRINTED_STATISTICS = (
    ("label", 1.0), ("requests_per_s", 1.0), ("concurrency", 1.0), ("", 1.0), ("", 1.0),
    ("e2e_s", 1.0), ("e2e_median_s", 1.0), ("e2e_p99_s", 1.0),
    ("ttft_s", _MS), ("ttft_median_s", _MS), ("ttft_p99_s", _MS),
    ("tpot_reported_s", _MS), ("tpot_median_s", _MS), ("tpot_p99_s", _MS),
)  # fmt: skip
"""Columns of its Benchmarks Stats, with their factors: latencies of requests are in seconds, whatever their heading
says, and rates of tokens follow from the others, as in the JSON."""
_MODEL = re.compile(r"backend_model='([^']+)'")
_RATE = re.compile(r"(\w+)@(\d+(?:\.\d+)?)")


def read_printed_guidellm(path: Path, findings: Findings) -> None:
    """Read the tables that GuideLLM prints: what was done for each strategy, and what was measured."""
    rows: dict[str, dict[str, Any]] = {}
    table = ""
    for line in all_lines(path):
        if line.strip() in ("Benchmarks Info:", "Benchmarks Stats:"):
            table = line.strip()
        if match := _MODEL.search(line):
            findings.record(network=match[1])
        cells = [cell.strip() for cell in line.split("|")]
        if not table or len(cells) < len(_PRINTED_INFO) or to_number(cells[4]) is None:
            continue
        row = rows.setdefault(cells[0], {})
        if table == "Benchmarks Info:":
            row.update({name: to_number(cell) for name, cell in zip(_PRINTED_INFO, cells) if name})
        else:
            row.update({name: scaled(cell, factor) for (name, factor), cell in zip(_PRINTED_STATISTICS, cells) if name})
    for label, row in rows.items():
        incomplete, rate = row.pop("incomplete", None), _RATE.fullmatch(label)
        if not row.get("requests", 1) or "requests_per_s" not in row:
            continue
        doubts = []
        if incomplete:
            doubts.append(f"{incomplete:g} requests were cut off when the run ended, and are not counted")
        output_total = product(row.get("requests"), row.get("output_tokens"))
        row.update(label=rate[1] if rate else label, request_rate=to_number(rate[2]) if rate else None)
        row.update(failed=row.get("failed") or None, output_total=output_total)
        add_server(findings, tuple(doubts), **row)


def read_inference_perf(path: Path, findings: Findings) -> None:
    """Read a `*_lifecycle_metrics.json` of inference-perf, the view of the client, or the server's in Prometheus."""
    for report in read_documents(path, findings):
        load, successes = report.get("load_summary"), report.get("successes")
        if not isinstance(successes, dict):
            continue
        latency = successes.get("latency") if isinstance(successes.get("latency"), dict) else successes
        is_server = latency is successes
        requests = to_number(successes.get("count"))

        def statistic(name: str, which: str, of: Any = latency) -> float | None:
            return to_number(dig(of, name, which))

        lengths = {
            "input": to_number(dig(successes, "prompt_len", "mean")),
            "output": to_number(dig(successes, "output_len", "mean")),
        }
        doubts = []
        if is_server:
            doubts.append("this is the server's view, in Prometheus, of which lengths are sums of a window")
            lengths = {}
        requests_per_s = to_number(dig(successes, "throughput", "requests_per_sec")) or to_number(successes.get("rate"))
        add_server(
            findings,
            tuple(doubts),
            requests=requests,
            failed=to_number(dig(report, "failures", "count")) or None,
            duration_s=ratio(requests, to_number(dig(successes, "throughput", "requests_per_sec"))),
            request_rate=to_number(dig(load, "requested_rate")),
            input_tokens=lengths.get("input"),
            output_tokens=lengths.get("output"),
            requests_per_s=requests_per_s,
            input_tokens_per_s=to_number(dig(successes, "throughput", "input_tokens_per_sec")),
            output_tokens_per_s=to_number(dig(successes, "throughput", "output_tokens_per_sec")),
            tokens_per_s=to_number(dig(successes, "throughput", "total_tokens_per_sec")),
            ttft_s=statistic("time_to_first_token", "mean"),
            ttft_median_s=statistic("time_to_first_token", "median"),
            ttft_p99_s=statistic("time_to_first_token", "p99"),
            tpot_reported_s=statistic("time_per_output_token", "mean"),
            tpot_median_s=statistic("time_per_output_token", "median") if is_server else None,
            itl_s=statistic("inter_token_latency", "mean"),
            itl_median_s=statistic("inter_token_latency", "median"),
            e2e_s=statistic("request_latency", "mean"),
            e2e_median_s=statistic("request_latency", "median"),
            e2e_p99_s=statistic("request_latency", "p99"),
        )
        median = statistic("inter_token_latency", "median")
        average = statistic("inter_token_latency", "mean")
        if median is not None and average is not None and median < 0.1 * average:
            findings.doubt("half of the gaps between chunks are next to nothing: a chunk carries more than one token")


_YAML_LINE = re.compile(r"^\s*(model_name|output_len|question_len|system_prompt_len|ignore_eos|type):\s*(\S+)\s*$")


def read_inference_perf_config(path: Path, findings: Findings) -> None:
    """Read what the configuration of inference-perf says of the run; it holds no measurement."""
    for line in all_lines(path):
        match = _YAML_LINE.match(line)
        if match and match[1] == "model_name":
            findings.record(network=match[2])
        elif match and match[1] == "type" and match[2] in ("vllm", "sglang", "tgi"):
            findings.record(engine=match[2])
    findings.doubt(
        "a configuration, without measurements: give the `*_lifecycle_metrics.json` that inference-perf wrote beside it"
    )


def read_llmperf(path: Path, findings: Findings) -> None:
    """Read a `*_summary.json` of LLMPerf."""
    for report in read_documents(path, findings):
        findings.version = str(report.get("version") or "")
        findings.record(network=report.get("model"), endpoint=report.get("api"))

        def statistic(name: str, which: str, of: dict[str, Any] = report) -> float | None:
            return to_number(of.get(f"results_{name}_{which}"))

        requests = to_number(report.get("results_num_completed_requests"))
        per_minute = to_number(report.get("results_num_completed_requests_per_min"))
        add_server(
            findings,
            requests=requests,
            failed=to_number(report.get("results_number_errors")) or None,
            duration_s=None if requests is None else ratio(60 * requests, per_minute),
            concurrency_limit=to_number(report.get("num_concurrent_requests")),
            input_tokens_asked=to_number(report.get("mean_input_tokens")),
            output_tokens_asked=to_number(report.get("mean_output_tokens")),
            input_tokens=statistic("number_input_tokens", "mean"),
            output_tokens=statistic("number_output_tokens", "mean"),
            requests_per_s=None if per_minute is None else per_minute / 60,
            output_tokens_per_s=to_number(report.get("results_mean_output_throughput_token_per_s")),
            ttft_s=statistic("ttft_s", "mean"),
            ttft_median_s=statistic("ttft_s", "quantiles_p50"),
            ttft_p99_s=statistic("ttft_s", "quantiles_p99"),
            e2e_s=statistic("end_to_end_latency_s", "mean"),
            e2e_median_s=statistic("end_to_end_latency_s", "quantiles_p50"),
            e2e_p99_s=statistic("end_to_end_latency_s", "quantiles_p99"),
            itl_s=statistic("inter_token_latency_s", "mean"),
        )
    findings.doubt(
        "LLMPerf's inter_token_latency is the whole request over its tokens, the first one included; the time per "
        "token is computed from whole requests and first tokens. Tokens are those of LLaMA's tokenizer"
    )


def read_llmperf_responses(path: Path, findings: Findings) -> None:
    """Read the `*_individual_responses.json` of LLMPerf, and add the means."""
    answers = [answer for answer in read_documents(path, findings) if not answer.get("error_code")]
    columns = {
        "ttft_s": "ttft_s", "e2e_s": "end_to_end_latency_s", "output_tokens": "number_output_tokens",
        "input_tokens": "number_input_tokens",
    }  # fmt: skip
    means: dict[str, Any] = {
        name: mean(to_number(answer.get(key)) for answer in answers) for name, key in columns.items()
    }
    add_server(findings, requests=len(answers), **means)


FORMATS = (
    ResultFormat(
        "guidellm", "GuideLLM", "GuideLLM's `benchmarks.json`", read_guidellm,
        keys=("benchmarks", "type_", "generative_benchmark"),
    ),
    ResultFormat(
        "guidellm-report", "GuideLLM", "the tables that GuideLLM prints", read_printed_guidellm,
        sign=re.compile(r"^\s*Benchmarks Stats:\s*$\n(?:.*\n){0,3}.*\bTTFT \(ms\)", re.MULTILINE),
        markers=("Benchmarks Stats:",),
    ),
    ResultFormat(
        "guidellm", "GuideLLM", "", read_guidellm, keys=("guidellm_version",),
    ),
    ResultFormat(
        "inference-perf", "inference-perf", "the `*_metrics.json` of inference-perf", read_inference_perf,
        keys=("load_summary", "successes"),
    ),
    ResultFormat(
        "llmperf", "LLMPerf", "the `*_summary.json` of LLMPerf", read_llmperf,
        keys=("results_ttft_s_mean", "num_concurrent_requests"),
    ),
    ResultFormat(
        "llmperf-responses", "LLMPerf", "the `*_individual_responses.json` of LLMPerf", read_llmperf_responses,
        keys=("ttft_s", "end_to_end_latency_s", "number_output_tokens"),
    ),
    ResultFormat(
        "inference-perf-config", "inference-perf", "the configuration of inference-perf", read_inference_perf_config,
        sign=re.compile(r"^load:\s*\n(?s:.*)^(?:report|server|metrics):", re.MULTILINE),
    ),
)  # fmt: skip
