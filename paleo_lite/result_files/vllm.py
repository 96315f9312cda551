"""vLLM's benchmarks: `vllm bench serve`, `throughput` and `latency`, sweeps, and the text that they print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .descriptions import note_description
from .findings import Findings, ResultFormat
from .json_text import dig, read_documents
from .serving_rows import add_server
from .text import find_lines, mean, ratio, scaled, to_number

_MS = 1e-3

_FIGURES = {
    "ttft_s": "mean_ttft_ms", "ttft_median_s": "median_ttft_ms", "ttft_p99_s": "p99_ttft_ms",
    "tpot_reported_s": "mean_tpot_ms", "tpot_median_s": "median_tpot_ms", "tpot_p99_s": "p99_tpot_ms",
    "itl_s": "mean_itl_ms", "itl_median_s": "median_itl_ms", "itl_p99_s": "p99_itl_ms",
    "e2e_s": "mean_e2el_ms", "e2e_median_s": "median_e2el_ms", "e2e_p99_s": "p99_e2el_ms",
}  # fmt: skip
"""Figures of a row, and the keys of vLLM in milliseconds."""

_KNOWN = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "request_goodput:", "output_throughput", "total_token_throughput",
    "max_output_tokens_per_s", "max_concurrent_requests", "rtfx", "run_number", "input_throughput", "good_completed",
    "errors", "input_lens", "output_lens", "ttfts", "itls", "generated_texts", "input_sequence_throughput",
    "num_warmups", "start_times", "latencies", "queue_times",
}  # fmt: skip

HINTS = {
    "gpu": "gpu", "gpu_type": "gpu", "gpu_name": "gpu", "hw": "gpu", "hardware": "gpu", "accelerator": "gpu",
    "tp": "tensor", "tensor_parallel_size": "tensor", "tensor_parallel": "tensor", "pp": "pipeline",
    "pipeline_parallel_size": "pipeline", "dp": "data", "data_parallel_size": "data", "ep": "expert_parallel",
    "enable_expert_parallel": "expert_parallel", "dtype": "precision", "quantization": "weights",
    "precision": "precision",
    "kv_cache_dtype": "kv_cache", "vllm_version": "engine_version", "version": "engine_version",
    "max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "chunk_tokens", "num_gpus": "devices",
    "gpu_count": "devices", "replicas": "replicas", "decode_replicas": "replicas", "framework": "engine",
    "spec_decoding": "speculative", "disagg": "disaggregated", "model": "network",
}  # fmt: skip
"""Keys that users and sweeps add to a row, and the facts that they hint at."""


def read_serve(path: Path, findings: Findings) -> None:
    """Read the JSON of `vllm bench serve`, one object or one per line, and summaries of sweeps."""
    for run in read_documents(path, findings):
        if to_number(run.get("completed")) is None and "num_prompts" not in run:
            continue
        findings.record(engine="vllm", network=run.get("model_id"))
        is_embedding = "input_sequence_throughput" in run
        _note_hints(run, findings)
        rate = run.get("request_rate")
        limit = to_number(run.get("max_concurrency"))
        figures: dict[str, Any] = {name: scaled(run.get(key), _MS) for name, key in _FIGURES.items()}
        if run.get("input_lens") and run.get("ttfts"):
            figures = {**figures, **_from_details(run, figures)}
        add_server(
            findings,
            label=run.get("label"),
            max_num_seqs=to_number(run.get("max_num_seqs")),
            requests=to_number(run.get("completed")),
            requests_asked=to_number(run.get("num_prompts")),
            failed=to_number(run.get("failed")) or None,
            duration_s=to_number(run.get("duration")),
            request_rate=to_number(rate),
            concurrency_limit=limit,
            at_once=str(rate).lower() in ("inf", "infinity"),
            input_tokens_asked=to_number(run.get("input_len")) or to_number(run.get("random_input_len")),
            output_tokens_asked=to_number(run.get("output_len")) or to_number(run.get("random_output_len")),
            input_total=to_number(run.get("total_input_tokens")),
            output_total=None if is_embedding else to_number(run.get("total_output_tokens")),
            requests_per_s=to_number(run.get("request_throughput")),
            output_tokens_per_s=to_number(run.get("output_throughput")),
            tokens_per_s=to_number(run.get("total_token_throughput")),
            acceptance=scaled(run.get("spec_decode_acceptance_rate"), 0.01),
            acceptance_length=to_number(run.get("spec_decode_acceptance_length")),
            **figures,
        )
        if run.get("spec_decode_acceptance_rate") is not None:
            findings.doubt("speculative decoding was on: a step of the server writes several tokens of a request")
    findings.doubt(
        "whether the server stopped at the end of a text (ignore_eos) is not recorded, and the lengths are those that "
        "came"
    )


def _note_hints(run: dict[str, Any], findings: Findings) -> None:
    """Record what users added to a row with `--metadata`, and what a sweep varied."""
    for key, value in run.items():
        if key in _KNOWN or isinstance(value, (list, dict)) or value in (None, ""):
            continue
        if key in HINTS and HINTS[key] not in ("max_num_seqs", "network"):
            findings.guess(f"`{key}` in the file", **{HINTS[key]: value})


def _from_details(run: dict[str, Any], figures: dict[str, float | None]) -> dict[str, float | None]:
    """Return the means that `--save-detailed` allows to compute and the file lacks; its lists are in seconds."""
    firsts, gaps = run.get("ttfts"), run.get("itls")
    if not isinstance(firsts, list) or not isinstance(gaps, list) or len(firsts) != len(gaps):
        return {}
    request_s = [
        first + sum(to_number(gap) or 0.0 for gap in request_gaps)
        for first, request_gaps in zip(map(to_number, firsts), gaps, strict=True)
        if first is not None and isinstance(request_gaps, list)
    ]
    return {"e2e_s": mean(request_s)} if figures.get("e2e_s") is None else {}


def read_throughput(path: Path, findings: Findings) -> None:
    """Read the JSON of `vllm bench throughput`."""
    for run in read_documents(path, findings):
        findings.record(engine="vllm")
        findings.add(
            "server",
            requests=to_number(run.get("num_requests")),
            duration_s=to_number(run.get("elapsed_time")),
            requests_per_s=to_number(run.get("requests_per_second")),
            tokens_per_s=to_number(run.get("tokens_per_second")),
        )
    findings.doubt(
        "tokens_per_second counts prompts and answers together; the output tokens appear on the terminal only"
    )


def read_latency(path: Path, findings: Findings) -> None:
    """Read the JSON of `vllm bench latency`: seconds of a whole batch, the prompt and all generated tokens."""
    for run in read_documents(path, findings):
        findings.record(engine="vllm")
        findings.add(
            "server",
            e2e_s=to_number(run.get("avg_latency")),
            e2e_median_s=to_number(dig(run, "percentiles", "50")),
            e2e_p99_s=to_number(dig(run, "percentiles", "99")),
        )
    findings.doubt(
        "the batch and the lengths are not in the file; by default 8 sequences of 32 tokens, which write 128: "
        "`*.pytorch.json` beside it has the arguments"
    )


_PRINTED = {
    "Successful requests": "requests", "Failed requests": "failed", "Benchmark duration (s)": "duration_s",
    "Total input tokens": "input_total", "Total generated tokens": "output_total",
    "Request throughput (req/s)": "requests_per_s", "Output token throughput (tok/s)": "output_tokens_per_s",
    "Input token throughput (tok/s)": "input_tokens_per_s", "Total Token throughput (tok/s)": "tokens_per_s",
    "Total token throughput (tok/s)": "tokens_per_s", "Maximum request concurrency": "concurrency_limit",
    "Max request concurrency": "concurrency_limit", "Concurrency": "concurrency",
    "Traffic request rate": "request_rate", "Request rate configured (RPS)": "request_rate",
    "Mean TTFT (ms)": "ttft_s", "Median TTFT (ms)": "ttft_median_s", "P99 TTFT (ms)": "ttft_p99_s",
    "Mean TPOT (ms)": "tpot_reported_s", "Median TPOT (ms)": "tpot_median_s", "P99 TPOT (ms)": "tpot_p99_s",
    "Mean ITL (ms)": "itl_s", "Median ITL (ms)": "itl_median_s", "P99 ITL (ms)": "itl_p99_s",
    "Mean E2EL (ms)": "e2e_s", "Median E2EL (ms)": "e2e_median_s", "P99 E2EL (ms)": "e2e_p99_s",
    "Mean E2E Latency (ms)": "e2e_s", "Median E2E Latency (ms)": "e2e_median_s", "P99 E2E Latency (ms)": "e2e_p99_s",
    "Accept length": "acceptance_length",
}  # fmt: skip
"""Lines of the report that `vllm bench serve` and SGLang's `bench_serving` print."""

_PRINTED_LINE = re.compile(r"^\W*([A-Z][A-Za-z0-9 ]+(?: \([^)]*\))?):\s+(\S.*)$")


def read_printed_report(path: Path, findings: Findings) -> None:
    """Read the report that `vllm bench serve` and SGLang's `bench_serving` print, once for each run."""
    runs: list[dict[str, Any]] = []
    for line in find_lines(path, ("Serving Benchmark Result", *_PRINTED, "Backend:")):
        if "Serving Benchmark Result" in line:
            runs.append({})
        match = _PRINTED_LINE.match(line)
        if match is None or not runs:
            continue
        if match[1] == "Backend":
            findings.record(engine=match[2])
        name = _PRINTED.get(match[1])
        if name is not None:
            number = to_number(match[2])
            if match[2].strip().lower() == "nan":
                findings.not_numbers[match[1]] = None
            runs[-1][name] = scaled(number, _MS) if match[1].endswith("(ms)") else number
            runs[-1]["at_once"] = runs[-1].get("at_once") or (name == "request_rate" and match[2].startswith("inf"))
    for run in runs:
        add_server(findings, **run)
    note_description(path, findings)


_THROUGHPUT = re.compile(
    r"Throughput: ([\d.,]+) requests/s, ([\d.,]+) (?:total )?tokens/s(?:, ([\d.,]+) output tokens/s)?"
)
_AVERAGE = re.compile(r"Avg latency: (\d+(?:\.\d*)?) seconds")


def read_printed_offline(path: Path, findings: Findings) -> None:
    """Read the lines that `vllm bench throughput` and `vllm bench latency` print."""
    findings.record(engine="vllm")
    for line in find_lines(path, ("Throughput: ", "Avg latency: ")):
        if match := _THROUGHPUT.search(line):
            requests, total, output = (to_number(text) for text in match.groups())
            findings.add(
                "server",
                requests_per_s=requests,
                tokens_per_s=total,
                output_tokens_per_s=output,
                output_tokens=ratio(output, requests),
            )
        elif match := _AVERAGE.search(line):
            findings.add("server", e2e_s=to_number(match[1]))
    note_description(path, findings)


FORMATS = (
    ResultFormat(
        "vllm-serve", "vLLM bench serve", "the JSON of `vllm bench serve` and its sweeps", read_serve,
        keys=("model_id", "tokenizer_id", "num_prompts", "total_token_throughput"),
    ),
    ResultFormat(
        "vllm-throughput", "vLLM bench throughput", "the JSON of `vllm bench throughput`", read_throughput,
        keys=("elapsed_time", "num_requests", "total_num_tokens", "requests_per_second"),
    ),
    ResultFormat(
        "vllm-latency", "vLLM bench latency", "the JSON of `vllm bench latency`", read_latency,
        keys=("avg_latency", "latencies", "percentiles"),
    ),
    ResultFormat(
        "serving-report", "vLLM or SGLang's serving benchmark", "the printed Serving Benchmark Result",
        read_printed_report, sign=re.compile("Serving Benchmark Result"), markers=("Serving Benchmark Result",),
    ),
    ResultFormat(
        "vllm-offline-report", "vLLM bench", "the printed lines of `vllm bench throughput` and `latency`",
        read_printed_offline, sign=re.compile(f"{_THROUGHPUT.pattern}|{_AVERAGE.pattern}"),
        markers=("Throughput: ", "Avg latency: "),
    ),
)  # fmt: skip
