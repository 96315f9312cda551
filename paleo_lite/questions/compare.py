"""Comparisons: all combinations of the values of a question, and what answers of one kind have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from ..architectures import Network
from ..errors import BadFile, BadValue, PaleoError, UnknownName
from .option import Options, documented_spelling, options_of

if TYPE_CHECKING:
    from ..calibration.side_by_side import AnyPrediction, Predictions
    from ..machines import Device

Q = TypeVar("Q", bound=Options)

ATTENTION_KINDS = ("attention", "matmul")
"""Kinds of layers that compute attention, in one kernel or in several."""

_IN_ROWS = ("network", "gpu", "precision", "phase", "batch_size")
"""Options that a row of a comparison always shows."""


def combinations(question: Q, order: Sequence[str]) -> Iterator[Q]:
    """Yield the question with every combination of its values, the last option of `order` varying fastest.

    Raises
    ------
    BadValue
        If an option that is not in `order` has several values.
    """
    check_single(question, order)
    values = [value if isinstance(value := getattr(question, name), list) else [value] for name in order]
    for combination in product(*values):
        yield replace(question, **dict(zip(order, combination, strict=True)))  # type: ignore[type-var]


def check_single(question: Options, allowed: Sequence[str]) -> None:
    """Check that only the allowed options have several values."""
    declared = options_of(type(question))
    for name in question.several():
        if name not in allowed and name in declared:
            raise BadValue(f"`{documented_spelling(name, declared[name])}` must be one value in this question")


def compare_predictions(question: Q, order: Sequence[str], answer: Callable[[Q], AnyPrediction]) -> Predictions:
    """Return the predictions of all combinations; those that fail are left out, with the reason.

    Raises
    ------
    PaleoError
        If all of them fail, or a name does not exist.
    """
    from ..calibration.side_by_side import Predictions

    others = [name for name in question.several() if name not in _IN_ROWS]
    predictions: list[AnyPrediction] = []
    settings: list[dict[str, Any]] = []
    failures: dict[str, PaleoError] = {}
    for single in combinations(question, order):
        try:
            predictions.append(answer(single))
        except (UnknownName, BadFile):
            raise  # a name or a file that does not exist is a mistake, not a combination that fails
        except PaleoError as error:
            failures[f"{_describe(single)}: {error}"] = error
        else:
            settings.append({name: getattr(single, name) for name in others})
    if not predictions:
        raise next(iter(failures.values()))
    return Predictions(predictions, tuple(failures), settings if others else ())


def _describe(question: Any) -> str:
    """Return the words that name one combination in a message."""
    network, gpu = question.network, question.gpu
    name = "the FLOP count" if network is None else getattr(network, "name", network)
    precision = "" if question.precision is None else f" in {question.precision}"
    return f"{name} on {getattr(gpu, 'id', gpu)}{precision}"


def find_limited_device(gpu: Any, power_limit: float | str | None, hardware_files: Any) -> Device:
    """Return the device under its power limit; raise BadValue if no device is given."""
    if gpu is None:
        raise BadValue("give the device with `--gpu`, such as `--gpu h100-sxm` (`paleo-lite hardware list` shows all)")
    from ..api.arguments import to_paths
    from ..machines import find_device

    device = find_device(gpu, to_paths(hardware_files))
    if power_limit is None:
        return device
    from ..timing.energy import with_power_limit

    return with_power_limit(device, power_limit)


FULL_PRECISION = "fp32"
"""Precision of a network for which none is given, unless it is a language model."""

HALF_PRECISIONS = ("bf16", "fp16")
"""Precisions in which checkpoints of language models are stored and run, the usual one first."""


def with_usual_precision(question: Q, named: str | None = None) -> Q:
    """Return the question with a precision: the given one, or the usual one of the network on the device.

    `named` is the device that a topology names, for a question without one.
    """
    asked: Any = question
    if asked.precision is not None:
        return question
    return replace(question, precision=_usual_precision(asked, asked.gpu or named))  # type: ignore[type-var]


def _usual_precision(question: Any, gpu: Any) -> str:
    """Return the usual precision: of a language model the first of `HALF_PRECISIONS` that the device has."""
    is_name = isinstance(question.network, str) and ":" not in question.network
    if not is_name and not isinstance(question.network, Network):
        return FULL_PRECISION  # of a count, or of a module of one's own, which would have to be traced twice
    from ..api.resolve import resolve_network, square_size

    size = square_size(question.image_size, question.network)
    if not resolve_network(question.network, size, question.inputs).is_language_model:
        return FULL_PRECISION
    if gpu is None:  # of a topology or a platform, which are not older than the half precisions
        return HALF_PRECISIONS[0]
    from ..api.arguments import to_paths
    from ..machines import Machine, find_device

    device = find_device(gpu, to_paths(question.hardware_files))
    available = {peak.precision for peak in Machine.single_device(device).device.peaks}
    return next((name for name in HALF_PRECISIONS if name in available), FULL_PRECISION)


def check_network_options(question: Any, phase: str) -> None:
    """Check that no option is given of a part that the network does not have.

    Raises
    ------
    BadValue
        For `attention` without attention, and `loss` without tokens.
    """
    asks_for_loss = getattr(question, "loss", None) is not None
    if question.network is None or (question.attention is None and not asks_for_loss):
        return
    from ..api.resolve import resolve_network, square_size
    from ..architectures.network import SequenceOptions

    size = square_size(question.image_size, question.network)
    sequence = SequenceOptions(question.sequence_length, getattr(question, "context", None), phase)
    network = resolve_network(question.network, size, question.inputs, sequence)
    if question.attention is not None and not any(layer.kind in ATTENTION_KINDS for layer in network.layers):
        raise BadValue(f"`--attention` is for networks with attention, which {network.name} does not have")
    if asks_for_loss and network.tokens is None:
        raise BadValue(f"`--loss` is for language models, which {network.name} is not")


def check_no_pipeline(network: Any, command: str) -> None:
    """Check that a network is no pipeline for pictures or videos, which is asked with `diffusion`."""
    if not isinstance(network, str):
        return
    from ..architectures.pipelines.sampling import find_pipeline

    if find_pipeline(network) is not None:
        raise BadValue(
            f"{network} is a pipeline for pictures or videos: ask `paleo-lite diffusion {network}` instead of {command}"
        )


def document_of(result: Any, shown: Mapping[str, Any], *, memory: bool) -> Any:
    """Return the document of a result: of one prediction with the layer that is explained, or its slowest layers.

    Raises
    ------
    BadValue
        If a layer is to be explained, and the result has several predictions.
    """
    from ..timing import Prediction

    if not isinstance(result, Prediction):
        if shown.get("explain"):
            raise BadValue("`--explain` needs a single prediction: give one value of every option, and one device")
        return result.document()
    from ..reporting.predictions import explain_layer, prediction_page

    if shown.get("explain"):
        return explain_layer(result, shown["explain"])
    return prediction_page(result, shown.get("top"), memory)
