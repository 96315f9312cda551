"""What timing matrix products gives: their tiles, the ways to compute them, and all of it together."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from ..hardware import Device
from ..result import Result
from .models import TimeModel


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
    last: int
    filled: float
    covered: float


class Way(msgspec.Struct, frozen=True):
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

    _page: ClassVar[str] = "paleo_lite.report.gemm:gemm_page"

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
    ways: tuple[Way, ...]
    notes: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        """FLOPs of one product: 2 m n k."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Bytes of one product: both operands read once, the output written once."""
        return self.ways[0].bytes // self.products

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
        first = self.ways[0].time_s
        return [
            {
                **{name: getattr(way, name) for name in ("launches", "groups", "m", "n", "k", "flops", "bytes")},
                "way": way.name,
                "tiles": way.tiling and way.tiling.tiles,
                "waves": way.tiling and way.tiling.waves,
                "last_wave_tiles": way.tiling and way.tiling.last,
                "filled": way.tiling and way.tiling.filled,
                "covered": way.tiling and way.tiling.covered,
                "time_s": way.time_s,
                "interval": None if way.interval is None else list(way.interval),
                "share_of_peak": way.flops / way.time_s / self.peak_per_s,
                "gain": first / way.time_s,
            }
            for way in self.ways
        ]

    def to_dict(self) -> dict[str, Any]:
        """What ``--format json`` prints."""
        tiling = self.ways[0].tiling
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
