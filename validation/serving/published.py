"""Published serving results: `published.csv`, with the address of every figure.

``sharegpt_320.csv`` and ``sharegpt_200.csv`` are numbers of tokens, without any text, of requests that vLLM's benchmark
drew from ShareGPT_V3_unfiltered_cleaned_split.json (huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered,
whose card states Apache-2.0): ``input_lens`` and ``output_lens`` of the result files that the benchmarks saved, with
empty answers as one token and all arrivals at 0.

- ``sharegpt_320.csv``: 320 requests of Lambda (LambdaLabsML/vllm-benchmark on GitHub). The prompts are those of
  its runs of Mistral 7B with 320 prompts (results/prompt_320). The answers, of 71,810 tokens, are those of one run,
  which is not on record; those of three other runs have 71,276, 71,372 and 72,094 tokens.
- ``sharegpt_200.csv``: 200 requests of llm-k8s (surajssd/llm-k8s on GitHub, commit 58b61c5,
  results_serving_meta-llama-Llama-3.3-70B-Instruct/03_tp4_pp2_IB, request rate inf).

No licence was found in either repository; only the numbers of tokens, which are measured facts, are copied.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..tables import rows_of

FILE = Path(__file__).parent / "published.csv"


class PublishedServing(msgspec.Struct, frozen=True):
    """A published result."""

    # Where it is published.
    source: str
    url: str
    # The deployment, in the names of paleo-lite: devices of a stage and stages are its tensor and pipeline degrees.
    network: str
    gpu: str
    tensor: int
    pipeline: int
    precision: str
    weights: str
    kv_cache: str
    engine: str
    # Lengths; of data sets the published means.
    input_tokens: int
    output_tokens: int
    # File with the lengths of requests, instead of `input_tokens` and `output_tokens`; those are its means.
    lengths: str
    rate: str  # requests per second, or ``inf``; empty for a closed loop
    concurrency: int | None  # users of a closed loop
    requests: int  # number of requests of the benchmark, or enough for a steady state where it is not published
    options: str  # published settings of the engine that differ from its defaults, such as ``memory_fraction=0.95``
    # Output tokens per second of all devices, time to first token and time per output token.
    tokens_per_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    statistic: str  # statistic of both times


def published_points(path: Path = FILE) -> list[PublishedServing]:
    """Return all published results."""
    points = []
    for row in rows_of(path):
        values = {name: value if value or name in ("lengths", "rate", "options", "statistic") else None
                  for name, value in row.items()}  # fmt: skip
        points.append(msgspec.convert(values, PublishedServing, strict=False))
    return points
