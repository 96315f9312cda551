"""What is asked of a network or a pipeline on a device, in one noun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..architectures import Network
from ..architectures.inputs import InputShapes
from ..architectures.network import SequenceOptions
from ..architectures.pipelines.records import Pipeline
from ..errors import BadValue
from ..files import Paths, to_paths
from ..machines import Device, Machine, find_device
from ..timing.energy import with_power_limit
from ..timing.models import CALIBRATED

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.evidence_file import EvidenceCalibration
    from ..calibration.store import Calibration
    from ..distributed.parallel_config import ParallelConfig
    from ..timing.budget import Amount
    from ..timing.capacity import RemedyAnswers
    from ..timing.facility import Facility
    from ..timing.training_options import TrainingOptions


class PictureOptions(msgspec.Struct, frozen=True):
    """What is asked of a pipeline and of no other network; None and False where nothing is.

    Record `Diffusion` explains its options.
    """

    steps: int | None = None  # denoising steps
    guidance: float | None = None  # scale of classifier-free guidance
    frames: int | None = None  # of each video
    offload: str | None = None  # which parameters are in the memory of the host until they are needed
    # Devices that split the sequence of the denoiser: exchanging tokens for heads, and around a ring.
    ulysses: int | None = None
    ring: int | None = None
    guidance_parallel: bool = False  # whether two groups of devices compute the two predictions of the guidance
    tiled: bool = False  # whether pictures are decoded in tiles that overlap
    step_caching: float | None = None  # steps per step that the denoiser computes

    def first_given(self) -> str | None:
        """Return the first option that is given; None if there is none."""
        for name, value in msgspec.structs.asdict(self).items():
            if value is not None and value is not False:
                return "--" + name.replace("_", "-")
        return None

    def check_absent(self, network: object) -> None:
        """Check that no option is given for a network that is not a pipeline."""
        option = self.first_given()
        if option is not None:
            name = network if isinstance(network, str) else "the network"
            raise BadValue(f"{option} is for pipelines such as flux.1-dev or wan-2.1-1.3b; {name} is not one")

    def check_absent_in_training(self, pipeline: Pipeline) -> None:
        """Check that no option is given for a training step of a pipeline's denoiser."""
        option = self.first_given()
        if option is not None:
            raise BadValue(
                f"{option} is for `--phase inference` of {pipeline.name}; a training step is of its denoiser"
            )


class Question(msgspec.Struct, frozen=True):
    """What is asked of a network or a pipeline on a device: what records of options say about it, in single values."""

    network: str | Network | nn.Module | None  # None for a count
    gpu: str | Device | None
    power_limit: float | str | None = None  # of the device, such as "300 W"
    clock: str | None = None
    unit: str | None = None
    hardware_files: Paths = ()
    precision: str = "fp32"
    batch_size: int = 1  # samples per pass; of a pipeline pictures or videos
    phase: str = "inference"
    # Size of one sample.
    image_size: int | str | None = None
    sequence_length: int | None = None
    context: int | None = None  # tokens in the KV cache, for decode
    inputs: InputShapes = ()
    # Counts per sample, instead of a network.
    flops: float | str | None = None
    macs: float | str | None = None
    convention: str = "flops"
    pictures: PictureOptions = PictureOptions()
    # The time model and its constants.
    time_model: str | None = None
    ppp: float | None = None
    calibration: str | Calibration | None = None
    evidence: EvidenceCalibration | None = None  # calibration from result files, which moves what it informs
    # Software, and formats in which matrices and the KV cache are stored.
    execution: str | None = None
    attention: str | None = None
    policy: str | None = None  # engine whose kernels prefill and decode launch
    weights: str | None = None
    kv_cache: str | None = None
    expert_load: str | None = None  # tokens per expert of a mixture
    training: TrainingOptions | None = None
    # How a language model in blocks is trained on one device; None for the defaults of its execution.
    parallel: ParallelConfig | None = None
    fit_batch: bool = False  # whether the batch is the largest one that fits into the memory
    memory: bool = False  # whether the memory is asked for by part, which needs layers
    names_remedies: bool = True  # whether an answer that does not fit says what would make it fit
    remedy_answers: RemedyAnswers | None = None  # what it answers with other options; None if remedies have no times
    amount: Amount | None = None  # of training, for hours, cost and energy
    facility: Facility | None = None

    @classmethod
    def from_options(cls, options: object, network: Any, **changes: Any) -> Question:
        """Return the question of a network with the options of a record that are fields of this one, and changes."""
        fields = set(cls.__struct_fields__) - {"network"} - changes.keys()
        return cls(network, **{name: getattr(options, name) for name in fields if hasattr(options, name)}, **changes)

    @property
    def sequence(self) -> SequenceOptions:
        """Lengths and phase of a language model."""
        return SequenceOptions(self.sequence_length, self.context, self.phase)

    def find_evidence(self) -> EvidenceCalibration | None:
        """Return the calibration if it is one from result files; None for any other, and without one."""
        if self.evidence is not None or self.calibration is None:
            return self.evidence
        from ..calibration.store import evidence_of

        return evidence_of(self.calibration)

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
        if self.power_limit is not None:
            device = with_power_limit(device, self.power_limit)
        if whole_board:
            return Machine(device, self.clock, self.unit)
        return Machine.single_device(device, self.clock, self.unit)
