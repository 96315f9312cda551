"""`Step`: what a step of training on one or many devices consists of, by pass and by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .collectives import Seconds
from .overlap import Buckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

COLUMNS = (
    "workers", "batch_size", "compute_s", "communication_s", "exposed_s", "update_s", "time_s", "throughput_per_s",
    "speedup", "efficiency", "memory_bytes", "cost",
)  # fmt: skip
"""The documented columns of a row, in their order; further ones stand behind them."""

PER_DEVICE = ("flops_per_s", "mfu", "hfu", "tokens_per_s", "kwh_per_million", "cost_per_million", "kwh")
"""What a row says of how well devices are used, and what a million samples, or all, take."""


class Step(msgspec.Struct, frozen=True):
    """A step of training. Seconds are numbers, or arrays over batch sizes where a sweep asks for many at once.

    Attributes
    ----------
    compute_s : float
        Seconds of forward and backward pass (with what is recomputed and what workers of a pipeline wait for).
    communication_s : float
        Seconds of all exchanges, hidden or not.
    exposed_s : float
        The part of them that no computation hides.
    update_s : float
        Seconds that the optimizer takes.
    input_s : float
        Seconds that it waits for samples.
    memory_bytes : float or None
        What the fullest device holds; None where it is not known.
    collective : str
        How gradients are exchanged.
    losses : dict of str to float
        What else than exchanges and the division of work makes the step longer, in words and seconds.
    notes : tuple of str
        What somebody who uses it should know.
    interval : tuple of float or None
        Seconds between which ``time_s`` lies with 90%; None where the time model does not say.
    cluster_interval : tuple of float or None
        The same if computing takes what it is said to: what exchanges and waiting for each other leave open. None where
        nobody says.
    recomputed : float
        What is computed again, over forward and backward pass, where a strategy says so.
    """

    compute_s: Any
    communication_s: Any = 0.0
    exposed_s: Any = 0.0
    update_s: Any = 0.0
    memory_bytes: float | None = None
    collective: str = ""
    losses: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    interval: tuple[Any, Any] | None = None
    cluster_interval: tuple[Any, Any] | None = None
    recomputed: float = 0.0
    input_s: Any = 0.0

    @property
    def time_s(self) -> Any:
        """Seconds of the step: ``compute_s + exposed_s + update_s + input_s``."""
        return self.compute_s + self.exposed_s + self.update_s + self.input_s

    @property
    def hidden_s(self) -> Any:
        """Seconds of communication behind computation."""
        return self.communication_s - self.exposed_s


class DeviceStep(Step, frozen=True, kw_only=True, eq=False):
    """A step of one device, layer by layer: what every strategy starts from.

    Attributes
    ----------
    forward_s, backward_s : ndarray, shape (groups,) or (groups, batch sizes)
        Of a layer of each group. What is computed again counts as backward; the overhead of a step lies with the
        forward pass.
    group : ndarray of int, shape (layers,)
        Layers that take equally long are of one.
    model_notes : tuple of str
        What the prediction of the step says of itself.
    micro_batches : int
        Passes before the one update; only during the last one's backward pass are gradients exchanged.
    """

    forward_s: Floats
    backward_s: Floats
    group: Ints
    model_notes: tuple[str, ...] = ()
    micro_batches: int = 1
    _ready: dict[tuple[int, bool], tuple[Buckets, Floats]] = {}

    def ready_s(self, buckets: Buckets, ahead: bool = False) -> Floats:
        """See `Buckets.ready_s`: of the backward pass, or of a forward pass for which parameters are gathered ahead."""
        key = (id(buckets), ahead)
        if key not in self._ready:
            seconds, group = (self.forward_s, self.group[::-1]) if ahead else (self.backward_s, self.group)
            self._ready[key] = buckets, buckets.ready_s(seconds, group)  # buckets that are gone leave their id
        return self._ready[key][1]

    @classmethod
    def of(cls, forward_s: Floats, backward_s: Floats, update_s: Seconds, group: Ints, **known: Any) -> DeviceStep:
        """A step from the seconds of its passes."""
        step = cls(compute_s=0.0, update_s=update_s, forward_s=forward_s, backward_s=backward_s, group=group, **known)
        return msgspec.structs.replace(step, compute_s=step.of_shares(np.ones(len(group))))

    @property
    def layers_s(self) -> Floats:
        """Of both passes, shape (layers,) or (layers, batch sizes)."""
        return (self.forward_s + self.backward_s)[self.group]

    def of_shares(self, shares: Floats) -> Any:
        """Seconds of both passes of shares of the layers, shape (layers,)."""
        return plain(np.bincount(self.group, shares, len(self.forward_s)) @ (self.forward_s + self.backward_s))

    def stretched(self, factor: float) -> DeviceStep:
        """The same step, every pass of it taking so many times as long."""
        ends = None if self.interval is None else (self.interval[0] * factor, self.interval[1] * factor)
        passes = {name: getattr(self, name) * factor for name in ("compute_s", "forward_s", "backward_s", "update_s")}
        return msgspec.structs.replace(self, **passes, interval=ends, _ready={})

    def until(self, layer: int) -> DeviceStep:
        """The same step without the layers from this one on."""
        known = {name: getattr(self, name) for name in ("memory_bytes", "interval", "model_notes", "micro_batches")}
        return DeviceStep.of(self.forward_s, self.backward_s, self.update_s, self.group[:layer], **known)


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
    hours, cost : float or None
        Hours and USD for the images and epochs that were asked for; None where none were, or no price is known.
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
    """

    workers: int
    batch_size: int
    alone_per_s: float
    limited_by: str = ""
    strategy: str = "data"
    hours: float | None = None
    cost: float | None = None
    fits: bool | None = None
    bound_s: float | None = None
    flops: float | None = None
    tokens: float | None = None
    peak_per_s: float | None = None
    power_w: float | None = None
    over: int = 1
    price_usd_per_h: float | None = None

    @property
    def throughput_per_s(self) -> float:
        """Samples per second."""
        return float(self.batch_size / self.time_s)

    @property
    def speedup(self) -> float:
        """Throughput relative to one worker, or to a worker's share of `over`."""
        return self.throughput_per_s / self.alone_per_s

    @property
    def efficiency(self) -> float:
        """Speed-up over workers."""
        return self.speedup / self.workers

    @property
    def flops_per_s(self) -> float | None:
        """FLOP/s of one device."""
        return None if self.flops is None else float(self.flops / self.time_s / self.workers)

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s utilisation (Chowdhery et al. 2022, PaLM, appendix B): that over the peak."""
        known = self.flops_per_s is not None and self.peak_per_s
        return self.flops_per_s / self.peak_per_s if known else None  # type: ignore[operator]

    @property
    def hfu(self) -> float | None:
        """Hardware FLOP/s utilisation (PaLM, appendix B): MFU with what is computed again."""
        return None if self.mfu is None else self.mfu * (1 + self.recomputed)

    @property
    def tokens_per_s(self) -> float | None:
        """Of all workers."""
        return None if self.tokens is None else float(self.tokens / self.time_s)

    @property
    def kwh_per_million(self) -> float | None:
        """Kilowatt-hours for a million samples, every device at its rated power; hosts and cooling come on top."""
        return None if self.power_w is None else self.power_w * self.workers * 1e3 / self.throughput_per_s / 3600

    @property
    def kwh(self) -> float | None:
        """The same for the images and epochs that were asked for."""
        known = self.hours is not None and self.power_w is not None
        return self.hours * self.workers * self.power_w / 1e3 if known else None  # type: ignore[operator]

    @property
    def cost_per_million(self) -> float | None:
        """USD for a million samples."""
        if self.price_usd_per_h is None:
            return None
        return self.price_usd_per_h * self.workers * 1e6 / self.throughput_per_s / 3600

    @property
    def efficiency_interval(self) -> tuple[float, float] | None:
        """Between which the efficiency lies with 90%: one worker's time is in it twice and plays no part."""
        if self.cluster_interval is None:
            return None
        best_s, worst_s = self.cluster_interval
        return self.efficiency * self.time_s / worst_s, self.efficiency * self.time_s / best_s

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


def plain(seconds: Any) -> Any:
    """A number where an array holds one, the array where it holds many."""
    return seconds if np.ndim(seconds) else float(seconds)
