"""`Answer`: the fields common to the answers of all kinds of questions, and the quantities derived from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..result import Result
from ..version import __version__
from .activity import Activity, Shares
from .energy import Power
from .facility import Facility, SiteEnergy

Interval = tuple[float, float]

COMMON_FIELDS = {
    "network": "name of the network",
    "gpu": "ID of the device",
    "devices": "number of devices",
    "precision": "precision of the arithmetic; on one's own machine the format of the weights",
    "execution": "how kernels are executed, or the engine",
    "is_forecast": "whether the time is a forecast; otherwise it is a bound",
    "calibration": "source of the parameters of the time model; null for models without",
    "time_of": (
        "what `time_s` refers to: a `step`, a `batch` of pictures or videos, a `token` of an answer, or a `request`"
    ),
    "time_s": "seconds of what `time_of` names; of requests the median end-to-end latency",
    "interval": "90% interval of the seconds, `[low, high]`; null for models without intervals",
    "bound_s": "lower bound of the seconds by data sheets; null where there is none",
    "throughput_per_s": "samples, pictures, tokens or requests per second of all devices",
    "tokens_per_s": "tokens per second of all devices; null for networks that read no tokens",
    "memory_bytes": "peak memory of the device that needs most",
    "fits": "whether it fits into the memory of the device; null where the memory is unknown",
    "power_w": "average power of one device in watts; null if nothing is known of it",
    "energy_j": "energy of all devices in joules for what `time_of` names",
    "usd_per_million": (
        "US dollars of a million samples or pictures, of language models that generate of a million output tokens; "
        "null for a bound, and without a price"
    ),
    "version": "version of paleo-lite",
    "notes": "caveats",
}
"""Fields of the JSON of every answer, with their meaning; `docs/output.md` lists them."""

FIELDS_OF_ROWS = (
    "devices",
    "time_of",
    "time_s",
    "interval",
    "bound_s",
    "throughput_per_s",
    "tokens_per_s",
    "memory_bytes",
    "fits",
    "power_w",
    "energy_j",
    "usd_per_million",
)
"""Common fields that differ between the rows of a table, such as one over numbers of devices."""

FORECAST, BOUND = "forecast", "bound"
"""Kinds of answers, in the column ``answer`` of rows."""

_LAST = ("version", "notes")


class Answer(Result):
    """Mixin for the answer to a question: states what `COMMON_FIELDS` lists, and the fields of its own kind.

    A subclass has the attributes below, as fields or properties; those that the mixin computes from others may be
    overridden where they are known otherwise.
    """

    __slots__ = ()

    time_of: ClassVar[str] = "step"
    version: ClassVar[str] = __version__

    if TYPE_CHECKING:

        @property
        def network(self) -> str: ...
        @property
        def gpu(self) -> str: ...
        @property
        def precision(self) -> str: ...
        @property
        def execution(self) -> str | None: ...
        @property
        def is_forecast(self) -> bool: ...
        @property
        def time_s(self) -> Any: ...
        @property
        def bound_s(self) -> float | None: ...
        @property
        def throughput_per_s(self) -> float | None: ...
        @property
        def notes(self) -> tuple[str, ...]: ...

    # Optional quantities.

    @property
    def devices(self) -> int:
        """Number of devices."""
        return 1

    @property
    def calibration(self) -> str | None:
        """Label of the calibration of the model's parameters; None for models without."""
        return None

    @property
    def intervals(self) -> dict[str, Interval]:
        """Intervals of the time by level in percent, such as ``"90"``; empty for models without intervals."""
        return {}

    @property
    def interval(self) -> Interval | None:
        """90% interval of the time in seconds; None for models without intervals."""
        return self.intervals.get("90")

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all devices; None for networks that read no tokens."""
        return None

    @property
    def memory_bytes(self) -> float | None:
        """Peak memory of the device that needs most, in bytes; None if unknown."""
        return None

    @property
    def fits(self) -> bool | None:
        """Whether the peak is at most the usable memory of the device; None if unknown."""
        return None

    @property
    def power(self) -> Power | None:
        """What a device draws; None if its power limit or process is unknown."""
        return None

    @property
    def activity(self) -> Activity:
        """What one device does in the time."""
        return Activity()

    @property
    def facility(self) -> Facility | None:
        """What surrounds the devices; None if it is not described."""
        return None

    @property
    def price_usd_per_h(self) -> float | None:
        """Price of one device per hour; None if unknown."""
        return None

    # Derived quantities.

    @property
    def shares(self) -> Shares:
        """Shares of the time in which a device does one thing or another."""
        return Shares(*(float(share) for share in self.activity.shares_of(self.time_s)))

    @property
    def power_w(self) -> float | None:
        """Average power of one device in watts; None if it is unknown, or the time is 0."""
        return None if self.power is None or not self.time_s else float(self.power.watts(self.shares))

    @property
    def power_interval_w(self) -> Interval | None:
        """90% interval of the power in watts; None if the power is unknown."""
        if self.power is None or not self.time_s:
            return None
        low_w, high_w = self.power.interval_w(self.shares)
        return float(low_w), float(high_w)

    @property
    def energy_j(self) -> float | None:
        """Energy of all devices alone in the time, in joules; None if their power is unknown."""
        return None if self.power_w is None else float(self.devices * self.power_w * self.time_s)

    @property
    def energy_interval_j(self) -> Interval | None:
        """90% interval of the energy in joules, from those of the time and of the power; None without one."""
        if self.power is None or self.interval is None or not self.time_s:
            return None
        low_j, high_j = self.power.energy_interval_j(self.activity, self.time_s, self.interval)
        return self.devices * low_j, self.devices * high_j

    @property
    def site(self) -> SiteEnergy | None:
        """Energy at the meter, and what it costs; None if no facility is described, or the power is unknown."""
        if self.facility is None or self.energy_j is None:
            return None
        return self.facility.site_energy(self.energy_j, float(self.devices * self.time_s))

    @property
    def usd_per_million(self) -> float | None:
        """Cost of a million samples, pictures or output tokens in US dollars; None for a bound, and without a price."""
        if not self.is_forecast or self.price_usd_per_h is None or self.throughput_per_s is None:
            return None
        return self.devices * self.price_usd_per_h / 3600 / self.throughput_per_s * 1e6

    def row(self) -> dict[str, Any]:
        """Return the columns that the row of any answer has in a comparison and in a file of rows."""
        low_s, high_s = self.interval or (None, None)
        return {
            "devices": self.devices,
            "answer": FORECAST if self.is_forecast else BOUND,
            "time_s": self.time_s,
            "low_s": low_s,
            "high_s": high_s,
            "bound_s": self.bound_s,
            "throughput_per_s": self.throughput_per_s,
            "tokens_per_s": self.tokens_per_s,
            "memory_bytes": self.memory_bytes,
            "power_w": self.power_w,
            "energy_j": self.energy_j,
            "usd_per_million": self.usd_per_million,
        }

    def with_common_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the documented JSON: the common fields with those of the kind between them."""
        return answer_json({name: as_json(getattr(self, name)) for name in COMMON_FIELDS}, fields)

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON: the common fields with all other fields of the record between them."""
        fields = msgspec.to_builtins(self)
        return self.with_common_fields({name: value for name, value in fields.items() if name not in COMMON_FIELDS})


class TableAnswer(Result):
    """Mixin for a table whose rows are answers: states what `COMMON_FIELDS` lists of the row that answers for all.

    `FIELDS_OF_ROWS` are None where no row does. A subclass has `answering_row`, and what its rows have in common.
    """

    __slots__ = ()

    version: ClassVar[str] = __version__

    if TYPE_CHECKING:

        @property
        def answering_row(self) -> Answer | None: ...

    @property
    def devices(self) -> int | None:
        """Number of devices."""
        return None if self.answering_row is None else self.answering_row.devices

    @property
    def time_of(self) -> str | None:
        """What `time_s` is the time of."""
        return None if self.answering_row is None else self.answering_row.time_of

    @property
    def time_s(self) -> float | None:
        """Seconds of what `time_of` names."""
        return None if self.answering_row is None else self.answering_row.time_s

    @property
    def interval(self) -> tuple[float, float] | None:
        """90% interval of `time_s`; None for a bound."""
        return None if self.answering_row is None else self.answering_row.interval

    @property
    def bound_s(self) -> float | None:
        """Lower bound of `time_s` by data sheets; None if it was not computed."""
        return None if self.answering_row is None else self.answering_row.bound_s

    @property
    def throughput_per_s(self) -> float | None:
        """Samples or pictures per second of all devices."""
        return None if self.answering_row is None else self.answering_row.throughput_per_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all devices; None for networks that read none."""
        return None if self.answering_row is None else self.answering_row.tokens_per_s

    @property
    def memory_bytes(self) -> float | None:
        """Peak memory of the device that needs most; None if unknown."""
        return None if self.answering_row is None else self.answering_row.memory_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the peak fits into the memory of a device; None if unknown."""
        return None if self.answering_row is None else self.answering_row.fits

    @property
    def power_w(self) -> float | None:
        """Average power of one device in watts; None if unknown."""
        return None if self.answering_row is None else self.answering_row.power_w

    @property
    def energy_j(self) -> float | None:
        """Energy of all devices in joules for what `time_of` names; None if unknown."""
        return None if self.answering_row is None else self.answering_row.energy_j

    @property
    def usd_per_million(self) -> float | None:
        """US dollars of a million samples or pictures; None without a price."""
        return None if self.answering_row is None else self.answering_row.usd_per_million

    def common_json(self) -> dict[str, Any]:
        """Return the common fields of the documented JSON."""
        return {name: as_json(getattr(self, name)) for name in COMMON_FIELDS}


def answer_json(common: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of an answer: `COMMON_FIELDS` in their order, with the fields of its kind before the last two."""
    first = {name: common[name] for name in COMMON_FIELDS if name not in _LAST}
    return {**first, **fields, **{name: common[name] for name in _LAST}}


def as_json(value: Any) -> Any:
    """Return a value of an answer as JSON: a tuple, such as an interval, as a list."""
    return list(value) if isinstance(value, tuple) else value
