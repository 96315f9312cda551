"""`predict`, and what of a question it shares with `scale`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

# First of all: where typing_extensions is installed msgspec imports it, and numpy behind it takes 60 ms longer.
import numpy  # noqa: F401

from ..architectures import Network, find_network, trace_factory
from ..architectures.catalog import HUGGING_FACE, networks_of_macs
from ..architectures.network import Tokens
from ..calibration.choose import choose_model
from ..counting import GENERATING
from ..counting.work import ENGINE
from ..errors import BadValue, PaleoError
from ..machines import Device, Machine, find_device
from ..timing import Prediction, TimeModel, Workload, find_model
from ..timing import predict as predict_workload
from ..timing.models import LEARNT
from ..units import element_bytes, parse_quantity
from .question import refuse_unknown

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Unpack

    from ..calibration.several import Predictions
    from ..calibration.store import Calibration
    from ..timing.workload import TrainingOptions


class Common(TypedDict, total=False):
    """What `predict` and `scale` both may be told; see `predict`."""

    precision: str
    training: TrainingOptions | None
    image_size: int | None
    sequence_length: int | None
    inputs: Sequence[str | Sequence[int]]
    clock: str | None
    unit: str | None
    hardware_files: Sequence[str | Path]
    time_model: str | None
    ppp: float | None
    calibration: str | Calibration | None


class Question(Common, total=False):
    """What `predict` may be told besides; see there."""

    batch_size: int
    phase: str
    context: int | None
    weights: str | None
    execution: str | None
    convention: str
    concurrent: bool


_OF_MODELS = ("time_model", "ppp", "concurrent", "calibration")


def predict(
    network: str | Network | nn.Module | None = None,
    *,
    gpu: str | Device,
    flops: float | str | None = None,
    macs: float | str | None = None,
    fit_batch: bool = False,
    memory: bool = False,
    **question: Unpack[Question],
) -> Prediction:
    """Predict how long a network takes on a device.

    Parameters
    ----------
    network : str, Network or nn.Module
        A shipped network's name, a descriptor's path, ``package.module:factory`` (imported and
        called: it runs that module's code), a traced network, or a module.
    gpu : str or Device
        Device, by name or alias, such as ``"k80"`` or ``"v100-sxm2"``.
    precision : {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"}
        Precision of the arithmetic.
    batch_size : int
        Samples per pass.
    phase : {"inference", "forward", "backward", "training", "prefill", "decode"}
        The last two are of networks that write text: the prompt at once, then a token of each sequence.
    time_model : {"peak", "ppp", "roofline", "calibrated"}, optional
        How times are predicted: without it ``ppp`` where `ppp` is given, ``peak`` of a FLOP count, else ``calibrated``,
        from fits of the device or of others; ``roofline`` where no fit covers it.
    ppp : float, optional
        Share of peak that the platform reaches, for the model ``ppp``; may exceed 1.
    concurrent : bool
        With `ppp`: the larger of arithmetic and memory time, not the sum.
    convention : {"flops", "macs", "pthflops", "lu2017", "paleo"}
        How FLOPs are counted.
    clock : {"base", "boost"}, optional
        Clock of the device; without it the device's own.
    unit : {"vector", "tensor"}, optional
        Arithmetic units; without it the faster ones.
    image_size : int, optional
        Another image size than the network's own; needs torch once.
    sequence_length : int, optional
        Tokens of a sequence, of networks that read them, in ``prefill`` of the prompt; without it what the model knows,
        2048 at most.
    context : int, optional
        For the phase ``decode``: tokens in the cache already.
    inputs : sequence of shapes or str
        For a factory or module: the shape of one sample per input, without the batch dimension; as text with a type
        (``"int64:128"``) and the argument's name (``"input_ids=int64:128"``).
    flops : float or str, optional
        FLOPs of one sample in place of a network, such as ``"30.97G"``; a multiply-accumulate counts as 2.
    macs : float or str, optional
        Multiply-accumulates of one sample in place of a network, such as ``"15503M"``: 2 FLOPs each.
    hardware_files : sequence of paths
        Further hardware TOMLs.
    calibration : str or Calibration, optional
        A calibration's path or shipped name, with the host that it was measured on; without it what the shipped ones
        say of the device under PyTorch.
    training : TrainingOptions, optional
        Optimizer, mixed precision, checkpointing and accumulation; for the phase ``training`` only. Without it plain
        gradient descent.
    fit_batch : bool
        Take the largest batch that fits into the device's memory.
    memory : bool
        Also work out the peak memory at inference; of training it always is.
    execution : {"eager", "autocast", "channels-last", "megatron", "compiled", "folded", "engine"}, optional
        What is cast or fused: nothing; casts of mixed precision; images as channels last; attention's softmax and
        residuals, as Megatron-LM; at inference pointwise chains; also batch norms into convolutions; as engines do.
        Without it ``engine`` for prefill and decode, else ``eager``.
    weights : {"bf16", "fp8", "int8", "int4", ...}, optional
        What matrices are kept in at inference; without it the precision.

    Returns
    -------
    Prediction
        With ``time_s``, ``throughput_per_s``, ``to_dict()``, ``to_frame()``.

    Raises
    ------
    PaleoError
        One of its classes: an unknown name, an impossible value, a precision that the device lacks, a bad file.

    Examples
    --------
    >>> import paleo_lite as pl
    >>> pl.predict("vgg16", gpu="k80", precision="fp64").time_s  # doctest: +SKIP
    """
    if not question.keys() <= Question.__annotations__.keys():
        refuse_unknown("predict", question, (*inspect.signature(predict).parameters, *Question.__annotations__))
    if (network, flops, macs).count(None) != 2:
        raise BadValue("a prediction takes a network, a FLOP count or a MAC count: one of the three")
    if network is None:
        if question.get("calibration") is not None or fit_batch or memory:
            raise BadValue(
                "calibrations and memory need the layers of a network, which a bare FLOP count does not have"
            )
        return _of_count(flops, macs, gpu, dict(question))
    if fit_batch and question.get("batch_size", 1) != 1:
        raise BadValue("fitting the batch chooses its size: leave the batch size out")
    # Whoever names a model of the data sheet's figures asks about the whole board.
    is_whole = question.get("ppp") is not None or question.get("time_model") not in (None, LEARNT)
    workload, machine, model = nouns(network, gpu, dict(question), is_whole)
    if (
        workload.training is None
        and not fit_batch
        and not memory
        and workload.phase in ("inference", "forward", "prefill")
    ):
        return predict_workload(workload, machine, model)
    from ..timing.capacity import predict_with_memory

    return predict_with_memory(workload, machine, model, fit_batch=fit_batch)


def nouns(
    network: str | Network | nn.Module, gpu: str | Device, asked: dict[str, Any], is_whole: bool = False
) -> tuple[Workload, Machine, TimeModel]:
    """What is computed, where, and the model that answers of it, out of what was asked; of a board one device."""
    known = {name: asked.pop(name) for name in _OF_MODELS if name in asked}
    device = find_device(gpu, asked.pop("hardware_files", ()))
    make = Machine if is_whole else Machine.one_of
    machine = make(device, asked.pop("clock", None), asked.pop("unit", None))
    precision, phase = asked.setdefault("precision", "fp32"), asked.setdefault("phase", "inference")
    element_bytes(precision)
    asked["execution"] = asked.get("execution") or (ENGINE if phase in GENERATING else "eager")
    if (training := asked.get("training")) is not None:
        asked["precision"], asked["training"] = training.split_precision(precision)
        known["products"] = asked["training"].products
    model = choose_model(machine.device, asked["precision"], **known, execution=asked["execution"])
    tokens = Tokens(asked.pop("sequence_length", None), asked.pop("context", None), phase)
    resolved = resolve(network, asked.pop("image_size", None), asked.pop("inputs", ()), tokens)
    return Workload(resolved, **asked), machine, model


def resolve(
    network: str | Network | nn.Module, image_size: int | None, inputs: Sequence[str | Sequence[int]],
    tokens: Tokens | None = None,
) -> Network:  # fmt: skip
    """The network that a name, factory or module stands for."""
    given = list(inputs)
    tokens = tokens or Tokens()
    if isinstance(network, str) and ":" not in network and not given:
        return find_network(network, image_size, tokens)
    if isinstance(network, Network) and network.remade is not None:
        return network if _is_made_for(network, tokens) else network.remade(tokens)
    hugging_face = isinstance(network, str) and network.startswith(HUGGING_FACE)
    if (tokens.context and not hugging_face) or (tokens.length and isinstance(network, Network)):
        raise BadValue("--sequence-length and --context are for networks by name or config: others have their inputs")
    if isinstance(network, Network):
        return network
    if not isinstance(network, str):
        from ..architectures.inputs import read_input
        from ..architectures.lengths import trace_inputs

        if not given:
            raise BadValue("a module needs the shape of its inputs: inputs=[(3, 224, 224)]")
        return trace_inputs(network, [read_input(one) for one in given], tokens.length)
    if ":" in network:
        return trace_factory(network, given, image_size, tokens)
    raise BadValue("--input is for package.module:factory; a shipped network takes --image-size")


def _is_made_for(network: Network, tokens: Tokens) -> bool:
    """Whether a network from a config has the layers of a phase, for as many tokens as are asked."""
    if network.lengths is None or tokens.length or tokens.context:
        return False
    writes = network.lengths.keys > network.lengths.queries  # to tokens that are in the cache already
    return network.lengths.cached == (tokens.phase in GENERATING) and writes == (tokens.phase == "decode")


def _of_count(
    flops: float | str | None, macs: float | str | None, gpu: str | Device, asked: dict[str, Any]
) -> Prediction:
    """Predict a bare count, of the whole board; one that looks like MACs given as FLOPs is questioned."""
    known = {name: asked.pop(name) for name in ("time_model", "ppp", "concurrent") if name in asked}
    asked.pop("calibration", None)
    if not asked.get("execution"):
        asked["execution"] = ENGINE if asked.get("phase") in GENERATING else "eager"
    device = find_device(gpu, asked.pop("hardware_files", ()))
    machine = Machine(device, asked.pop("clock", None), asked.pop("unit", None))
    if known.get("ppp") is None and not known.get("concurrent"):
        known["time_model"] = known.get("time_model") or "peak"
    model = find_model(known.pop("time_model", None), **known)
    if macs is not None:
        return predict_workload(Workload.of_flops(2 * parse_quantity(macs, "MAC"), **asked), machine, model)
    given = parse_quantity(flops or 0, "FLOP")
    notes = tuple(
        f"{name} has about as many multiply-accumulates, of 2 FLOPs each: for a MAC count say --macs {flops}"
        for name in networks_of_macs(given)[:1]
    )
    return predict_workload(Workload.of_flops(given, notes=notes, **asked), machine, model)


def predict_several(
    networks: Sequence[str | Network | nn.Module | None],
    *,
    gpus: Sequence[str | Device],
    precisions: Sequence[str] = ("fp32",),
    phases: Sequence[str] = ("inference",),
    batch_sizes: Sequence[int] = (1,),
    **question: Any,
) -> Predictions:
    """Predict every combination, beside each other: networks first, then devices, precisions, phases, batch sizes.

    Parameters
    ----------
    networks, gpus, precisions, phases, batch_sizes : sequence
        One or more of what `predict` takes one of.
    **question
        What else `predict` takes, of all alike.

    Returns
    -------
    Predictions
        With ``rows()``, ``speedup(prediction)``, ``to_dict()``, ``to_frame()``.

    Raises
    ------
    PaleoError
        One of its classes: of names, and of a combination that cannot be predicted where none can.
    """
    from ..calibration.several import Predictions

    refuse_unknown("predict", question, (*inspect.signature(predict).parameters, *Question.__annotations__))
    shapes = question.pop("image_size", None), question.pop("inputs", ())
    lengths = question.pop("sequence_length", None), question.pop("context", None)
    devices = [find_device(gpu, question.get("hardware_files", ())) for gpu in gpus]
    predictions: list[Prediction] = []
    failures: dict[str, PaleoError] = {}
    resolved = {
        (number, phase): None if network is None else resolve(network, *shapes, Tokens(*lengths, phase))
        for number, network in enumerate(networks) for phase in phases
    }  # fmt: skip
    numbers = range(len(networks))
    for number, device, precision, phase, batch_size in product(numbers, devices, precisions, phases, batch_sizes):
        network = resolved[number, phase]
        try:
            asked = {"precision": precision, "phase": phase, "batch_size": batch_size, **question}
            predictions.append(predict(network, gpu=device, **{"memory": network is not None, **asked}))
        except PaleoError as error:
            failures[f"{network.name if network else 'the count'} on {device.id} in {precision}: {error}"] = error
    if not predictions:
        raise next(iter(failures.values()), BadValue("name a network, a device, a precision, a phase and a batch size"))
    return Predictions(predictions, tuple(failures))
