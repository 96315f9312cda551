"""Logs and metrics of inference servers: lines of vLLM and SGLang, and what they show at `/metrics`.

A line of a log states how many requests ran and how many tokens per second they wrote in a window: their quotient is
the time of an iteration, the most abundant measurement there is. Windows are grouped by the number of running requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..text import format_plural
from .findings import Findings, ResultFormat
from .serving_rows import add_server
from .text import all_lines, find_lines, ratio, to_number

_VLLM = re.compile(
    r"(?:Engine (?P<engine>\d+): )?Avg prompt throughput: (?P<prompt>[\d.,]+) tokens/s, "
    r"Avg generation throughput: (?P<decode>[\d.,]+) tokens/s, Running: (?P<running>\d+) reqs"
)
_SGLANG = re.compile(
    r"Decode batch[.,\]].*?#running-req: (?P<running>\d+).*?gen throughput \(token/s\): (?P<decode>\d+(?:\.\d*)?)"
)
_ACCEPTED = re.compile(r"accept len: (\d+(?:\.\d*)?)")
_PREFILL = re.compile(r"Prefill batch[.,\]]")
_RANK = re.compile(r"\b(DP\d+)\b")
_VLLM_VERSION = re.compile(r"vLLM API server version (\S+)|Initializing a? ?V?\d? ?LLM engine \(v(\S+?)\)")
_ARGUMENT = re.compile(r"['\"]?\b(model|model_path|tensor_parallel_size|tp_size|dtype|quantization|kv_cache_dtype|"
                       r"max_num_seqs|max_num_batched_tokens|chunked_prefill_size|pipeline_parallel_size|"
                       r"data_parallel_size|dp_size)['\"]?[=:] ?['\"]?([\w./:+-]+)")  # fmt: skip
_FACT_OF = {
    "model": "network", "model_path": "network", "tensor_parallel_size": "tensor", "tp_size": "tensor",
    "dtype": "precision", "quantization": "weights", "kv_cache_dtype": "kv_cache", "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "chunk_tokens", "chunked_prefill_size": "chunk_tokens",
    "pipeline_parallel_size": "pipeline", "data_parallel_size": "data", "dp_size": "data",
}  # fmt: skip
_WINDOW_WORDS = ("Avg generation throughput", "Decode batch", "Prefill batch")
_HEAD_WORDS = ("API server version", "non-default args", "server_args=", "LLM engine (v", "model=")


class _Windows:
    """Windows of one number of running requests."""

    def __init__(self) -> None:
        self.count = 0
        self.total = self.accepted = 0.0

    def add(self, tokens_per_s: float, accepted: float) -> None:
        """Add a window; with speculative decoding also the tokens that a step wrote of a request."""
        self.count += 1
        self.total += tokens_per_s
        self.accepted += accepted


def read_log(path: Path, findings: Findings) -> None:
    """Read the throughput lines of a log of vLLM or SGLang; windows that also computed prompts are told apart."""
    by_running: dict[tuple[int, bool, str], _Windows] = {}
    lines, is_sglang, has_prompts = 0, False, False
    for line in find_lines(path, (*_WINDOW_WORDS, *_HEAD_WORDS), findings):
        match = _VLLM.search(line)
        if match is not None:
            has_prompts = (to_number(match["prompt"]) or 0) > 0
        else:
            match = _SGLANG.search(line)
            is_sglang = is_sglang or match is not None
        if match is None:
            if _PREFILL.search(line):
                has_prompts = True
            else:
                _note_head(line, findings)
            continue
        lines += 1
        running, tokens_per_s = int(match["running"]), to_number(match["decode"])
        if running and tokens_per_s:
            accepted = _ACCEPTED.search(line)
            rank = match.groupdict().get("engine") or (rank_match[1] if (rank_match := _RANK.search(line)) else "")
            by_running.setdefault((running, has_prompts, rank), _Windows()).add(
                tokens_per_s, float(accepted[1]) if accepted else 0.0
            )
        if is_sglang:
            has_prompts = False
    findings.tool = "SGLang's server" if is_sglang else "vLLM's server"
    findings.record(engine="sglang" if is_sglang else "vllm")
    ranks = {rank for _, _, rank in by_running}
    for (running, with_prompts, rank), windows in sorted(by_running.items()):
        tokens_per_s = windows.total / windows.count
        findings.add(
            "decode",
            label=rank if len(ranks) > 1 else None,
            phase="decode and prompts" if with_prompts else "decode",
            running=running,
            samples=windows.count,
            output_tokens_per_s=tokens_per_s,
            tpot_s=running / tokens_per_s,
            acceptance_length=windows.accepted / windows.count or None,
        )
    findings.doubt(
        f"{format_plural(lines, 'window')}, averaged by the requests that ran at their ends: one in which requests "
        "came or went has another mean"
    )


def _note_head(line: str, findings: Findings) -> None:
    """Record the arguments that a server prints when it starts."""
    version = _VLLM_VERSION.search(line)
    if version is not None:
        findings.version = findings.version or (version[1] or version[2]).rstrip(".,")
    for name, value in _ARGUMENT.findall(line):
        if value not in ("None", "auto"):
            findings.record(**{_FACT_OF[name]: to_number(value) or value})


_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}]*\})? ([-+\d.eE]+|NaN|[+-]?Inf)(?: \d+)?$")
_LABEL = re.compile(r'model_name="([^"]*)"')

_HISTOGRAMS = {
    "ttft_s": ("time_to_first_token_seconds",),
    "tpot_reported_s": ("request_time_per_output_token_seconds", "time_per_output_token_seconds"),
    "itl_s": ("inter_token_latency_seconds",),
    "e2e_s": ("e2e_request_latency_seconds",),
    "input_tokens": ("request_prompt_tokens", "prompt_tokens_histogram"),
    "output_tokens": ("request_generation_tokens", "generation_tokens_histogram"),
}
"""Figures, and the histograms of vLLM and SGLang whose sum over count is their mean."""

_LLAMA_RATES = {"prompt": "prompt_tokens_seconds", "decode": "predicted_tokens_seconds"}


def read_metrics(path: Path, findings: Findings) -> None:
    """Read what vLLM, SGLang or llama-server show at `/metrics`: means since the server started."""
    totals: dict[str, float] = {}
    prefixes: set[str] = set()
    for name, labels, value in _samples(path):
        prefix, _, rest = name.partition(":")
        if prefix not in ("vllm", "sglang", "llamacpp"):
            continue
        prefixes.add(prefix)
        if "finished_reason" in labels or "source=" in labels or "reason=" in labels:
            rest = rest if rest == "request_success_total" else ""
        totals[rest] = totals.get(rest, 0.0) + value
        served = _LABEL.search(labels)
        if served is not None:
            findings.guess("the name under which the model is served", network=served[1])
    findings.tool = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama-server"}.get(min(prefixes, default=""), "")
    findings.tool += " /metrics"
    findings.record(engine={"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}.get(min(prefixes, default="")))
    if "llamacpp" in prefixes:
        for kind, key in _LLAMA_RATES.items():
            findings.add(kind, tokens_per_s=totals.get(key))
        return
    means: dict[str, Any] = {}
    for figure, names in _HISTOGRAMS.items():
        pairs = [(totals.get(f"{name}_sum"), totals.get(f"{name}_count")) for name in names]
        means[figure] = next((ratio(*pair) for pair in pairs if pair[1]), None)
    queries, hits = totals.get("prefix_cache_queries_total"), totals.get("prefix_cache_hits_total")
    requests = totals.get("request_success_total") or totals.get("num_requests_total")
    requests = requests or totals.get("e2e_request_latency_seconds_count")
    add_server(
        findings,
        requests=requests,
        running=totals.get("num_requests_running", totals.get("num_running_reqs")),
        waiting=totals.get("num_requests_waiting", totals.get("num_queue_reqs")),
        cache_used=totals.get("kv_cache_usage_perc", totals.get("token_usage")),
        cache_hits=ratio(hits, queries),
        output_tokens_per_s=totals.get("gen_throughput"),
        tokens_per_s=None,
        **means,
    )
    iterations = totals.get("iteration_tokens_total_count")
    if iterations:
        generated = totals.get("generation_tokens_total")
        findings.add("decode", samples=iterations, running=ratio(generated, iterations), tpot_s=means["itl_s"])
    findings.doubt("figures are averages since the server started; subtract two readings to get an interval")


def _samples(path: Path) -> Iterator[tuple[str, str, float]]:
    """Yield name, labels and value of the samples of Prometheus, without buckets of histograms."""
    for line in all_lines(path):
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None or match[1].endswith(("_bucket", "_created")):
            continue
        value = to_number(match[3])
        if value is not None:
            yield match[1], match[2] or "", value


_PROMETHEUS = ("vllm:", "sglang:", "llamacpp:")


FORMATS = (
    ResultFormat(
        "server-metrics", "/metrics", "what vLLM, SGLang and llama-server show at `/metrics`", read_metrics,
        sign=re.compile(r"^(vllm|sglang|llamacpp):\w+(\{[^}]*\})? [-+\d.eE]+", re.MULTILINE), markers=_PROMETHEUS,
    ),
    ResultFormat(
        "server-log", "a server's log", "the log lines of vLLM and SGLang", read_log,
        sign=re.compile(f"{_VLLM.pattern}|Decode batch[.,\\]].*#running-req: \\d+"),
        markers=("Avg generation throughput", "Decode batch"),
    ),
)  # fmt: skip
