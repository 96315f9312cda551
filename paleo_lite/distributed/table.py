"""`ScaleTable`: what `paleo_lite.scale` returns, a `ScaleRow` for each number of workers, with its hours and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from ..errors import BadValue
from ..machines import Device
from ..result import Result
from ..units import parse_quantity
from .job import Step

COLUMNS = (
    "workers", "batch_size", "compute_s", "communication_s", "exposed_s", "update_s", "time_s", "throughput_per_s",
    "speedup", "efficiency", "memory_bytes", "cost",
)  # fmt: skip
"""The documented columns of a row, in their order; further ones stand behind them."""

PER_DEVICE = ("flops_per_s", "mfu", "hfu", "tokens_per_s", "kwh_per_million", "cost_per_million", "kwh")
"""What a row says of how well devices are used, and what a million samples, or all, take."""


class ScaleTable(Result, msgspec.Struct, frozen=True):
    """Training, or reading and writing text, on several numbers of devices; as advice, by several strategies on one.

    Attributes
    ----------
    network, gpu, gpu_name, precision : str
        `gpu` is the device's id.
    scaling : str
        ``weak`` or ``strong``.
    batch_size : int
        As asked for: per worker for weak scaling, of all workers for strong.
    topology : str
        The machine in words.
    links : tuple of str
        Its links, with what they reach.
    model : str
        The time model that compute times come from.
    memory_bytes : float or None
        Of a device; None where its memory plays no part.
    images, epochs, price_usd_per_h : float or None
        What hours and cost are for.
    why : str
        For advice: a sentence on the best.
    refused : dict of str to str
        For advice: strategies that are impossible, and why.
    is_forecast : bool
        Whether the times are what to expect; else they are the best case: what data sheets allow.
    phase : {"training", "prefill", "decode"}
    """

    _page: ClassVar[str] = "paleo_lite.reporting.scale:scale_page"

    network: str
    gpu: str
    gpu_name: str
    precision: str
    scaling: str
    batch_size: int
    topology: str
    links: tuple[str, ...]
    model: str
    memory_bytes: float | None
    rows: list[ScaleRow]
    images: float | None = None
    epochs: float | None = None
    price_usd_per_h: float | None = None
    why: str = ""
    refused: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    is_forecast: bool = True
    phase: str = "training"

    def __iter__(self) -> Iterator[ScaleRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> ScaleRow:
        return self.rows[place]

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        names = (
            "network", "gpu", "precision", "phase", "scaling", "batch_size", "topology", "model", "is_forecast",
            "images", "epochs", "price_usd_per_h",
        )  # fmt: skip
        answer = {name: getattr(self, name) for name in names}
        if self.why:
            fitting = [row for row in self.rows if row.fits]
            answer |= {
                "best": fitting[0].strategy if fitting else None,
                "runner_up": fitting[1].strategy if len(fitting) > 1 else None,
                "why": self.why,
                "refused": self.refused,
            }
        return answer | {"rows": [row.to_dict() for row in self.rows], "notes": list(self.notes)}


class ScaleRow(Step, frozen=True, kw_only=True):
    """A step on some number of workers, beside that of one.

    Attributes
    ----------
    workers : int
        Devices that train together.
    batch_size : int
        Samples per step over all workers.
    alone_per_s : float
        Samples per second of one worker of the same kind (strong scaling: with the whole batch).
    over : int
        Of how many workers that is a share: 1 where one worker holds the network.
    limited_by : str
        What most stands between this row and a perfect speed-up.
    strategy : str
        How the work is shared out.
    fits : bool or None
        Whether a device holds it; None where that is not known.
    bound_s : float or None
        Seconds that data sheets allow: the roofline's computing, and links at their full bandwidth; None where it was
        not asked for.
    flops, tokens : float or None
        Of a step of all workers: what the model computes, without what checkpointing computes again; and the numbers of
        its samples' sequences, None where it takes none.
    peak_per_s, power_w, price_usd_per_h : float or None
        Of one device: peak FLOP/s in the precision, rated power, price of an hour.
    images, epochs : float or None
        What is to be trained on: see `Budget`.
    """

    workers: int
    batch_size: int
    alone_per_s: float
    limited_by: str = ""
    strategy: str = "data"
    fits: bool | None = None
    bound_s: float | None = None
    flops: float | None = None
    tokens: float | None = None
    peak_per_s: float | None = None
    power_w: float | None = None
    over: int = 1
    price_usd_per_h: float | None = None
    images: float | None = None
    epochs: float = 1.0

    @property
    def throughput_per_s(self) -> float:
        """Samples per second."""
        return float(self.batch_size / self.time_s)

    @property
    def speedup(self) -> float:
        """Throughput over one worker's, or over a worker's share of `over`."""
        return self.throughput_per_s / self.alone_per_s

    @property
    def efficiency(self) -> float:
        """Speed-up over workers."""
        return self.speedup / self.workers

    @property
    def efficiency_interval(self) -> tuple[float, float] | None:
        """Between which the efficiency lies with 90%: one worker's time is in it twice and plays no part."""
        if self.cluster_interval is None:
            return None
        best_s, worst_s = self.cluster_interval
        return self.efficiency * self.time_s / worst_s, self.efficiency * self.time_s / best_s

    @property
    def flops_per_s(self) -> float | None:
        """FLOP/s of one device."""
        return None if self.flops is None else float(self.flops / self.time_s / self.workers)

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s utilisation (Chowdhery et al. 2022, PaLM, appendix B): that over the peak."""
        return self.flops_per_s / self.peak_per_s if self.flops_per_s is not None and self.peak_per_s else None

    @property
    def hfu(self) -> float | None:
        """Hardware FLOP/s utilisation (PaLM, appendix B): MFU with what is computed again."""
        return None if self.mfu is None else self.mfu * (1 + self.recomputed)

    @property
    def tokens_per_s(self) -> float | None:
        """Of all workers."""
        return None if self.tokens is None else float(self.tokens / self.time_s)

    @property
    def hours(self) -> float | None:
        """For all images and epochs; None where none were asked for."""
        return None if self.images is None else self.images * self.epochs / self.throughput_per_s / 3600

    @property
    def cost(self) -> float | None:
        """USD for the same."""
        return self._over(self.hours, self.price_usd_per_h)

    @property
    def kwh(self) -> float | None:
        """Kilowatt-hours for the same, every device at its rated power; hosts and cooling come on top."""
        return self._over(self.hours, self.power_w, 1e-3)

    @property
    def cost_per_million(self) -> float | None:
        """USD for a million samples."""
        return self._over(1e6 / self.throughput_per_s / 3600, self.price_usd_per_h)

    @property
    def kwh_per_million(self) -> float | None:
        """Kilowatt-hours for a million samples."""
        return self._over(1e6 / self.throughput_per_s / 3600, self.power_w, 1e-3)

    def _over(self, hours: float | None, rate: float | None, scale: float = 1.0) -> float | None:
        """What all devices take at a rate of each."""
        return None if hours is None or rate is None else hours * self.workers * rate * scale

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: `COLUMNS` first."""
        row = {name: getattr(self, name) for name in COLUMNS}
        row |= {name: getattr(self, name) for name in ("strategy", "collective", "limited_by", "hours", "fits")}
        row |= {"bound_s": self.bound_s, "input_s": self.input_s, "speedup_over": self.over}
        row |= {name: getattr(self, name) for name in PER_DEVICE}
        for name in ("interval", "efficiency_interval"):
            ends = getattr(self, name)
            row[name] = None if ends is None else list(ends)
        row["notes"] = list(self.notes)
        return row


class Budget(msgspec.Struct, frozen=True):
    """What is to be trained, and what an hour costs.

    Attributes
    ----------
    images : float or None
        Samples of one epoch.
    price_usd_per_h : float or None
        Of one device; None where it is not known.
    """

    images: float | None = None
    epochs: float = 1.0
    price_usd_per_h: float | None = None


def make_budget(
    device: Device | None,
    images: float | str | None,
    epochs: float | None,
    price: float | str | None = None,
    *,
    cost_asked: bool = False,
    tokens: int | None = None,
) -> Budget:
    """A budget; the price is the one given, else what the device rents for.

    Parameters
    ----------
    device : Device or None
        None where its price plays no part.
    images : float or str, optional
        ``1281167`` or ``"1.28M"``, or ``"300B tokens"``.
    epochs : float, optional
        1 where none is given.
    price : float or str, optional
        USD per hour of one device: ``"0.90 USD/h"``.
    cost_asked : bool
        Whether an answer without a cost is an error.
    tokens : int, optional
        Of a sample; None where it has none.

    Raises
    ------
    BadValue
        If images, epochs or price are not above 0, epochs come without images, or a cost is asked for and images or
        price are missing.
    """
    count = None if images is None else _samples(images, tokens)
    if count is not None and not 0 < count < math.inf:
        raise BadValue(f"the number of images must be above 0, not {images!r}")
    if epochs is not None and not 0 < epochs < math.inf:
        raise BadValue(f"the number of epochs must be above 0, not {epochs!r}")
    if count is None and (epochs is not None or cost_asked):
        raise BadValue("hours and cost need a number of images: give --images, such as --images 1.28M")
    usd = None if device is None else device.rent_usd_per_h
    if price is not None:
        usd = parse_quantity(price, "USD/h")
        if not 0 < usd < math.inf:
            raise BadValue(f"the price must be above 0 USD/h, not {price!r}")
    if usd is None and cost_asked:
        raise BadValue(
            f"the price of an hour of {device.name if device else 'the device'} is unknown: "
            "give --price, such as '0.90 USD/h'"
        )
    return Budget(count, 1.0 if epochs is None else epochs, usd)


def _samples(images: float | str, tokens: int | None) -> float:
    """Samples, said as such or as their tokens."""
    if not isinstance(images, str) or not images.rstrip().endswith("tokens"):
        return parse_quantity(images, "")
    if tokens is None:
        raise BadValue(f"--images {images}: this network reads no tokens, say how many samples there are")
    number = images.rstrip().removesuffix("tokens").rstrip()
    return parse_quantity(f"{number[:-1]}G" if number.endswith("B") else number, "") / tokens  # B: billions
