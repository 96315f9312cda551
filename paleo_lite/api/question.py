"""What is asked of a network or a pipeline on a device, and the nouns it is made into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..architectures import Network, find_network, trace_factory
from ..architectures.catalog import HUGGING_FACE, is_factory
from ..architectures.inputs import InputShapes
from ..architectures.network import SequenceOptions
from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import denoiser_network, find_pipeline, parse_image_size
from ..arguments import quote_value
from ..calibration.choose import choose_model
from ..counting import GENERATION_PHASES
from ..counting.work import ENGINE, PHASES_WITH_GRADIENTS
from ..errors import BadValue
from ..files import Paths, to_paths
from ..formats import split_format
from ..machines import Device, Machine, find_device
from ..timing import TimeModel, Workload
from ..timing.bitsandbytes import has_int8_kernels
from ..timing.energy import with_power_limit
from ..timing.models import CALIBRATED
from ..timing.training_options import TrainingOptions, check_recipe, find_recipe
from ..timing.workload import UnderEngine
from ..units import PRECISION_BYTES, element_bytes

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.evidence_file import EvidenceCalibration
    from ..calibration.store import Calibration
    from ..distributed.parallel_config import ParallelConfig
    from ..timing.budget import Amount
    from ..timing.capacity import RemedyAnswers
    from ..timing.facility import Facility


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


def resolve_question(
    question: Question,
    *,
    whole_board: bool = False,  # whether a board with several devices is one machine, instead of one of its devices
    is_by_layers: bool = False,  # whether the caller's options ask for layers where kernels of an engine are known
) -> tuple[Workload, Machine, TimeModel]:
    """Build the workload, the machine and the time model of a network that is not a pipeline."""
    machine = question.machine(whole_board=whole_board)
    formats = _resolve_formats(question, machine.device)
    sequence = question.sequence
    if question.attention is not None:
        from ..timing.attention import is_fused_attention, resolve_attention

        resolve_attention(question.attention, machine.device)
        sequence = sequence._replace(fused_attention=is_fused_attention(question.attention))
    assert question.network is not None
    image_size = square_size(question.image_size, question.network)
    network = resolve_network(question.network, image_size, question.inputs, sequence)
    servers = None
    if question.calibration is not None or question.evidence is not None:
        question, machine, servers = _with_evidence(question, machine, network.name)
    engine = _choose_engine(question, network, machine.device, formats.precision, is_by_layers, servers)
    model: TimeModel
    if engine is not None:
        from ..serving.engine_model import EngineModel

        execution, model, machine = ENGINE, EngineModel(), machine.with_locked_clock(formats.precision)
    elif servers is not None:
        from ..engines.placed import NEEDS_KERNELS

        raise BadValue(f"a calibration from result files {NEEDS_KERNELS}")
    else:
        execution = question.execution or default_execution(question.phase, formats.precision)
        model = choose_model(
            machine.device,
            formats.precision,
            time_model=question.time_model,
            execution=execution,
            ppp=question.ppp,
            calibration=question.calibration,
            products=formats.products,
            network=network,
        )
    workload = Workload(
        network,
        precision=formats.precision,
        batch_size=question.batch_size,
        phase=question.phase,
        execution=execution,
        convention=question.convention,
        training=formats.training,
        weights=formats.weights,
        attention=question.attention,
        engine=engine,
        int8_kernels=has_int8_kernels(machine.device),
    )
    if servers is not None:  # with an engine, or it was refused above
        model = EngineModel.by_servers(servers, workload, machine.device)
    return workload, machine, model


class _Formats(NamedTuple):
    """The formats of a question, of which a recipe of training or an engine's format names several at once."""

    precision: str
    training: TrainingOptions | None
    weights: str | None  # in which they are stored; None for those of the precision
    products: str | None  # in which matrices are multiplied; None for that of the precision


def _resolve_formats(question: Question, device: Device) -> _Formats:
    """Return the formats of a question; raise BadValue for one that its phase or the device does not have."""
    precision, training, weights = question.precision, question.training, question.weights
    products = None
    is_recipe = find_recipe(precision) is not None
    if is_recipe and question.phase == "training" and training is None:
        training = TrainingOptions()
    if training is not None:
        precision, training = training.split_precision(precision)
        products = training.products
        if training.recipe is not None:
            check_recipe(training.recipe, device)
    elif question.phase not in PHASES_WITH_GRADIENTS:
        precision, weights = split_format(precision, weights)
    elif is_recipe and precision not in PRECISION_BYTES:
        raise BadValue(f"`--precision {precision}` is for training and inference, not for {question.phase}")
    element_bytes(precision)
    return _Formats(precision, training, weights, products)


def _with_evidence(
    question: Question, machine: Machine, network: str
) -> tuple[Question, Machine, EvidenceCalibration | None]:
    """Return a question and a machine with what a calibration from result files says of power, and its servers."""
    from ..calibration.power_causes import KIND as POWER
    from ..calibration.power_causes import learned_device

    evidence = question.find_evidence()
    if evidence is None:
        return question, machine, None
    machine = msgspec.structs.replace(machine, device=learned_device(machine.device, network, evidence))
    if question.phase in GENERATION_PHASES:
        evidence.check_kinds(("server", "link", POWER), f"predict --phase {question.phase}")
        if "server" in evidence.kinds:
            return question, machine, evidence
        return msgspec.structs.replace(question, calibration=None), machine, None
    if POWER in evidence.kinds:  # which alone inform a single pass
        question = msgspec.structs.replace(question, calibration=None)
    return question, machine, None


def _choose_engine(
    question: Question,
    network: Network,
    device: Device,
    precision: str,
    is_by_layers: bool,
    evidence: EvidenceCalibration | None,
) -> UnderEngine | None:
    """Return the engine whose kernels are timed; None where the layers are."""
    says_of_engine = (question.execution, question.policy, question.kv_cache, question.expert_load)
    if question.phase not in GENERATION_PHASES and not any(says_of_engine):
        return None
    from ..engines.routing import parse_expert_load  # for text only, to keep the cold start of others fast
    from ..serving.engine_model import EngineOptions, asks_for_layers, choose_engine

    usual = Machine.single_device(device)
    has_usual_unit = Machine.single_device(device, None, question.unit).peak(precision) == usual.peak(precision)
    other_unit = None if has_usual_unit else question.unit
    of_layers = None if evidence is not None else question.calibration
    asks = asks_for_layers(question.time_model, question.ppp, of_layers, question.attention, other_unit)
    expert_load = None if question.expert_load is None else parse_expert_load(question.expert_load)
    options = EngineOptions(question.execution, question.policy, question.kv_cache, expert_load)
    return choose_engine(network, device, question.phase, precision, options, is_by_layers=is_by_layers or asks)


def default_execution(phase: str, precision: str) -> str:
    """Return the execution of a phase for which none is given.

    PyTorch has no convolutions in int8 on GPUs: such networks run in engines, TensorRT or ONNX Runtime.
    """
    is_of_engines = phase in GENERATION_PHASES or (phase == "inference" and precision == "int8")
    return ENGINE if is_of_engines else "eager"


def square_size(image_size: int | str | None, network: object) -> int | None:
    """Return the size of the square images of a network that is not a pipeline."""
    if not isinstance(image_size, str):
        return image_size
    width, height = parse_image_size(image_size)
    if width != height:
        name = network if isinstance(network, str) else "the network"
        raise BadValue(
            f"{name} is not a pipeline: only pipelines take width x height, other networks read square images "
            f"(got {image_size})"
        )
    return width


def resolve_network(
    network: str | Network | nn.Module,
    image_size: int | None,
    inputs: InputShapes,
    sequence: SequenceOptions | None = None,
) -> Network:
    """Return the network for a name, a path, a factory or a module."""
    shapes = list(inputs)
    sequence = sequence or SequenceOptions()
    pipeline = find_pipeline(network) if isinstance(network, str) else None
    if pipeline is not None and sequence.phase in PHASES_WITH_GRADIENTS:
        return denoiser_network(pipeline, image_size, None)
    if isinstance(network, str) and not is_factory(network) and not shapes:
        return find_network(network, image_size, sequence)
    if isinstance(network, Network) and network.rebuild is not None:
        return network if _matches_sequence(network, sequence) else network.rebuild(sequence)
    is_hugging_face = isinstance(network, str) and network.startswith(HUGGING_FACE)
    if (sequence.context and not is_hugging_face) or (sequence.length and isinstance(network, Network)):
        raise BadValue(
            "`--sequence-length` and `--context` are for networks given by name or config; "
            "the length of any other network is that of its inputs"
        )
    if isinstance(network, Network):
        return network
    if not isinstance(network, str):
        if not callable(network):
            raise BadValue(
                f"a network is a name, a path, a module of PyTorch or a Network (got {quote_value(network)})"
            )
        from ..architectures.inputs import read_input
        from ..architectures.sequence_lengths import trace_inputs

        if not shapes:
            raise BadValue("a module needs the shape of its inputs: inputs=[(3, 224, 224)]")
        return trace_inputs(network, [read_input(shape) for shape in shapes], sequence.length)
    if is_factory(network):
        return trace_factory(network, shapes, image_size, sequence)
    raise BadValue("`--input` is for package.module:factory; a shipped network takes `--image-size`")


def _matches_sequence(network: Network, sequence: SequenceOptions) -> bool:
    """Return whether a network from a config already has the layers for this phase and sequence length."""
    if network.lengths is None or sequence.length or sequence.context or sequence.fused_attention is not None:
        return False
    has_cached_tokens = network.lengths.keys > network.lengths.queries
    is_generating = sequence.phase in GENERATION_PHASES
    is_decode = sequence.phase == "decode"
    return network.lengths.uses_cache == is_generating and has_cached_tokens == is_decode
