"""Checked arguments of `report`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..architectures import Network
from ..counting import GENERATION_PHASES
from ..errors import BadValue
from ..machines import Device, find_device
from ..timing.energy import with_power_limit
from ..timing.facility import make_facility
from ..timing.workload import TrainingOptions
from .arguments import InputShapes, Paths, option_name, to_paths
from .question import PictureOptions, Question

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.store import Calibration


class ReportArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Checked arguments of `report`."""

    network: str | Network | nn.Module | None
    profile: str | os.PathLike[str] | None
    gpu: str | Device
    output: str | Path
    force: bool
    precision: str = "fp32"
    batch_size: int | None = None
    phase: str | None = None
    time_model: str | None = None
    ppp: float | None = None
    calibration: str | Calibration | None = None
    clock: str | None = None
    power_limit: float | str | None = None
    unit: str | None = None
    execution: str | None = None
    fit_batch: bool = False
    training: TrainingOptions | None = None
    workers: int | str | Sequence[int] | None = None
    link: str | None = None
    topology: str | None = None
    platform: str | None = None
    scaling: str | None = None
    strategy: str = "data"
    collective: str | None = None
    advise: bool = False
    images: float | str | None = None
    epochs: float | None = None
    price: float | str | None = None
    price_of: str | None = None
    rate: float | str | None = None
    input_tokens: int | str | None = None
    output_tokens: int | str | None = None
    policy: str | None = None
    name_pattern: str | None = None
    program: str | None = None
    image_size: int | str | None = None
    steps: int | None = None
    frames: int | None = None
    sequence_length: int | None = None
    context: int | None = None
    weights: str | None = None
    inputs: InputShapes = ()
    electricity: float | str | None = None
    carbon_intensity: float | str | None = None
    pue: float | None = None
    host_watts: float | str | None = None
    hardware_files: Paths = ()

    def __post_init__(self) -> None:
        if (self.network is None) == (self.profile is None):
            raise BadValue("`report` needs a network or a profile (`--profile PATH`): exactly one of them")
        used = self.used_arguments()
        if self.profile is not None:
            for name in used:
                if name not in _COMMON_ARGUMENTS and name not in _PROFILE_ARGUMENTS:
                    raise BadValue(f"`{option_name(name)}` is for the report of a network, not of a profile")
            return
        for name in used:
            if name in _PROFILE_ARGUMENTS:
                raise BadValue(f"`{option_name(name)}` is for the report of a profile: `--profile PATH`")
            if name in WORKERS_ARGUMENTS and not self.has_workers:
                raise BadValue(
                    f"`{option_name(name)}` is for several devices: give their number, such as `--workers 8`"
                )
            if name in SERVING_ARGUMENTS and self.rate is None:
                raise BadValue(
                    f"`{option_name(name)}` is for serving: give the requests per second, such as `--rate 5`"
                )
        if self.has_workers and self.phase not in (None, "training", *GENERATION_PHASES):
            raise BadValue(
                f"several devices support `--phase` training, prefill and decode (got {self.phase}): "
                "leave `--workers` out, or choose another phase"
            )
        if self.fit_batch and self.batch_size is not None:
            raise BadValue("`--fit-batch` chooses the batch size: leave `--batch-size` out")

    @property
    def has_workers(self) -> bool:
        """Whether the report includes several devices."""
        return self.workers is not None or self.topology is not None or self.platform is not None

    def question(self, batch_size: int, phase: str) -> Question:
        """Return what the report asks of the network or pipeline on the device."""
        gpu = self.gpu
        if self.power_limit is not None:
            gpu = with_power_limit(find_device(gpu, self.hardware_paths), self.power_limit)
        return Question(
            self.network,
            gpu,
            precision=self.precision,
            batch_size=batch_size,
            phase=phase,
            time_model=self.time_model,
            ppp=self.ppp,
            clock=self.clock,
            unit=self.unit,
            image_size=self.image_size,
            pictures=PictureOptions(steps=self.steps, frames=self.frames),
            sequence_length=self.sequence_length,
            context=self.context,
            inputs=self.inputs,
            hardware_files=self.hardware_paths,
            calibration=self.calibration,
            training=self.training,
            fit_batch=self.fit_batch,
            memory=True,
            execution=self.execution,
            weights=self.weights,
            facility=make_facility(self.electricity, self.carbon_intensity, self.pue, self.host_watts),
        )

    @property
    def hardware_paths(self) -> list[Path]:
        """Paths of the hardware files."""
        return to_paths(self.hardware_files)

    def used_arguments(self) -> list[str]:
        """Return the names of the arguments that differ from their defaults."""
        names = self.__struct_fields__
        defaults = dict(zip(reversed(names), reversed(self.__struct_defaults__)))
        used = []
        for name in names:
            value = getattr(self, name)
            is_default = value in (defaults.get(name), None, (), [])
            if not is_default and name != "force":
                used.append(name)
        return used


_COMMON_ARGUMENTS = ("gpu", "precision", "hardware_files", "output", "force")
_PROFILE_ARGUMENTS = ("profile", "name_pattern", "program")
WORKERS_ARGUMENTS = (
    "workers", "link", "topology", "platform", "scaling", "strategy", "collective", "advise", "images", "epochs",
    "price", "price_of",
)  # fmt: skip
SERVING_ARGUMENTS = ("input_tokens", "output_tokens", "policy")
PREDICTION_ARGUMENTS = (
    "network", "gpu", "precision", "time_model", "ppp", "calibration", "clock", "power_limit", "unit", "image_size",
    "steps", "frames", "sequence_length", "context", "inputs", "hardware_files", "training", "weights", "electricity",
    "carbon_intensity", "pue", "host_watts",
)  # fmt: skip
