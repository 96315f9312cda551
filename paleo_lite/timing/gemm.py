"""Times of single matrix products: bound, tiling, and the gain of combining several products in one launch.

To a time model a product is a linear layer, and several products in one launch are a batched matrix product, so that it
gives the same time for a product as for a layer. The products of inference engines have formulas and constants of their
own (`paleo_lite.engines.products`).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import msgspec

from ..architectures import Network
from ..counting import INPUT, Layer
from ..errors import BadValue
from ..machines import Device, Machine
from ..result import Result, TableOfAnswers
from ..units import check_integer
from .calibrated import POWER
from .features import WORK_COLUMNS, WORK_ROWS
from .models import TimeModel
from .workload import Workload

LAUNCH_INTERVAL_S = 3.8e-6
"""Seconds per launch of consecutive kernels without synchronization: Gray 2019, "Getting Started with CUDA Graphs"
(NVIDIA), V100."""

MAX_LAUNCHES = 1_000_000
_MAX_FLOPS = 2**62


def compute_tiling(m: int, n: int, multiprocessors: int, tile: tuple[int, int], groups: int = 1) -> Tiling:
    """Divide the output of `groups` products into tiles, and distribute the tiles over the multiprocessors."""
    rows, columns = tile
    tiles = -(-m // rows) * -(-n // columns) * groups
    waves = -(-tiles // multiprocessors)
    return Tiling(
        rows=rows,
        columns=columns,
        tiles=tiles,
        multiprocessors=multiprocessors,
        waves=waves,
        last_wave_tiles=tiles - (waves - 1) * multiprocessors,
        wave_efficiency=tiles / (waves * multiprocessors),
        tile_efficiency=groups * m * n / (tiles * rows * columns),
    )


class ProductTimer(Protocol):
    """Protocol of what times launches of matrix products."""

    @property
    def machine(self) -> Machine | None: ...  # None if only a peak is known

    @property
    def model(self) -> str: ...  # name of the time model

    @property
    def label(self) -> str: ...  # origin of its parameters; empty without parameters

    @property
    def peak_per_s(self) -> float: ...  # in FLOP/s

    @property
    def peak_description(self) -> str: ...

    def moved_bytes(self, m: int, n: int, k: int, groups: int) -> int:
        """Return the bytes that one launch moves at least."""
        ...

    def time_s(self, m: int, n: int, k: int, groups: int, launches: int) -> tuple[float, tuple[float, float] | None]:
        """Return the seconds of consecutive launches, and their 90% interval if there is one."""
        ...

    def notes(self, products: int) -> list[str]:
        """Return notes on the times of so many products."""
        ...


class PeakTimer:
    """Times at a peak rate in FLOP/s, without a device.

    The precision is that of the operands. Raise BadValue if the peak is not a rate > 0.
    """

    machine = None
    model = "peak"
    label = ""
    peak_description = "given"

    def __init__(self, peak_per_s: float, precision: str) -> None:
        if not (0 < peak_per_s < math.inf):
            raise BadValue(f"the peak must be above 0 (got {peak_per_s:g} FLOP/s)")
        self.peak_per_s, self.precision = peak_per_s, precision

    def moved_bytes(self, m: int, n: int, k: int, groups: int) -> int:
        """Return the bytes of both operands and of the result."""
        return _total(_workload(m, n, k, groups, self.precision), "bytes")

    def time_s(self, m: int, n: int, k: int, groups: int, launches: int) -> tuple[float, None]:
        """Return the seconds at the peak; there is no interval."""
        return launches * 2 * m * n * k * groups / self.peak_per_s, None

    def notes(self, products: int) -> list[str]:
        """Return what a peak leaves out."""
        return ["a peak alone does not determine memory, tiles and launches: all variants take the time at peak"]


class ModelTimer:
    """Times by a time model, as layers of a network.

    Of a calibrated model the constant time per step is left out, because a single product has no step around it. The
    precision is that of the operands.
    """

    def __init__(self, model: TimeModel, machine: Machine, precision: str) -> None:
        self._model, self.machine, self.precision = model, machine, precision
        self.model, self.label = model.name, model.label
        rate = model.peak(machine, precision)
        self.peak_per_s, self.peak_description = rate.per_s, rate.describe()

    def moved_bytes(self, m: int, n: int, k: int, groups: int) -> int:
        """Return the bytes of both operands and of the result."""
        return _total(_workload(m, n, k, groups, self.precision), "bytes")

    def time_s(self, m: int, n: int, k: int, groups: int, launches: int) -> tuple[float, tuple[float, float] | None]:
        """Return the seconds of consecutive launches by a library, and their interval.

        The overheads of a framework's step and operators are left out: launches of a library follow one another every
        `LAUNCH_INTERVAL_S`. Models without launch overheads have no launch time.
        """
        workload = _workload(m, n, k, groups, self.precision)
        work = workload.work
        all_launches = msgspec.structs.replace(work, fixed=launches * work.fixed, per_sample=launches * work.per_sample)
        terms = self._model.evaluate(workload.with_work(all_launches), self.machine)
        device_s = float(terms.layers_s.sum()) / terms.host_slowdown
        launching_s = launches * LAUNCH_INTERVAL_S if terms.floor_s is not None else 0.0
        time_s = float((device_s**POWER + launching_s**POWER) ** (1 / POWER))
        interval = terms.interval()
        if interval is None:
            return time_s, None
        low_s, high_s = interval
        return time_s, (time_s * low_s / terms.time_s, time_s * high_s / terms.time_s)

    def notes(self, products: int) -> list[str]:
        """Return the notes of the model, and what it leaves out."""
        notes = list(self._model.notes)
        if not self.label and products > 1:
            notes.append(f"the {self.model} model has no launch overhead: combining products saves only memory traffic")
        elif self.label:
            notes.append("calibrated on whole networks: single products scatter more than the interval (docs/gemm.md)")
        return notes


def time_gemms(
    m: int,
    n: int,
    k: int,
    precision: str,
    timer: ProductTimer,
    *,
    products: int = 1,
    into: int = 1,  # number of products in the stacked variant: one per right operand
    # Rows and columns of the tile for the number of waves. The calibrated model always uses 64 x 64.
    tile: tuple[int, ...] = (WORK_ROWS, WORK_COLUMNS),
) -> GemmTimes:
    """Time `products` products of ``m x k`` by ``k x n``: separately, stacked, and batched.

    Raise BadValue if sizes are below 1 or too large, or `into` does not divide `products`.
    """
    if len(tile) != 2:
        raise BadValue(f"the tile must be rows x columns, such as 128x64 (got {'x'.join(map(str, tile))!r})")
    for name, size in (("M", m), ("N", n), ("K", k), ("count", products), ("into", into), ("tile", min(tile))):
        check_integer(name, size, 1)
    if 2 * m * n * k * products >= _MAX_FLOPS or products > MAX_LAUNCHES:
        raise BadValue(f"{products} products of {m} x {n} x {k} are too many to count")
    if products % into:
        raise BadValue(f"{products} products cannot be stacked into {into}: {into} does not divide {products}")
    shapes = [("separate", products, 1, m)]
    if products > 1:
        if into < products:
            shapes.append(("stacked", into, 1, products // into * m))
        shapes.append(("batched", 1, products, m))
    device = None if timer.machine is None else timer.machine.device
    variants = []
    for name, launches, groups, rows in shapes:
        time_s, interval = timer.time_s(rows, n, k, groups, launches)
        tiling = None
        if device is not None:
            tiling = compute_tiling(rows, n, int(device.cores.multiprocessors.value), tile, groups)
        variants.append(
            GemmVariant(
                name=name,
                launches=launches,
                groups=groups,
                m=rows,
                n=n,
                k=k,
                flops=launches * 2 * rows * n * k * groups,
                bytes=launches * timer.moved_bytes(rows, n, k, groups),
                tiling=tiling,
                time_s=time_s,
                interval=interval,
            )
        )
    return GemmTimes(
        m=m,
        n=n,
        k=k,
        products=products,
        precision=precision,
        device=device,
        model=timer.model,
        label=timer.label,
        peak_per_s=timer.peak_per_s,
        peak_description=timer.peak_description,
        bandwidth_bytes_per_s=None if device is None else device.bandwidth_bytes_per_s,
        variants=tuple(variants),
        notes=tuple(timer.notes(products)),
    )


def _workload(m: int, n: int, k: int, groups: int, precision: str) -> Workload:
    """Return a launch of products as a network of one layer."""
    if groups == 1:
        layer = Layer("gemm", "linear", ((m, k),), ((m, n),), ((n, k),), (INPUT,), n * k)
    else:
        layer = Layer("gemm", "matmul", ((groups, m, k), (groups, k, n)), ((groups, m, n),), (), (INPUT, INPUT))
    return Workload(Network("gemm", (), (layer,), 0), precision)


def _total(workload: Workload, column: str) -> int:
    return int(workload.work.column(column, "inference", 1).sum())


class Tiling(msgspec.Struct, frozen=True):
    """Division of a product's output into tiles."""

    rows: int  # of an output tile, which one multiprocessor computes at a time
    columns: int  # of an output tile
    tiles: int  # of one launch
    multiprocessors: int
    waves: int  # number of rounds in which every multiprocessor computes at most one tile
    last_wave_tiles: int
    wave_efficiency: float  # tiles over multiprocessors times waves
    tile_efficiency: float  # fraction of the tiles' area that is output; the rest is padding at the edges


class GemmVariant(msgspec.Struct, frozen=True):
    """One variant of computing all products."""

    # `separate`: one launch per product. `stacked`: products with the same right operand are one product with more
    # rows. `batched`: all products in one launch, each with its own operands.
    name: str
    launches: int
    groups: int  # products per launch
    m: int  # sizes of each product, with `n` and `k`
    n: int
    k: int
    flops: int  # of all launches
    bytes: int  # of all launches
    tiling: Tiling | None  # of one launch; None without a device
    time_s: float  # of all launches, one after the other
    interval: tuple[float, float] | None = None  # 90% interval in seconds; None for models without intervals


class GemmTimes(Result, msgspec.Struct, frozen=True):
    """Times of one or several products.

    Attributes
    ----------
    m, n, k, products : int
        ``products`` times ``m x k`` by ``k x n``.
    device : Device or None
        None if only a peak was given.
    model, label : str
        Name of the time model, and the origin of its parameters (empty without parameters).
    peak_per_s : float
        Peak rate in FLOP/s.
    peak_description : str
        Description of the peak.
    variants : tuple of GemmVariant
        ``separate`` first.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.gemm:gemm_page"

    m: int
    n: int
    k: int
    products: int
    precision: str
    device: Device | None
    model: str
    label: str
    peak_per_s: float
    peak_description: str
    bandwidth_bytes_per_s: float | None
    variants: tuple[GemmVariant, ...]
    notes: tuple[str, ...] = ()

    @property
    def time_s(self) -> float:
        """Seconds of all products, one by one."""
        return self.variants[0].time_s

    @property
    def interval(self) -> tuple[float, float] | None:
        """90% interval of `time_s`; None for models without intervals."""
        return self.variants[0].interval

    @property
    def flops(self) -> int:
        """FLOPs of one product: 2 m n k."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Bytes of one product: both operands read once, the output written once."""
        return self.variants[0].bytes // self.products

    @property
    def peak_time_s(self) -> float:
        """Seconds of one product at peak, its lower bound."""
        return self.flops / self.peak_per_s

    @property
    def intensity(self) -> float:
        """FLOPs per byte of one product."""
        return self.flops / self.bytes

    @property
    def ridge_point(self) -> float | None:
        """Intensity at which products become compute bound, in FLOPs per byte; None without a device."""
        if self.bandwidth_bytes_per_s is None:
            return None
        return self.peak_per_s / self.bandwidth_bytes_per_s

    def rows(self) -> list[dict[str, Any]]:
        """Return the variants as rows, in SI units."""
        rows = []
        for variant in self.variants:
            tiling = variant.tiling
            rows.append(
                {
                    "launches": variant.launches,
                    "groups": variant.groups,
                    "m": variant.m,
                    "n": variant.n,
                    "k": variant.k,
                    "flops": variant.flops,
                    "bytes": variant.bytes,
                    "way": variant.name,
                    "tiles": None if tiling is None else tiling.tiles,
                    "waves": None if tiling is None else tiling.waves,
                    "last_wave_tiles": None if tiling is None else tiling.last_wave_tiles,
                    "filled": None if tiling is None else tiling.wave_efficiency,
                    "covered": None if tiling is None else tiling.tile_efficiency,
                    "time_s": variant.time_s,
                    "interval": None if variant.interval is None else list(variant.interval),
                    "share_of_peak": variant.flops / variant.time_s / self.peak_per_s,
                    "gain": self.variants[0].time_s / variant.time_s,
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the output of ``--format json``."""
        tiling = self.variants[0].tiling
        return {
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "count": self.products,
            "gpu": None if self.device is None else self.device.id,
            "precision": self.precision,
            "time_model": self.model,
            "calibration": self.label or None,
            "flops": self.flops,
            "bytes": self.bytes,
            "intensity": self.intensity,
            "ridge_point": self.ridge_point,
            "peak_flops": self.peak_per_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "peak_time_s": self.peak_time_s,
            "tile": None if tiling is None else [tiling.rows, tiling.columns],
            "multiprocessors": None if tiling is None else tiling.multiprocessors,
            "ways": self.rows(),
            "notes": list(self.notes),
        }


class GemmTable(TableOfAnswers, msgspec.Struct, frozen=True):
    """Times of matrix products of several sizes.

    Attributes
    ----------
    products : tuple of GemmTimes
        One answer per size, in the order of the question.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.gemm:gemm_table_page"
    answers_in: ClassVar[str] = "products"

    products: tuple[GemmTimes, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return the ways of all sizes as rows, in SI units, each with the sizes of its product."""
        sizes = ((times, {"m": times.m, "n": times.n, "k": times.k}) for times in self.products)
        return [{**row, **size, "peak_time_s": times.peak_time_s} for times, size in sizes for row in times.rows()]

    def to_dict(self) -> dict[str, Any]:
        """Return the output of ``--format json``."""
        return {"products": [times.to_dict() for times in self.products]}
