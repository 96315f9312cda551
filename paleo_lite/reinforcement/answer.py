"""The answer about a step of reinforcement learning: times by phase, memory, cost and energy."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import msgspec

from ..timing.activity import Activity
from ..timing.answer import COMMON_FIELDS, Answer
from ..timing.energy import Power
from ..timing.facility import Facility
from .algorithms import ALGORITHMS
from .rollouts import Rollouts
from .step import OF_ROLLOUTS, OF_TRAINER


class RlTotals(msgspec.Struct, frozen=True):
    """What several steps take together."""

    steps: int
    hours: float
    usd: float | None  # None without a price
    kwh: float | None  # None if the power is unknown


class PhaseSpan(NamedTuple):
    """A phase on some of the devices."""

    devices: str  # one of `ALL`, `TRAINER`, `ENGINES`
    phase: str
    start_s: float
    end_s: float


ALL, TRAINER, ENGINES = "all devices", "trainer", "engines"
"""Devices of a span."""


class RlRow(msgspec.Struct, frozen=True):
    """A division of the devices that was compared."""

    rollout_workers: int | None  # devices of the engines; None where they share those of the trainer
    rollout_tensor: int
    tensor: int
    pipeline: int
    context_parallel: int
    expert_parallel: int
    steps_off: int
    time_s: float
    trainer_s: float
    rollouts_s: float
    trainer_bytes: float | None
    rollout_bytes: float


class RlAnswer(Answer, msgspec.Struct, frozen=True, eq=False):
    """Prediction of a step of reinforcement learning.

    Attributes
    ----------
    network, gpu, gpu_name, precision, rollout_precision, algorithm, framework, execution : str
        What runs; `execution` is the stack of the trainer.
    devices, trainer_devices, rollout_devices : int
        All devices, those of the trainer and those of the engines, which may be the same.
    time_s, interval : float and tuple of float
        Seconds of a step, and their 90% interval.
    phases, exposed : dict of str to float
        Seconds of each phase alone, and by which each makes the step longer: others run at the same time.
    trainer_s, rollouts_s : float
        Seconds of all phases of the trainer, and of the engines.
    limited_by : str
        The longest part of a step.
    samples, mean_tokens, updates : float
        Samples of a step, their mean tokens with the prompt, and updates of the weights.
    rollouts : Rollouts or None
        Details of the rollouts; None where nothing is generated.
    trainer : str
        Division of the trainer, as text.
    bubble, imbalance : float
        Share of an update in which stages wait, and time of the slowest rank over that of equal samples.
    trainer_bytes, rollout_bytes : float
        Peak memory of a device in each phase.
    transferred_bytes, tensors : float and int
        Weights of a step that are handed over to the busiest device, or by it.
    gathered_bytes : float
        Weights in fp32 that a device of the trainer gathers before; 0 where it hands over those that it has.
    totals : RlTotals or None
        Hours, cost and energy of the steps asked for.
    divisions : list of RlRow
        Divisions that were compared, the fastest first; empty without advice.
    command : str or None
        Command line that asks for the recommended division alone; None without advice.
    settings : str
        The settings in the framework's own words; empty where they are not known.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.reinforcement:rl_page"
    time_of: ClassVar[str] = "step"
    is_forecast: ClassVar[bool] = True

    network: str
    gpu: str
    gpu_name: str
    precision: str
    rollout_precision: str
    algorithm: str
    framework: str
    execution: str
    devices: int
    trainer_devices: int
    rollout_devices: int
    is_colocated: bool
    steps_off: int
    time_s: float
    interval: tuple[float, float]
    bound_s: float
    phases: dict[str, float]
    exposed: dict[str, float]
    trainer_s: float
    rollouts_s: float
    limited_by: str
    samples: int
    mean_tokens: float
    updates: int
    rollouts: Rollouts | None
    trainer: str
    bubble: float
    imbalance: float
    trainer_bytes: float | None
    rollout_bytes: float
    usable_bytes: float
    transferred_bytes: float
    gathered_bytes: float
    tensors: int
    price_usd_per_h: float | None
    totals: RlTotals | None
    divisions: list[RlRow]
    settings: str
    model: str
    notes: tuple[str, ...]
    calibration: str | None
    activity: Any = Activity()
    power: Power | None = None
    facility: Facility | None = None
    command: str | None = None

    @property
    def throughput_per_s(self) -> float:
        """Samples per second of all devices."""
        return self.samples / self.time_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens of prompts and responses in the loss per second of all devices."""
        return self.sequences * self.mean_tokens / self.time_s

    @property
    def sequences(self) -> int:
        """Sequences in the loss of a step: two of a preferred pair."""
        return self.samples * ALGORITHMS[self.algorithm].samples_trained

    @property
    def tokens_per_s_per_device(self) -> float:
        """Tokens per second and device, as frameworks report them."""
        return self.tokens_per_s / self.devices

    @property
    def memory_bytes(self) -> float | None:
        """Peak memory of the phase that needs most."""
        return None if self.trainer_bytes is None else max(self.trainer_bytes, self.rollout_bytes)

    @property
    def fits(self) -> bool | None:
        """Whether both phases fit into the memory of a device."""
        return None if self.memory_bytes is None else self.memory_bytes <= self.usable_bytes

    @property
    def usd_per_step(self) -> float | None:
        """Cost of a step in US dollars; None without a price."""
        if self.price_usd_per_h is None:
            return None
        return self.devices * self.price_usd_per_h * self.time_s / 3600

    def spans(self) -> list[PhaseSpan]:
        """Return the phases one after the other, those of trainer and engines at the same time if rollouts are off."""
        spans: list[PhaseSpan] = []
        ends = {ALL: 0.0, TRAINER: 0.0, ENGINES: 0.0}
        for phase, seconds in self.phases.items():
            side = ALL
            if not self.is_colocated and phase in (*OF_ROLLOUTS, *OF_TRAINER):
                side = ENGINES if phase in OF_ROLLOUTS else TRAINER
            start_s = ends[side] if side != ALL and self.steps_off else max(ends.values())
            spans.append(PhaseSpan(side, phase, start_s, start_s + seconds))
            ends[side] = start_s + seconds
        return spans

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        left_out = ("activity", "power", "facility", "price_usd_per_h", "is_forecast")
        fields = {
            name: msgspec.to_builtins(getattr(self, name)) for name in self.__struct_fields__ if name not in left_out
        }
        if self.rollouts is not None:
            del fields["rollouts"]["activity"]
        fields["tokens_per_s_per_device"] = self.tokens_per_s_per_device
        fields["usd_per_step"] = self.usd_per_step
        fields["site"] = None if self.site is None else self.site.to_dict()
        return self.with_common_fields({name: value for name, value in fields.items() if name not in COMMON_FIELDS})
