"""`layers`, `rule` and `trace`: count the operations of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec import structs

from ..architectures import CountsComparison, LayerCounts, Network, count_network
from ..architectures.counts import LayerCosts
from ..architectures.network import SequenceOptions
from ..architectures.pipelines.counts import PipelineCounts, count_pipeline
from ..architectures.pipelines.sampling import find_pipeline, make_sampling
from ..counting import find_convention
from ..counting.kinds import UserRule, add_rule
from ..counting.kinds.products import count_half_of_causal
from ..counting.work import MIXED_EXECUTIONS, check_execution
from ..errors import BadValue, UnknownName
from ..machines import Device, find_device
from ..timing import Prediction
from ..timing.energy import with_power_limit
from ..timing.facility import Facility, facility_of_site
from ..timing.pipeline_prediction import PipelinePrediction
from .arguments import InputShapes
from .pipelines import check_others
from .prediction import predict_pass, predict_pictures
from .question import PictureOptions, Question
from .resolve import resolve_network, square_size

if TYPE_CHECKING:
    from torch import nn

_Predicted = TypeVar("_Predicted", Prediction, PipelinePrediction)

CAUSAL = ("full", "half")
"""How causal attention counts: all scores, or half of them."""

_HALF_NOTE = (
    "causal attention counts by half in {}; it counts in full where the mask is a tensor, "
    "or attention is not a single kernel"
)


@overload
def layers(
    network: str | Network | nn.Module,
    *,
    convention: str = "flops",
    phase: str = "inference",
    batch_size: int = 1,
    image_size: int | str | None = None,
    steps: int | None = None,
    frames: int | None = None,
    sequence_length: int | None = None,
    inputs: InputShapes = (),
    ignore: Sequence[str] = (),
    execution: str = "eager",
    causal: str = "full",
    gpu: str | Device | None = None,
    precision: str = "fp32",
    clock: str | None = None,
    power_limit: float | str | None = None,
    site: Mapping[str, float | str] | None = None,
) -> LayerCounts | PipelineCounts: ...
@overload
def layers(
    network: Sequence[str | Network | nn.Module],
    *,
    convention: str = "flops",
    phase: str = "inference",
    batch_size: int = 1,
    image_size: int | str | None = None,
    steps: int | None = None,
    frames: int | None = None,
    sequence_length: int | None = None,
    inputs: InputShapes = (),
    ignore: Sequence[str] = (),
    execution: str = "eager",
    causal: str = "full",
    gpu: str | Device | None = None,
    precision: str = "fp32",
    clock: str | None = None,
    power_limit: float | str | None = None,
    site: Mapping[str, float | str] | None = None,
) -> CountsComparison: ...


def layers(
    network: Any,
    *,
    convention: str = "flops",
    phase: str = "inference",
    batch_size: int = 1,
    image_size: int | str | None = None,
    steps: int | None = None,
    frames: int | None = None,
    sequence_length: int | None = None,
    inputs: InputShapes = (),
    ignore: Sequence[str] = (),
    execution: str = "eager",
    causal: str = "full",
    gpu: str | Device | None = None,
    precision: str = "fp32",
    clock: str | None = None,
    power_limit: float | str | None = None,
    site: Mapping[str, float | str] | None = None,
) -> LayerCounts | CountsComparison | PipelineCounts:
    """Count FLOPs, bytes and parameters of a network layer by layer, or compare the totals of several networks.

    Parameters
    ----------
    network : str, Network or nn.Module, or a sequence of these
        As for `predict`.
    convention : {"flops", "macs", "pthflops", "lu2017", "paleo"}
        Convention of the FLOP count.
    phase : str
        ``inference``, ``forward``, ``backward``, ``training``, or a single pass of training.
    batch_size : int
        Samples per pass; of a pipeline pictures or videos.
    image_size, steps, frames, sequence_length, inputs
        As for `predict`.
    ignore : sequence of str
        Names or glob patterns of layers to leave out.
    execution : {"eager", "autocast", "channels-last", "megatron", "compiled", "folded"}
        Kernel fusion and casts, as for `predict`; folding changes the FLOP count.
    causal : {"full", "half"}
        Whether causal attention counts in full, or by half as its mask leaves about half of the scores.
    gpu : str or Device, optional
        Device on which each layer and kind of layer gets its predicted seconds and joules; the kinds are ranked by
        joules.
    precision : str
        Precision on that device, as for `predict`.
    clock, power_limit
        Clock and power limit of that device, as for `predict`.
    site : dict, optional
        As for `predict`, for the energy of a step at the meter.

    Returns
    -------
    LayerCounts, CountsComparison or PipelineCounts
        A `CountsComparison` for a sequence of networks, a `PipelineCounts` for a pipeline. All have
        ``rows()``, ``to_dict()``, ``to_frame()``.

    Raises
    ------
    PaleoError
        For an unknown name, an invalid value or a malformed file.
    """
    facility = facility_of_site(site)
    if facility is not None and gpu is None:
        raise BadValue("the energy at the meter is that of a device: give `--gpu`, such as --gpu h100-sxm")
    if gpu is None and (clock is not None or power_limit is not None):
        raise BadValue("`--clock` and `--power-limit` are those of a device: give `--gpu`, such as --gpu h100-sxm")
    if gpu is not None and power_limit is not None:
        gpu = with_power_limit(find_device(gpu), power_limit)
    if isinstance(network, str) and (pipeline := find_pipeline(network)) is not None:
        check_others(
            pipeline,
            {
                "--convention": (convention, "flops"),
                "--phase": (phase, "inference"),
                "--sequence-length": (sequence_length, None),
                "--input": (tuple(inputs), ()),
                "--ignore": (tuple(ignore), ()),
                "--execution": (execution, "eager"),
                "--causal": (causal, "full"),
            },
        )
        sampling = make_sampling(pipeline, image_size=image_size, images=batch_size, steps=steps, frames=frames)
        counted = count_pipeline(pipeline, sampling)
        if gpu is None:
            return counted
        question = Question(
            network,
            gpu,
            precision=precision,
            clock=clock,
            image_size=image_size,
            batch_size=batch_size,
            pictures=PictureOptions(steps=steps, frames=frames),
        )
        return _with_costs_of_parts(counted, predict_pictures(question), facility)
    PictureOptions(steps=steps, frames=frames).check_absent(network)
    image_size = square_size(image_size, network)
    is_sequence = isinstance(network, (list, tuple)) and not isinstance(network, Network)
    networks = network if is_sequence else [network]
    if not networks:
        raise BadValue("give at least one network")
    counts = [
        _count_one(
            each_network,
            convention=convention,
            phase=phase,
            batch_size=batch_size,
            image_size=image_size,
            sequence_length=sequence_length,
            inputs=inputs,
            ignore=ignore,
            execution=execution,
            causal=causal,
            gpu=gpu,
            precision=precision,
            clock=clock,
            facility=facility,
        )
        for each_network in networks
    ]
    if is_sequence:
        return CountsComparison(tuple(counts))
    return counts[0]


def _count_one(
    network: str | Network | nn.Module,
    *,
    convention: str,
    phase: str,
    batch_size: int,
    image_size: int | None,
    sequence_length: int | None,
    inputs: InputShapes,
    ignore: Sequence[str],
    execution: str,
    causal: str,
    gpu: str | Device | None,
    precision: str,
    clock: str | None,
    facility: Facility | None,
) -> LayerCounts:
    """Count one network."""
    find_convention(convention)
    check_execution(execution, phase)
    if causal not in CAUSAL:
        raise UnknownName("count of causal attention", causal, CAUSAL)
    resolved = resolve_network(network, image_size, inputs, SequenceOptions(sequence_length))
    costs = None
    if gpu is not None:
        costs = _costs_of(
            predict_pass(
                Question(
                    resolved,
                    gpu=gpu,
                    precision=precision,
                    clock=clock,
                    phase=phase,
                    batch_size=batch_size,
                    execution=execution,
                )
            ),
            facility,
        )
    if causal == "half":
        halved_layers, number = count_half_of_causal(resolved.layers)
        note = _HALF_NOTE.format(f"{number} layer{'' if number == 1 else 's'}")
        resolved = resolved._replace(layers=tuple(halved_layers), notes=(*resolved.notes, note))
    if execution in MIXED_EXECUTIONS:
        from ..counting.autocast import insert_casts

        resolved = resolved._replace(layers=insert_casts(resolved.layers))
    counts = count_network(resolved, convention, phase=phase, batch_size=batch_size, ignore=ignore)
    counts = structs.replace(counts, costs=costs)
    if execution == "eager":
        return counts
    from ..counting.fusion import fuse

    return structs.replace(counts, work=fuse(resolved.layers, counts.work, execution))


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
    """Return a prediction whose power is known.

    Raises
    ------
    BadValue
        If it is none.
    """
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
