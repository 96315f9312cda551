"""Sweeps over servers: every combination of network, device, parallelism and load, each simulated by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from ..architectures import find_network, is_network_file
from ..engines.routing import parse_expert_load
from ..errors import BadValue, PaleoError
from ..formats import FORMATS
from ..machines import find_device
from ..machines.device import check_clock
from ..serving.engines import find_engine
from ..serving.requests import parse_lengths
from ..version import __version__
from .axes import AxisSpace
from .columns import BOUND, FORECAST, Columns, make_columns
from .space import check_names, check_precisions

if TYPE_CHECKING:
    from ..serving.answers import Serving

Serve = Callable[..., "Serving"]
"""Function that simulates a server, with the parameters of `paleo_lite.serve`."""

_SERVER = (
    "networks",
    "gpus",
    "power_limits_w",
    "clocks",
    "precisions",
    "weights",
    "tensor",
    "expert_parallel",
    "attention_data_parallel",
    "pipeline",
    "replicas",
)
"""Axes of servers, in the order of `ServingChunk`."""

_DIMENSIONS = (*_SERVER, "rates", "concurrencies")

STRING_COLUMNS = (
    "network",
    "gpu",
    "clock",
    "precision",
    "weights",
    "kv_cache",
    "engine",
    "answer",
    "version",
    "reason",
)
"""Columns of strings of a sweep over servers."""

INTEGER_COLUMNS = (
    "tensor",
    "expert_parallel",
    "attention_data_parallel",
    "pipeline",
    "replicas",
    "devices",
    "concurrency",
)
"""Columns of integers."""

FIGURE_COLUMNS = (
    "output_tokens_per_s",
    "output_tokens_per_s_per_gpu",
    "output_tokens_per_s_per_user",
    "requests_per_s",
    "saturation_requests_per_s",
    "cache_occupancy",
    "utilisation",
    "usd_per_million_output_tokens",
    "joules_per_million_output_tokens",
)
"""Columns with the figures of `serving.answers.FIGURES` of the same names."""

LATENCY_COLUMNS = {
    "ttft_p50_s": ("ttft_s", "p50"),
    "ttft_p99_s": ("ttft_s", "p99"),
    "tpot_p50_s": ("tpot_s", "p50"),
    "tpot_p99_s": ("tpot_s", "p99"),
    "latency_p50_s": ("latency_s", "p50"),
    "latency_p99_s": ("latency_s", "p99"),
}
"""Columns with latencies, and their latency and percentile in `serving.answers.LATENCIES`."""

WITH_INTERVALS = ("ttft_p50_s", "tpot_p50_s", "latency_p50_s", "output_tokens_per_s", "saturation_requests_per_s")
"""Columns that are accompanied by the ends of their 90% intervals, ``NAME_low`` and ``NAME_high``."""


def number_columns() -> list[str]:
    """Return the names of all columns of numbers that are not integers, in their order."""
    names = ["power_limit_w", "rate_per_s"]
    for name in (*LATENCY_COLUMNS, *FIGURE_COLUMNS):
        names.append(name)
        if name in WITH_INTERVALS:
            names += [f"{name}_low", f"{name}_high"]
    return names


class ServingChunk(NamedTuple):
    """One server with all loads."""

    number: int
    network: str
    gpu: str
    power_limit_w: float | None
    clock: str | None
    precision: str
    weights: str
    tensor: int
    expert_parallel: int
    attention_data_parallel: int
    pipeline: int
    replicas: int


class ServingSpace(AxisSpace, msgspec.Struct, frozen=True):
    """All combinations of these servers and loads."""

    kind: ClassVar[str] = "serving"
    dimensions: ClassVar[tuple[str, ...]] = _DIMENSIONS
    inner: ClassVar[tuple[str, ...]] = ("rates", "concurrencies")
    titles: ClassVar[dict[str, str]] = {
        "weights": "formats of weights",
        "tensor": "tensor degrees",
        "expert_parallel": "expert-parallel degrees",
        "attention_data_parallel": "attention-data-parallel degrees",
        "pipeline": "pipeline degrees",
        "replicas": "numbers of replicas",
        "concurrencies": "numbers of users",
    }
    rows_per_s: ClassVar[float] = 2.0

    # Names of the registries.
    networks: tuple[str, ...]
    gpus: tuple[str, ...]
    # Power limits in watts and clocks of every device; None for those of its data file.
    power_limits_w: tuple[float | None, ...] = (None,)
    clocks: tuple[str | None, ...] = (None,)
    precisions: tuple[str, ...] = ("bf16",)
    weights: tuple[str, ...] = ("",)  # formats of the weights; empty for the precision
    tensor: tuple[int, ...] = (1,)  # devices of a stage
    # Groups of the devices of a stage that divide the experts, and that compute attention for sequences of their own.
    expert_parallel: tuple[int, ...] = (1,)
    attention_data_parallel: tuple[int, ...] = (1,)
    expert_load: str = "uniform"  # distribution of tokens over experts
    pipeline: tuple[int, ...] = (1,)  # stages of a replica
    replicas: tuple[int, ...] = (1,)
    rates: tuple[float | None, ...] = (None,)  # requests per second of all replicas; None for closed loops
    # Users of closed loops; None for rates. One of the two has the single value None.
    concurrencies: tuple[int | None, ...] = (None,)
    # Lengths of prompts and answers, as `serving.requests.parse_lengths` reads them.
    input_tokens: str = "1024"
    output_tokens: str = "256"
    kv_cache: str | None = None  # format of the KV cache
    policy: str = "vllm"  # engine
    num_requests: int | None = None  # simulated requests of each row
    seed: int = 0  # seed of arrivals and lengths
    link: str | None = None  # link between the devices of a replica; by default the fastest of each device
    price_usd_per_h: float | None = None  # price of one device; None uses the price on record
    price_of: str | None = None  # cloud whose prices are used, as for `machines.prices.choose_price`
    hardware_files: tuple[str, ...] = ()  # files with further devices

    def check(self) -> None:
        """Raise an error if no combination can be simulated.

        Raises
        ------
        BadValue
            If an axis is empty or has a duplicate, if rates and users are mixed, or if a value is impossible.
        UnknownName
            If a precision, a format or the engine is unknown.
        """
        check_precisions(self.precisions)
        check_names("format of weights", [name for name in self.weights if name], FORMATS)
        if self.kv_cache is not None:
            check_names("format of the KV cache", (self.kv_cache,), FORMATS)
        self.check_axes()
        if (self.rates == (None,)) == (self.concurrencies == (None,)):
            raise BadValue("a sweep over servers needs exactly one of `--rate` and `--concurrency`")
        for clock in self.clocks:
            check_clock(clock)
        for rate in self.rates:
            if rate is not None and not rate > 0:
                raise BadValue(f"`--rate` must be above 0 requests per second (got {rate:g})")
        parse_expert_load(self.expert_load)
        parse_lengths(self.input_tokens, "--input-tokens", is_input=True)
        parse_lengths(self.output_tokens, "--output-tokens", is_input=False)
        files = [Path(file) for file in self.hardware_files]
        find_engine(self.policy, find_device(self.gpus[0], files))

    def resolve_names(self) -> ServingSpace:
        """Return the space with the registries' names of networks and devices.

        Raises
        ------
        UnknownName
            If a network or device is unknown.
        BadValue
            If a network is not a language model.
        """
        networks = []
        for name in self.networks:
            network = find_network(name)
            if not network.is_language_model:
                raise BadValue(f"a sweep with `--rate` or `--concurrency` needs language models (got {name})")
            networks.append(name if is_network_file(name) else network.name)
        files = [Path(file) for file in self.hardware_files]
        gpus = tuple(find_device(name, files).id for name in self.gpus)
        return msgspec.structs.replace(self, networks=tuple(networks), gpus=gpus)

    @property
    def metadata(self) -> dict[str, Any]:
        """Properties of the sweep that its file states."""
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens, "seed": self.seed}

    @property
    def samples(self) -> None:
        """Number of samples that costs refer to: none, as they refer to tokens."""
        return None

    @property
    def loads(self) -> list[tuple[float | None, int | None]]:
        """Rates and numbers of users; one of each pair is None."""
        return list(product(self.rates, self.concurrencies))

    def chunks(self) -> Iterator[ServingChunk]:
        """Iterate over all servers in their order."""
        servers = product(*(getattr(self, name) for name in _SERVER))
        for number, server in enumerate(servers):
            yield ServingChunk(number, *server)


def compute_serving_chunk(space: ServingSpace, chunk: ServingChunk, serve: Serve) -> Columns:
    """Simulate one server under all loads; a load that cannot be simulated becomes a row with the reason."""
    rows = [_serve_row(space, chunk, serve, rate, concurrency) for rate, concurrency in space.loads]
    return make_columns(rows, STRING_COLUMNS, INTEGER_COLUMNS, number_columns())


def _serve_row(
    space: ServingSpace, chunk: ServingChunk, serve: Serve, rate: float | None, concurrency: int | None
) -> dict[str, Any]:
    """Return the values of a row by column; missing ones are absent."""
    row: dict[str, Any] = {
        "network": chunk.network,
        "gpu": chunk.gpu,
        "power_limit_w": chunk.power_limit_w,
        "clock": chunk.clock,
        "precision": chunk.precision,
        "weights": chunk.weights or chunk.precision,
        "engine": space.policy,
        "version": __version__,
        "tensor": chunk.tensor,
        "expert_parallel": chunk.expert_parallel,
        "attention_data_parallel": chunk.attention_data_parallel,
        "pipeline": chunk.pipeline,
        "replicas": chunk.replicas,
        "devices": chunk.tensor * chunk.pipeline * chunk.replicas,
        "concurrency": concurrency,
        "rate_per_s": rate,
    }
    try:
        answer = serve(
            chunk.network,
            gpu=chunk.gpu,
            power_limit=chunk.power_limit_w,
            clock=chunk.clock,
            precision=chunk.precision,
            weights=chunk.weights or None,
            tensor=chunk.tensor,
            expert_parallel=chunk.expert_parallel,
            attention_data_parallel=chunk.attention_data_parallel,
            expert_load=space.expert_load,
            pipeline=chunk.pipeline,
            replicas=chunk.replicas,
            link=space.link,
            kv_cache=space.kv_cache,
            input_tokens=space.input_tokens,
            output_tokens=space.output_tokens,
            rate=rate,
            concurrency=concurrency,
            policy=space.policy,
            num_requests=space.num_requests,
            seed=space.seed,
            price=space.price_usd_per_h,
            price_of=space.price_of,
            hardware_files=space.hardware_files,
        )
    except PaleoError as error:
        row["reason"] = str(error)
        return row
    row["kv_cache"] = answer.kv_cache
    row["answer"] = FORECAST if answer.is_forecast else BOUND
    figures = {name: answer.figures[name] for name in FIGURE_COLUMNS}
    for name, (latency, statistic) in LATENCY_COLUMNS.items():
        figures[name] = answer.latencies[latency][statistic]
    for name, figure in figures.items():
        row[name] = figure.value
        if name in WITH_INTERVALS:
            row[f"{name}_low"] = figure.low
            row[f"{name}_high"] = figure.high
    return row
