"""`ScaleRow`: one number of workers, what a step takes on them, and why."""

from __future__ import annotations

from typing import Any

import msgspec

COLUMNS = (
    "workers", "batch_size", "compute_s", "communication_s", "exposed_s", "update_s", "time_s", "throughput_per_s",
    "speedup", "efficiency", "memory_bytes", "cost",
)  # fmt: skip
"""The documented columns, in their order; further ones stand behind them."""


class ScaleRow(msgspec.Struct, frozen=True):
    """A step of training on some number of workers.

    Attributes
    ----------
    workers : int
        Devices that train together.
    batch_size : int
        Samples per step over all workers.
    compute_s : float
        Seconds of forward and backward pass (with what is recomputed and what workers of a pipeline wait for).
    communication_s : float
        Seconds of all exchanges, hidden or not.
    exposed_s : float
        The part of them that no computation hides.
    update_s : float
        Seconds that the optimizer takes.
    time_s : float
        Seconds of the step: ``compute_s + exposed_s + update_s``.
    throughput_per_s : float
        Samples per second.
    speedup : float
        Throughput relative to one worker of the same kind (strong scaling: with the whole batch).
    efficiency : float
        Speed-up over workers.
    memory_bytes : float or None
        What the fullest device holds; None where it is not known.
    cost : float or None
        USD for the images and epochs that were asked for; None where none were.
    limited_by : str
        What most stands between this row and a perfect speed-up.
    interval : tuple of float or None
        Seconds between which ``time_s`` lies with 90 %; None where the time model does not say.
    strategy, collective : str
        How the work is shared out, and how gradients are exchanged.
    hours : float or None
        Hours for the images and epochs that were asked for.
    fits : bool or None
        Whether a device holds it; None where that is not known.
    notes : tuple of str
        What somebody who uses the row should know.
    """

    workers: int
    batch_size: int
    compute_s: float
    communication_s: float
    exposed_s: float
    update_s: float
    time_s: float
    throughput_per_s: float
    speedup: float
    efficiency: float
    memory_bytes: float | None = None
    cost: float | None = None
    limited_by: str = ""
    interval: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    strategy: str = "data"
    collective: str = ""
    hours: float | None = None
    fits: bool | None = None

    @property
    def hidden_s(self) -> float:
        """Seconds of communication behind computation."""
        return self.communication_s - self.exposed_s

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: `COLUMNS` first."""
        row = {name: getattr(self, name) for name in COLUMNS}
        row |= {name: getattr(self, name) for name in ("strategy", "collective", "limited_by", "hours", "fits")}
        row["interval"] = None if self.interval is None else list(self.interval)
        row["notes"] = list(self.notes)
        return row
