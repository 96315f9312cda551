"""SGLang's benchmarks: `bench_serving`, `bench_one_batch` and their relatives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .findings import Findings, ResultFormat
from .json_text import dig, read_documents
from .serving_rows import add_server
from .text import ratio, scaled, to_number

_MS = 1e-3
_FIGURES = {
    "ttft_s": "mean_ttft_ms", "ttft_median_s": "median_ttft_ms", "ttft_p99_s": "p99_ttft_ms",
    "tpot_reported_s": "mean_tpot_ms", "tpot_median_s": "median_tpot_ms", "tpot_p99_s": "p99_tpot_ms",
    "itl_s": "mean_itl_ms", "itl_median_s": "median_itl_ms", "itl_p99_s": "p99_itl_ms",
    "e2e_s": "mean_e2e_latency_ms", "e2e_median_s": "median_e2e_latency_ms", "e2e_p99_s": "p99_e2e_latency_ms",
}  # fmt: skip

_SERVER_FACTS = {
    "network": "model_path", "tensor": "tp_size", "data": "dp_size", "expert_parallel": "ep_size", "precision": "dtype",
    "weights": "quantization", "kv_cache": "kv_cache_dtype", "chunk_tokens": "chunked_prefill_size",
    "speculative": "speculative_algorithm",
}  # fmt: skip
"""Facts of the run, and the arguments of the server that newer versions add as `server_info`."""


def read_serving(path: Path, findings: Findings) -> None:
    """Read the lines of JSON that `bench_serving` appends, one per run."""
    for run in read_documents(path, findings):
        engine = run.get("backend")
        if not isinstance(engine, str) or to_number(run.get("completed")) is None:
            continue
        findings.record(engine={"sglang-oai": "sglang", "vllm-chat": "vllm", "trt": "tensorrt-llm"}.get(engine, engine))
        _note_server(run, findings)
        is_random = str(run.get("dataset_name") or "").startswith("random")
        asked_in = to_number(run.get("random_input_len")) if is_random else None
        asked_out = to_number(run.get("random_output_len")) if is_random else None
        retokenized = to_number(run.get("total_output_tokens_retokenized"))
        output = to_number(run.get("total_output_tokens"))
        doubts = []
        if retokenized and output and abs(output - retokenized) > 0.05 * output:
            doubts.append(f"{output:,.0f} output tokens were asked for, and {retokenized:,.0f} came")
            output = retokenized
        spread = to_number(run.get("random_range_ratio"))
        if is_random and spread is not None and spread < 1 and asked_in:
            doubts.append(
                f"a random_range_ratio of {spread:g} means from {spread * asked_in:,.0f} to {asked_in:,.0f} tokens"
            )
        rate = to_number(run.get("request_rate"))
        add_server(
            findings,
            tuple(doubts),
            label=run.get("tag"),
            dataset=run.get("dataset_name"),
            requests=to_number(run.get("completed")),
            duration_s=to_number(run.get("duration")),
            request_rate=rate,
            concurrency_limit=to_number(run.get("max_concurrency")),
            at_once=rate is None,
            input_tokens_asked=asked_in,
            output_tokens_asked=asked_out,
            input_total=to_number(run.get("total_input_tokens")),
            output_total=output,
            requests_per_s=to_number(run.get("request_throughput")),
            input_tokens_per_s=to_number(run.get("input_throughput")),
            output_tokens_per_s=to_number(run.get("output_throughput")),
            concurrency=to_number(run.get("concurrency")),
            acceptance_length=to_number(run.get("accept_length")),
            **{name: scaled(run.get(key), _MS) for name, key in _FIGURES.items()},
        )


def _note_server(run: dict[str, Any], findings: Findings) -> None:
    """Record the arguments of the server, which newer versions write."""
    server = run.get("server_info")
    if isinstance(server, dict):
        findings.record(**{fact: server.get(key) for fact, key in _SERVER_FACTS.items()})
        findings.version = findings.version or str(server.get("version") or "")
    findings.record(network=run.get("model") or dig(run, "args", "model"))


def read_one_batch(path: Path, findings: Findings) -> None:
    """Read the JSON of `bench_one_batch`: a prefill and decode steps of one batch, without a server."""
    for run in read_documents(path, findings):
        batch, tokens = to_number(run.get("batch_size")), to_number(run.get("input_len"))
        if batch is None or tokens is None:
            continue
        findings.record(engine="sglang", network=run.get("model_path"))
        latency = to_number(run.get("prefill_latency"))
        findings.add(
            "prompt",
            label=run.get("run_name"),
            batch_size=batch,
            tokens=tokens,
            time_s=latency,
            tokens_per_s=to_number(run.get("prefill_throughput")) or ratio(batch * tokens, latency),
        )
        generated = to_number(run.get("output_len"))
        findings.add(
            "decode",
            label=run.get("run_name"),
            batch_size=batch,
            depth=tokens,
            generated=generated,
            tpot_s=to_number(run.get("median_decode_latency")),
            tokens_per_s=to_number(run.get("median_decode_throughput")),
        )
        if "median_decode_latency" not in run and "latency" in run:  # bench_one_batch_server
            add_server(
                findings,
                label=run.get("run_name"),
                batch_size=batch,
                input_tokens=tokens,
                output_tokens=generated,
                e2e_s=to_number(run.get("latency")),
                ttft_s=to_number(run.get("ttft")),
                output_tokens_per_s=to_number(run.get("output_throughput")),
            )
    findings.doubt("every step was waited for, so that the time of the scheduler and of the server is not in it")


def read_offline(path: Path, findings: Findings) -> None:
    """Read the JSON of `bench_offline_throughput`: all requests of a data set at once."""
    for run in read_documents(path, findings):
        findings.record(engine="sglang")
        add_server(
            findings,
            requests=to_number(run.get("successful_requests")),
            duration_s=to_number(run.get("total_latency")),
            input_total=to_number(run.get("total_input_tokens")),
            output_total=to_number(run.get("total_output_tokens")),
            requests_per_s=to_number(run.get("request_throughput")),
            output_tokens_per_s=to_number(run.get("output_throughput")),
            tokens_per_s=to_number(run.get("total_throughput")),
        )


FORMATS = (
    ResultFormat(
        "sglang-serving", "SGLang bench_serving", "the JSON lines of SGLang's `bench_serving`", read_serving,
        keys=("backend", "total_output_tokens_retokenized", "duration"),
    ),
    ResultFormat(
        "sglang-one-batch", "SGLang bench_one_batch", "the JSON of SGLang's `bench_one_batch`", read_one_batch,
        keys=("run_name", "batch_size", "input_len", "output_len"),
    ),
    ResultFormat(
        "sglang-offline", "SGLang bench_offline_throughput", "the JSON of `bench_offline_throughput`", read_offline,
        keys=("successful_requests", "total_latency", "output_throughput"),
    ),
)  # fmt: skip
