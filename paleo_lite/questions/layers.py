"""`layers`: the operations of a network, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from msgspec import structs

from ..api.prediction import predict_pass, predict_pictures
from ..api.question import PictureOptions, Question, resolve_network, square_size
from ..architectures import CountsComparison, LayerCounts, Network, count_network
from ..architectures.counts import LayerCosts
from ..architectures.network import SequenceOptions
from ..architectures.pipelines.counts import PipelineCounts, count_pipeline
from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import find_pipeline, make_sampling
from ..counting.kinds import UserRule, add_rule
from ..counting.kinds.products import count_half_of_causal
from ..counting.work import MIXED_EXECUTIONS, check_execution
from ..errors import BadValue
from ..timing import Prediction
from ..timing.facility import Facility
from ..timing.pipeline_prediction import PipelinePrediction
from .completion import LAYER
from .kind import make_function
from .names import Names, PrecisionNames
from .option import documented_spelling, option, options_of
from .records import ENGINE_GROUP, NETWORK_GROUP, DeviceOptions, NetworkAsked, SiteOptions, SizeOptions
from .values import INTEGER

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Layers(SiteOptions, DeviceOptions, SizeOptions, NetworkAsked):
    """Count FLOPs, bytes and parameters of a network layer by layer, or compare the totals of several networks.

    With a device, layers and kinds of layers get their predicted seconds and joules; kinds are ranked by joules.
    """

    compares: ClassVar[bool] = False

    convention: str = option(
        "flops", group=NETWORK_GROUP, type=Names("convention", ".counting:CONVENTIONS"), metavar="NAME",
        help="Convention of the FLOP count.",
    )  # fmt: skip
    phase: str = option(
        "inference", group=NETWORK_GROUP, type=Names("phase", ".counting:PHASES", ".counting:PASSES"), metavar="NAME",
        help="Phase or pass to count; backward is the data gradient and the weight gradient.",
    )  # fmt: skip
    batch_size: int = option(
        1, group=NETWORK_GROUP, type=INTEGER, help="Samples per pass; of a pipeline pictures or videos."
    )
    steps: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="N", help="Denoising steps of a pipeline. [default: its own]"
    )
    frames: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="N", help="Frames of each video. [default: the pipeline's]"
    )
    ignore: Sequence[str] = option(
        (), group=NETWORK_GROUP, is_repeatable=True, type=LAYER, metavar="LAYER|GLOB",
        help="Names or glob patterns of layers to leave out.",
    )  # fmt: skip
    execution: str = option(
        "eager", group=ENGINE_GROUP, type=Names("execution", ".counting.fusion:EXECUTIONS"), metavar="NAME",
        help="Kernel fusion and casts, as for `predict`; folding changes the FLOP count.",
    )  # fmt: skip
    causal: str = option(
        "full", group=NETWORK_GROUP, type=Names("count of causal attention", ".questions.layers:CAUSAL"),
        help="Count causal attention in full, or by half as its mask leaves about half of the scores.",
    )  # fmt: skip
    precision: str = option(
        "fp32", group=NETWORK_GROUP, type=PrecisionNames("precision", ".units:PRECISION_BYTES"), metavar="NAME",
        help="Precision of the arithmetic on the device.",
    )  # fmt: skip


_Predicted = TypeVar("_Predicted", Prediction, PipelinePrediction)

CAUSAL = ("full", "half")
"""How causal attention counts: all scores, or half of them."""

_HALF_NOTE = (
    "causal attention counts by half in {}; it counts in full where the mask is a tensor, "
    "or attention is not a single kernel"
)


def answer(question: Layers) -> LayerCounts | CountsComparison | PipelineCounts:
    """Return the counts of a network or a pipeline, or of several networks side by side.

    Raise PaleoError for an unknown name, an invalid value or a malformed file.
    """
    if question.gpu is None:
        for name in question.given():
            if name in _OF_A_DEVICE:
                raise BadValue(f"{_OF_A_DEVICE[name]} of a device: give `--gpu`, such as --gpu h100-sxm")
    network: Any = question.network
    pipeline = find_pipeline(network) if isinstance(network, str) else None
    if pipeline is not None:
        return _count_parts(pipeline, question)
    PictureOptions(steps=question.steps, frames=question.frames).check_absent(network)
    if type(network) in (list, tuple):
        return CountsComparison(tuple(_count_one(each_network, question) for each_network in network))
    return _count_one(network, question)


_OF_A_DEVICE = {
    "site": "the energy at the meter is that",
    "clock": "`--clock` is that",
    "power_limit": "`--power-limit` is that",
    "unit": "`--unit` is that",
    "hardware_files": "`--hardware-file` is the file",
}
"""Options without a meaning where no device is given, and how messages begin that refuse them."""

layers = make_function("layers", Layers, answer)


def _count_parts(pipeline: Pipeline, question: Layers) -> PipelineCounts:
    """Count the parts of a pipeline."""
    options = options_of(Layers)
    for name in ("convention", "phase", "sequence_length", "inputs", "ignore", "execution", "causal"):
        if name in question.given():
            spelling = documented_spelling(name, options[name])
            raise BadValue(f"`{spelling}` cannot be used with {pipeline.name}, a pipeline for pictures or videos")
    sampling = make_sampling(
        pipeline,
        image_size=question.image_size,
        images=question.batch_size,
        steps=question.steps,
        frames=question.frames,
    )
    counted = count_pipeline(pipeline, sampling)
    if question.gpu is None:
        return counted
    device_question = structs.replace(
        _ask_device(question, pipeline.name),
        image_size=question.image_size,
        pictures=PictureOptions(steps=question.steps, frames=question.frames),
    )
    return _with_costs_of_parts(counted, predict_pictures(device_question), question.facility)


def _count_one(network: str | Network | nn.Module, question: Layers) -> LayerCounts:
    """Count one network."""
    execution = question.execution
    check_execution(execution, question.phase)
    length: Any = question.sequence_length  # a single one
    resolved = resolve_network(
        network,
        square_size(question.image_size, network),
        question.inputs,
        SequenceOptions(length),
    )
    costs = None
    if question.gpu is not None:
        device_question = structs.replace(_ask_device(question, resolved), phase=question.phase, execution=execution)
        costs = _costs_of(predict_pass(device_question), question.facility)
    if question.causal == "half":
        halved_layers, number = count_half_of_causal(resolved.layers)
        note = _HALF_NOTE.format(f"{number} layer{'' if number == 1 else 's'}")
        resolved = resolved._replace(layers=tuple(halved_layers), notes=(*resolved.notes, note))
    if execution in MIXED_EXECUTIONS:
        from ..counting.autocast import insert_casts

        resolved = resolved._replace(layers=insert_casts(resolved.layers))
    counts = count_network(
        resolved, question.convention, phase=question.phase, batch_size=question.batch_size, ignore=question.ignore
    )
    counts = structs.replace(counts, costs=costs)
    if execution == "eager":
        return counts
    from ..counting.fusion import fuse

    return structs.replace(counts, work=fuse(resolved.layers, counts.work, execution))


def _ask_device(question: Layers, network: str | Network) -> Question:
    """Return the question of the seconds and joules on the device."""
    gpu: Any = question.gpu  # a single one
    return Question(
        network,
        gpu,
        power_limit=question.power_limit,
        clock=question.clock,
        unit=question.unit,
        hardware_files=question.hardware_files,
        precision=question.precision,
        batch_size=question.batch_size,
    )


def _costs_of(prediction: Prediction, facility: Facility | None) -> LayerCosts:
    """Return the seconds and joules of all layers, and the energy of the step at the meter of a facility."""
    prediction = structs.replace(_check_power(prediction), facility=facility)
    joules = prediction.layers_energy_j
    assert joules is not None and prediction.energy_j is not None
    return LayerCosts(
        gpu=prediction.device.id,
        precision=prediction.precision,
        layers_s=tuple(prediction.terms.layers_s.sum(axis=0).tolist()),
        layers_j=tuple(joules.tolist()),
        overhead_s=prediction.terms.overhead_s,
        overhead_j=prediction.energy_j - float(joules.sum()),
        site=None if prediction.site is None else prediction.site.to_dict(),
        surroundings="" if facility is None else facility.describe(),
    )


def _with_costs_of_parts(
    counts: PipelineCounts, prediction: Prediction | PipelinePrediction, facility: Facility | None
) -> PipelineCounts:
    """Return the counts of a pipeline with the seconds and joules of its parts and kinds of layers.

    Energy at the meter of a facility is that of a batch.
    """
    assert isinstance(prediction, PipelinePrediction)
    prediction = structs.replace(_check_power(prediction), facility=facility)
    parts = [
        {**row, "time_s": costs["time_s"], "energy_j": costs["energy_j"]}
        for row, costs in zip(counts.rows(), prediction.rows(), strict=True)
    ]
    on = {
        "gpu": prediction.device.id,
        "precision": prediction.precision,
        "time_s": prediction.time_s,
        "energy_j": prediction.energy_j,
        "site": None if prediction.site is None else prediction.site.to_dict(),
    }
    surroundings = "" if facility is None else facility.describe()
    return structs.replace(counts, parts=parts, on=on, by_kind=prediction.by_kind(), surroundings=surroundings)


def _check_power(prediction: _Predicted) -> _Predicted:
    """Return a prediction; raise BadValue unless its power is known."""
    if prediction.energy_j is None or not prediction.is_forecast:
        raise BadValue(
            f"there is no forecast of joules for {prediction.device.name} in {prediction.precision}: choose another "
            "`--gpu`, or leave it out"
        )
    return prediction


@overload
def rule(operation: str | type, function: UserRule, *, macs: bool = False) -> UserRule: ...
@overload
def rule(operation: str | type, *, macs: bool = False) -> Callable[[UserRule], UserRule]: ...


def rule(operation: str | type, function: UserRule | None = None, *, macs: bool = False) -> Any:
    """Register a counting rule for an operation or a class of modules.

    Parameters
    ----------
    operation : str or class
        Name of an operation as notes give it (``"aten.erfinv"``, ``"my_library.my_operation"``); a layer kind of
        docs/counting.md (``"softmax"``), whose rule is replaced; or a class of modules: every module of exactly this
        class counts as one layer, regardless of its submodules.
    function : callable, optional
        Function from a `Layer`, with the shapes of one sample (``inputs``, ``outputs``, ``weights``), to the FLOPs of
        its forward pass; each gradient then counts the same. Or a function to three numbers: forward pass, data
        gradient, weight gradient. Without it `rule` is a decorator.
    macs : bool
        Whether the function returns multiply-accumulates, 2 FLOPs each, which can run on tensor cores.

    Notes
    -----
    The bytes are those of one kernel that reads operands and weights once and writes its result. Results name the
    layers that a registered rule counted. A later rule replaces an earlier one.

    Examples
    --------
    >>> import paleo_lite as pl
    >>> from math import prod
    >>> @pl.rule("aten.erfinv")  # doctest: +SKIP
    ... def erfinv(layer):
    ...     return 20 * prod(layer.outputs[0])
    """
    if function is None:
        return lambda function: rule(operation, function, macs=macs)
    if not callable(function):
        raise BadValue(f"a rule must be a function from a layer to a number (got {function!r})")
    add_rule(operation, function, macs)
    return function


def trace(module: nn.Module, *inputs: Any, **named_inputs: Any) -> Network:
    """Trace a module on the meta device; see `paleo_lite.architectures.trace.trace`.

    Parameters
    ----------
    module : nn.Module
        Module to trace; it is not changed.
    *inputs, **named_inputs
        Arguments of its ``forward``, as tensors or shapes; the first dimension is the batch.

    Returns
    -------
    Network

    Raises
    ------
    MissingExtra
        If torch is not installed.
    TraceFailed
        If the module's forward fails or needs the value of a tensor.
    """
    from ..architectures.torch_import import import_torch

    import_torch()
    from ..architectures.trace import trace as trace_module

    return trace_module(module, *inputs, **named_inputs)
