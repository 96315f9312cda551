"""Fit of generations of which servers were measured, but no kernels: AMD's CDNA 3, from vLLM on eight MI300X.

The kernels of such a device are predicted from those of all measured generations, and two factors of the steps of its
servers correct them: one of the shortest kernels, one of all other time. `accelerators/measured.csv.gz` has AMD's
tables of Llama 3.1 70B in fp8 (ROCm/vllm, docs/dev-docker/README.md, seven releases of 2025): latencies of batches of
1 to 128, and throughput of up to 3,200 requests at once. `python -m validation compare amd` prints the forecasts.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

import paleo_lite as pl
from paleo_lite.engines.constants import Company, EngineConstants
from paleo_lite.reporting.document import Column, Document
from paleo_lite.serving.answers import Serving

from ..comparisons import ComparedStep, require_data, steps_page
from ..tables import rows_of

TABLE = "accelerators/measured.csv.gz"
SOURCE = "ROCm vllm dev-docker README"
NETWORK, DEVICE, DEVICES, ENGINE = "llama-3.1-70b", "mi300x", 8, "vllm-0.13"

BATCHES = (1, 8, 32, 128)
"""Sizes of the batches whose latencies are used."""

LAUNCH, WORK = -0.56, -0.02
"""Logarithms of the factors of the shortest kernel and of all other time.

Least squares over the table give -0.56 and -0.11, and are 5.8% off in the root mean square; vLLM 0.10 and 0.11 take 8
to 20% longer, so that the shipped work is half of that above.
"""

GENERATIONS = {"CDNA3 gfx942": 0.2, "CDNA4 gfx950": 0.3}
"""Generations with the factors of CDNA 3, and the deviation of a step. Llama 3.1 405B, to which no factor was fitted,
is forecast 10 to 35% too fast. Of CDNA 4 no step was at hand."""


class MeasuredServing(NamedTuple):
    """What a table says: seconds of a batch, or requests at once and their rate."""

    input_tokens: int
    output_tokens: int
    requests: int
    value: float  # seconds of the batch, or output tokens per second and device
    is_latency: bool


def measured_servers(data: Path) -> list[MeasuredServing]:
    """Return the geometric means over releases of AMD's tables."""
    values: dict[tuple[int, int, int, bool], list[float]] = {}
    for row in rows_of(data / TABLE):
        if row["source"] != SOURCE or row["complete"] != "1":
            continue
        is_latency = row["unit"].startswith("latency_s")
        requests = int(row["batch"] if is_latency else row["concurrency"].split()[0])
        if is_latency and requests not in BATCHES:
            continue
        inputs, outputs = (int(tokens) for tokens in row["seq_or_in_out"].split("/"))
        values.setdefault((inputs, outputs, requests, is_latency), []).append(float(row["value"]))
    return [
        MeasuredServing(*key[:3], float(np.exp(np.mean(np.log(times_s)))), key[3]) for key, times_s in values.items()
    ]


def with_served(constants: EngineConstants) -> EngineConstants:
    """Return the constants with the factors of kernels on generations without kernel tables."""
    others = tuple(entry for entry in constants.company if entry.generation not in GENERATIONS)
    entries = tuple(
        Company("", "", "", generation, is_prompt, LAUNCH, 0.0 if is_prompt else WORK)
        for generation in GENERATIONS
        for is_prompt in (False, True)
    )
    return msgspec.structs.replace(constants, company=(*others, *entries), served=dict(GENERATIONS))


def forecast(measured: MeasuredServing) -> ComparedStep:
    """Return a measurement and its forecast in seconds: of the batch, or of a token of a device."""
    served = pl.serve(
        NETWORK, gpu=DEVICE, tensor=DEVICES, precision="fp8", engine=ENGINE, rate="inf",
        num_requests=min(measured.requests, 1000), input_tokens=measured.input_tokens,
        output_tokens=measured.output_tokens, max_sequences=None if measured.is_latency else measured.requests,
        kv_cache=None if measured.is_latency else "fp8",
    )  # fmt: skip
    assert isinstance(served, Serving)
    if measured.is_latency:
        latency = served.latencies["latency_s"]["mean"]
        assert latency.value is not None and latency.low is not None and latency.high is not None
        measured_s, time_s, low_s, high_s = measured.value, latency.value, latency.low, latency.high
    else:
        rate = served.figures["output_tokens_per_s_per_gpu"]
        assert rate.value is not None and rate.low is not None and rate.high is not None
        measured_s, time_s, low_s, high_s = 1 / measured.value, 1 / rate.value, 1 / rate.high, 1 / rate.low
    return ComparedStep(
        network=NETWORK, workers=DEVICES, measured_s=measured_s, time_s=time_s, low_s=low_s, high_s=high_s
    )


def compare_page(data: Path | None) -> Document:
    """Return the page of the latencies and rates."""
    measured = measured_servers(require_data(data))
    steps = [forecast(server) for server in measured]
    columns = [
        Column("of", "of", left=True), Column("requests", "requests"),
        Column("input_tokens", "input\ntokens"), Column("output_tokens", "output\ntokens"),
    ]  # fmt: skip
    rows = [
        {
            "of": "batch" if server.is_latency else "token of a device",
            "requests": server.requests,
            "input_tokens": server.input_tokens,
            "output_tokens": server.output_tokens,
            "measured_s": step.measured_s,
            "time_s": step.time_s,
        }
        for server, step in zip(measured, steps, strict=True)
    ]
    return steps_page("Llama 3.1 70B in fp8 under vLLM on eight MI300X", columns, rows, steps)
