"""What is asked of a network or a pipeline on a device, in one noun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..architectures import Network
from ..architectures.network import SequenceOptions
from ..architectures.pipelines.records import Pipeline
from ..errors import BadValue
from ..machines import Device, Machine, find_device
from ..timing.models import CALIBRATED
from .arguments import InputShapes, Paths, to_paths

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.store import Calibration
    from ..timing.budget import Amount
    from ..timing.facility import Facility
    from ..timing.workload import TrainingOptions


class PictureOptions(msgspec.Struct, frozen=True):
    """What is asked of a pipeline and of no other network; None and False where nothing is.

    The fields are those arguments of `predict`, where they are explained.
    """

    steps: int | None = None
    guidance: float | None = None
    frames: int | None = None
    images: int | None = None
    offload: str | None = None
    ulysses: int | None = None
    ring: int | None = None
    guidance_parallel: bool = False
    tiled: bool = False
    step_caching: float | None = None

    def first_given(self) -> str | None:
        """Return the first option that is given; None if there is none."""
        for name, value in msgspec.structs.asdict(self).items():
            if value is not None and value is not False:
                return "--" + name.replace("_", "-")
        return None

    def check_absent(self, network: object) -> None:
        """Check that no option is given for a network that is no pipeline."""
        option = self.first_given()
        if option is not None:
            name = network if isinstance(network, str) else "the network"
            raise BadValue(f"{option} is for pipelines such as flux.1-dev or wan-2.1-1.3b; {name} is none")

    def check_absent_in_training(self, pipeline: Pipeline) -> None:
        """Check that no option is given for a training step of a pipeline's denoiser."""
        option = self.first_given()
        if option is not None:
            raise BadValue(
                f"{option} is for `--phase inference` of {pipeline.name}; a training step is of its denoiser"
            )


class Question(msgspec.Struct, frozen=True):
    """What is asked of a network or a pipeline on a device; the fields are arguments of `predict`, which explains them.

    Arguments that belong together are one field: those of pipelines, of the amount of training, and of the facility.
    `scale` and `serve` explain the engine (``policy``) and the distribution of tokens over experts (``expert_load``).
    """

    network: str | Network | nn.Module | None
    gpu: str | Device | None
    precision: str = "fp32"
    batch_size: int = 1
    phase: str = "inference"
    time_model: str | None = None
    ppp: float | None = None
    concurrent: bool = False
    convention: str = "flops"
    clock: str | None = None
    unit: str | None = None
    image_size: int | str | None = None
    pictures: PictureOptions = PictureOptions()
    sequence_length: int | None = None
    context: int | None = None
    inputs: InputShapes = ()
    flops: float | str | None = None
    macs: float | str | None = None
    hardware_files: Paths = ()
    calibration: str | Calibration | None = None
    training: TrainingOptions | None = None
    fit_batch: bool = False
    memory: bool = False
    execution: str | None = None
    attention: str | None = None
    weights: str | None = None
    policy: str | None = None
    kv_cache: str | None = None
    expert_load: str | None = None
    amount: Amount | None = None
    price: float | str | None = None
    price_of: str | None = None
    facility: Facility | None = None

    @property
    def sequence(self) -> SequenceOptions:
        """Lengths and phase of a language model."""
        return SequenceOptions(self.sequence_length, self.context, self.phase)

    @property
    def asks_for_board(self) -> bool:
        """Whether the time model describes a whole board, as those do that need only its data sheet.

        The calibrated model describes one of its devices.
        """
        return self.ppp is not None or self.time_model not in (None, CALIBRATED)

    def machine(self, *, whole_board: bool) -> Machine:
        """Return the device at its clock, of a board with several all of them or one."""
        if self.gpu is None:
            raise BadValue("a prediction needs a device: give `--gpu`")
        device = find_device(self.gpu, to_paths(self.hardware_files))
        if whole_board:
            return Machine(device, self.clock, self.unit)
        return Machine.single_device(device, self.clock, self.unit)
