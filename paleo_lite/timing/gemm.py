"""Matrix products on their own: the bound, how they fill a device, and what putting several into one gains.

A product is a linear layer, and several in one launch a batched matrix product, so that both time models say the same
of a product as of the layer that contains it.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import msgspec

from ..architectures import Network
from ..counting import INPUT, Layer
from ..errors import BadValue
from ..machines import Device, Machine
from ..result import Result
from .calibrated import POWER
from .features import WORK_COLUMNS, WORK_ROWS
from .models import TimeModel
from .workload import Workload

LAUNCH_INTERVAL_S = 3.8e-6
"""Of a kernel behind another, nothing waited for: Gray 2019, "Getting Started with CUDA Graphs" (NVIDIA), V100."""

LAUNCHES_AT_MOST = 1_000_000
_FLOPS_AT_MOST = 2**62


def tiling_of(
    m: int, n: int, multiprocessors: int, tile: tuple[int, int] = (WORK_ROWS, WORK_COLUMNS), groups: int = 1
) -> Tiling:
    """Share the output of `groups` products out in tiles, and the tiles over the multiprocessors."""
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


def time_gemms(
    m: int,
    n: int,
    k: int,
    precision: str,
    model: TimeModel,
    *,
    machine: Machine | None = None,
    peak_per_s: float | None = None,
    products: int = 1,
    into: int = 1,
    tile: tuple[int, ...] = (WORK_ROWS, WORK_COLUMNS),
) -> GemmTimes:
    """Time `products` products of ``m x k`` by ``k x n``: one by one, stacked, and batched.

    Parameters
    ----------
    model : TimeModel
        A calibrated one is used by its own formula (`timing.calibrated`); its constant per step is left out, since no
        framework's step goes around a single product.
    machine : Machine, optional
        Without it a peak is needed, and the answer is the bound alone.
    peak_per_s : float, optional
        A peak in FLOP/s in place of a machine.
    into : int
        How many products the stacked way makes of them: as many as there are right operands.
    tile : tuple of int
        Rows and columns of the tile that waves are counted by. The calibrated model goes by 64 x 64 in any case.

    Raises
    ------
    BadValue
        If sizes are below 1 or too large, `into` does not divide `products`, or device and peak are both given or both
        missing.
    """
    if len(tile) != 2:
        raise BadValue(f"a tile has rows and columns, such as 128x64: not {'x'.join(map(str, tile))!r}")
    for name, size in (("M", m), ("N", n), ("K", k), ("count", products), ("into", into), ("tile", min(tile))):
        if size < 1:
            raise BadValue(f"{name} must be a whole number of 1 or more, not {size}")
    if 2 * m * n * k * products >= _FLOPS_AT_MOST or products > LAUNCHES_AT_MOST:
        raise BadValue(f"{products} products of {m} x {n} x {k} are more than can be counted here")
    if products % into:
        raise BadValue(f"{products} products cannot be stacked into {into}: {into} does not divide {products}")
    if (machine is None) == (peak_per_s is None):
        raise BadValue("give a device, or a bare peak such as '6000 GFLOP/s': one of the two")
    if peak_per_s is not None and not (0 < peak_per_s < math.inf):
        raise BadValue(f"a peak must be above 0, not {peak_per_s:g} FLOP/s")
    peak = None if machine is None else model.peak(machine, precision)
    device = None if machine is None else machine.device
    per_s, words = (peak.per_s, peak.describe()) if peak is not None else (peak_per_s or 0.0, "given")
    shapes = [("separate", products, 1, m)]
    if products > 1:
        if into < products:
            shapes.append(("stacked", into, 1, products // into * m))
        shapes.append(("batched", 1, products, m))
    ways = []
    for name, launches, groups, rows in shapes:
        workload = Workload(Network("gemm", (), (_layer(rows, n, k, groups),), 0), precision)
        work = workload.work
        flops, moved = (int(work.column(column, "inference", 1).sum()) for column in ("flops", "bytes"))
        if machine is None:
            seconds, interval, tiling = launches * flops / per_s, None, None
        else:
            tiling = tiling_of(rows, n, int(machine.device.cores.multiprocessors.value), tile, groups)
            seconds, interval = _time(workload, launches, model, machine)
        ways.append(
            GemmVariant(
                name, launches, groups, rows, n, k, launches * flops, launches * moved, tiling, seconds, interval
            )
        )
    return GemmTimes(
        m, n, k, products, precision, device, model, per_s, words,
        None if device is None else device.bandwidth_bytes_per_s, tuple(ways), _notes(device, model, products),
    )  # fmt: skip


def _layer(m: int, n: int, k: int, groups: int) -> Layer:
    if groups == 1:
        return Layer("gemm", "linear", ((m, k),), ((m, n),), ((n, k),), (INPUT,), n * k)
    return Layer("gemm", "matmul", ((groups, m, k), (groups, k, n)), ((groups, m, n),), (), (INPUT, INPUT))


def _time(
    workload: Workload, launches: int, model: TimeModel, machine: Machine
) -> tuple[float, tuple[float, float] | None]:
    """Seconds of so many launches by a library, and their interval.

    A step's overhead goes around networks, and a framework's host stands between its operators; a library's products
    follow one another as fast as kernels are launched (`LAUNCH_S`). Models without a host launch for nothing.
    """
    work = workload.work
    all_of_them = msgspec.structs.replace(work, fixed=launches * work.fixed, per_sample=launches * work.per_sample)
    terms = model.evaluate(workload.with_work(all_of_them), machine)
    device_s, interval = float(terms.layers_s.sum()) / terms.host_slowdown, terms.interval()
    launching_s = launches * LAUNCH_INTERVAL_S if terms.floor_s is not None else 0.0
    seconds = float((device_s**POWER + launching_s**POWER) ** (1 / POWER))
    return seconds, interval and tuple(seconds * bound / terms.time_s for bound in interval)  # type: ignore[return-value]


def _notes(device: Device | None, model: TimeModel, products: int) -> tuple[str, ...]:
    notes = list(model.notes)
    if device is None:
        notes.append("a bare peak leaves memory, tiles and launches unknown: every way takes the time at peak")
    elif not model.label and products > 1:
        notes.append(f"the {model.name} model has no launch cost: only memory traffic is saved here")
    elif model.label:
        notes.append("calibrated on whole networks: single products scatter more than the interval says (docs/gemm.md)")
    return tuple(notes)


class Tiling(msgspec.Struct, frozen=True):
    """How the output of a product is shared out.

    Attributes
    ----------
    rows, columns : int
        Size of a tile of output, which one multiprocessor takes at a time.
    tiles : int
        Tiles of one launch.
    waves : int
        How often the multiprocessors take a tile each.
    last : int
        Tiles in the last wave.
    filled : float
        Share of the multiprocessors' turns that have a tile.
    covered : float
        Share of the tiles' area that is output: the rest is padding at the edges.
    """

    rows: int
    columns: int
    tiles: int
    multiprocessors: int
    waves: int
    last_wave_tiles: int
    wave_efficiency: float
    tile_efficiency: float


class GemmVariant(msgspec.Struct, frozen=True):
    """One way to compute all the products.

    Attributes
    ----------
    name : str
        ``separate``: a launch each. ``stacked``: those that share their right operand as one product with more rows.
        ``batched``: all in one launch, each with operands of its own.
    launches, groups, m, n, k : int
        Launches, products in each, and their sizes.
    flops, bytes : int
        Of all launches together.
    tiling : Tiling or None
        Of one launch; None without a device.
    time_s : float
        Of all launches together, one behind the other.
    interval : tuple or None
        Seconds at 90%; None for models that give none.
    """

    name: str
    launches: int
    groups: int
    m: int
    n: int
    k: int
    flops: int
    bytes: int
    tiling: Tiling | None
    time_s: float
    interval: tuple[float, float] | None = None


class GemmTimes(Result, msgspec.Struct, frozen=True):
    """What a product, or several, should take.

    Attributes
    ----------
    m, n, k, products : int
        ``products`` times ``m x k`` by ``k x n``.
    device : Device or None
        None where only a peak was given.
    peak_per_s : float
        FLOP/s.
    peak_words : str
        Which peak that is.
    ways : tuple of Way
        ``separate`` first.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.gemm:gemm_page"

    m: int
    n: int
    k: int
    products: int
    precision: str
    device: Device | None
    model: TimeModel
    peak_per_s: float
    peak_words: str
    bandwidth_bytes_per_s: float | None
    variants: tuple[GemmVariant, ...]
    notes: tuple[str, ...] = ()

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
        """Seconds of one product at peak: the least possible."""
        return self.flops / self.peak_per_s

    @property
    def intensity(self) -> float:
        """FLOPs per byte of one product."""
        return self.flops / self.bytes

    @property
    def ridge_point(self) -> float | None:
        """FLOPs per byte from which on arithmetic and no longer memory bounds; None without a device."""
        return None if self.bandwidth_bytes_per_s is None else self.peak_per_s / self.bandwidth_bytes_per_s

    def rows(self) -> list[dict[str, Any]]:
        """The ways as rows, in SI units."""
        first = self.variants[0].time_s
        return [
            {
                **{name: getattr(way, name) for name in ("launches", "groups", "m", "n", "k", "flops", "bytes")},
                "way": way.name,
                "tiles": way.tiling and way.tiling.tiles,
                "waves": way.tiling and way.tiling.waves,
                "last_wave_tiles": way.tiling and way.tiling.last_wave_tiles,
                "filled": way.tiling and way.tiling.wave_efficiency,
                "covered": way.tiling and way.tiling.tile_efficiency,
                "time_s": way.time_s,
                "interval": None if way.interval is None else list(way.interval),
                "share_of_peak": way.flops / way.time_s / self.peak_per_s,
                "gain": first / way.time_s,
            }
            for way in self.variants
        ]

    def to_dict(self) -> dict[str, Any]:
        """What ``--format json`` prints."""
        tiling = self.variants[0].tiling
        return {
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "count": self.products,
            "gpu": self.device and self.device.id,
            "precision": self.precision,
            "time_model": self.model.name,
            "calibration": self.model.label or None,
            "flops": self.flops,
            "bytes": self.bytes,
            "intensity": self.intensity,
            "ridge_point": self.ridge_point,
            "peak_flops": self.peak_per_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "peak_time_s": self.peak_time_s,
            "tile": tiling and [tiling.rows, tiling.columns],
            "multiprocessors": tiling and tiling.multiprocessors,
            "ways": self.rows(),
            "notes": list(self.notes),
        }
