"""Comparisons: all combinations of the values of a question, and what answers of one kind have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..architectures import Network
from ..architectures.catalog import is_factory
from ..counting import GENERATION_PHASES
from ..errors import BadFile, BadValue, PaleoError, UnknownName
from ..progress import report as report_progress
from .option import Options, documented_spelling, options_of

if TYPE_CHECKING:
    from ..machines import Device
    from ..sweeps.comparison import Comparison

Q = TypeVar("Q", bound=Options)
A = TypeVar("A")

ATTENTION_KINDS = ("attention", "matmul")
"""Kinds of layers that compute attention, in one kernel or in several."""


def compare(
    question: Q,
    answer: Callable[[Q], A],  # function from a question with single values to its answer
    order: Sequence[str] = (),  # options from the one that varies slowest to the fastest; others follow
    together: Collection[str] = (),  # options whose values one answer covers, such as the numbers of devices of a table
) -> A | Comparison:
    """Return the answer to a question, or to all combinations of the values of its options side by side.

    Combinations that have no answer are left out, with the reason. Raise PaleoError if no combination has an answer, or
    a name does not exist.
    """
    several = {name: values for name, values in question.several().items() if name not in together}
    if not several:
        return answer(question)
    names = [*(name for name in order if name in several), *(name for name in several if name not in order)]
    size = prod(len(values) for values in several.values())
    if size > MAX_COMPARED:
        raise BadValue(
            f"{size:,} combinations are too many to show (at most {MAX_COMPARED:,}): write them to a file with "
            "`-o rows.parquet`"
        )
    answers: list[A] = []
    settings: list[dict[str, Any]] = []
    failures: dict[str, PaleoError] = {}
    for number, values in enumerate(product(*(several[name] for name in names))):
        report_progress(number, size)
        values_by_name = dict(zip(names, values, strict=True))
        single = replace(question, **values_by_name)  # type: ignore[type-var]  # every record is a dataclass
        try:
            answers.append(answer(single))
        except (UnknownName, BadFile):
            raise  # a name or a file that does not exist is a mistake, not a combination that fails
        except PaleoError as error:
            failures[f"{_describe(single, names)}: {error}"] = error
        else:
            settings.append({name: _name_of(value) for name, value in values_by_name.items()})
    if not answers:
        raise next(iter(failures.values()))
    from ..sweeps.comparison import Comparison

    stated = ("network", "gpu")
    always = {name: getattr(question, name) for name in stated if isinstance(getattr(question, name), str)}
    return Comparison(type(question).__name__.lower(), answers, settings, tuple(failures), always)


MAX_COMPARED = 2000
"""Maximum number of combinations that are shown; more are written to a file."""


def _name_of(value: Any) -> Any:
    """Return the value of an option as it is named: a device by its id."""
    return getattr(value, "id", getattr(value, "name", value))


def _describe(question: Any, names: Sequence[str]) -> str:
    """Return the words that name one combination in a message."""
    network, gpu = question.network, question.gpu
    name = "the FLOP count" if network is None else getattr(network, "name", network)
    named = getattr(question, "precision", None)
    precision = "" if named is None else f" in {named}"
    others = [f", {name.replace('_', ' ')} {getattr(question, name)}" for name in names if name not in _DESCRIBED]
    return f"{name} on {getattr(gpu, 'id', gpu)}{precision}{''.join(others)}"


_DESCRIBED = ("network", "gpu", "precision")
"""Options that `_describe` names in any case."""


def check_single(question: Options, allowed: Collection[str]) -> None:
    """Check that only the allowed options have several values."""
    declared = options_of(type(question))
    for name in question.several():
        if name not in allowed and name in declared:
            raise BadValue(f"`{documented_spelling(name, declared[name])}` must be one value in this question")


def find_asked_device(question: Any) -> Device:
    """Return the device of a question at its price; raise BadValue if none is given.

    Without a price in its own file or in the question the price is the cheapest one of a cloud.
    """
    if question.gpu is None:
        raise BadValue("give the device with `--gpu`, such as `--gpu h100-sxm` (`paleo-lite hardware list` shows all)")
    from ..files import to_paths
    from ..machines import find_device

    device = find_device(question.gpu, to_paths(question.hardware_files))
    if getattr(question, "price", None) is not None:
        from ..machines.prices import with_price

        return with_price(device, question.price_usd_per_h, question.price_of)
    if device.rent is None and device.parts is None:
        from ..machines.prices import choose_price

        return msgspec.structs.replace(device, rent=choose_price(device))
    return device


FULL_PRECISION = "fp32"
"""Precision of a network for which none is given, unless it is a language model."""


def with_usual_precision(question: Q, named: str | None = None) -> Q:
    """Return the question with a precision: the given one, or the usual one of the network on the device.

    `named` is the device that a topology names, for a question without one.
    """
    options: Any = question
    if options.precision is not None:
        return question
    return replace(question, precision=usual_precision(options, options.gpu or named))  # type: ignore[type-var]


def usual_precision(question: Any, gpu: Any) -> str:
    """Return the usual precision: of text generation and pipelines the first half precision that the device has.

    Networks with an encoder and a decoder of text, such as Whisper, generate text in prefill and decode alone.
    """
    if is_pipeline(question.network):
        return half_precision(question, gpu)
    is_name = isinstance(question.network, str) and not is_factory(question.network)
    if not is_name and not isinstance(question.network, Network):
        return FULL_PRECISION  # of a count, or of a module of one's own, which would have to be traced twice
    from ..api.question import resolve_network, square_size

    size = square_size(question.image_size, question.network)
    generates = getattr(question, "phase", "") in GENERATION_PHASES
    if generates or resolve_network(question.network, size, question.inputs).is_language_model:
        return half_precision(question, gpu)
    return FULL_PRECISION


def half_precision(question: Any, gpu: Any) -> str:
    """Return the first of the half precisions that a device has; fp32 if it has none."""
    from ..serving.products import USUAL_PRECISION, first_precision

    if gpu is None:  # of a topology or a platform, which are not older than the half precisions
        return USUAL_PRECISION
    from ..files import to_paths
    from ..machines import Machine, find_device

    return first_precision(Machine.single_device(find_device(gpu, to_paths(question.hardware_files))).device)


def published_weights(question: Any) -> str | None:
    """Return the format in which the weights of a network are published.

    None for 16 bits, for a question that names a format or a precision, and for a checkpoint of one's own, which says
    what its weights are.
    """
    is_name = isinstance(question.network, str) and not is_factory(question.network)
    if question.weights is not None or question.precision is not None or not is_name:
        return None
    from ..api.question import resolve_network

    network = resolve_network(question.network, None, ())
    if network.publication is None or network.stored_weights is not None:
        return None
    return network.publication.weights or None


def check_network_options(question: Any, phase: str) -> None:
    """Check that no option is given of a part that the network does not have.

    Raise BadValue for `attention` without attention, and `loss` without tokens.
    """
    asks_for_loss = getattr(question, "loss", None) is not None
    if question.network is None or (question.attention is None and not asks_for_loss):
        return
    from ..api.question import resolve_network, square_size
    from ..architectures.network import SequenceOptions

    size = square_size(question.image_size, question.network)
    sequence = SequenceOptions(question.sequence_length, getattr(question, "context", None), phase)
    network = resolve_network(question.network, size, question.inputs, sequence)
    if question.attention is not None and not any(layer.kind in ATTENTION_KINDS for layer in network.layers):
        raise BadValue(
            f"an implementation of attention is for networks with attention, which {network.name} does not have"
        )
    if asks_for_loss and network.tokens is None:
        raise BadValue(f"`--training-settings loss` is for language models; {network.name} is not one")


def is_pipeline(network: Any) -> bool:
    """Return whether a network is a pipeline for pictures or videos."""
    from ..architectures.pipelines.sampling import find_pipeline

    return isinstance(network, str) and find_pipeline(network) is not None


def check_no_pipeline(network: Any, command: str) -> None:
    """Check that a network is not a pipeline for pictures or videos, which is asked with `diffusion`."""
    if is_pipeline(network):
        raise BadValue(
            f"{network} is a pipeline for pictures or videos: ask `paleo-lite diffusion {network}` instead of {command}"
        )


def document_of(result: Any, shown: Mapping[str, Any], *, memory: bool) -> Any:
    """Return the document of a result: of one prediction with the layer that is explained, or its slowest layers.

    Raise BadValue if a layer is to be explained, and the result has several predictions.
    """
    from ..timing import Prediction

    if isinstance(result, Prediction):
        if shown.get("explain"):
            from ..reporting.explanations import explain_layer

            return explain_layer(result, shown["explain"])
        from ..reporting.predictions import prediction_page

        return prediction_page(result, shown.get("top"), memory)
    if shown.get("explain"):
        raise BadValue("`--explain` needs a single prediction: give one value of every option, and one device")
    from ..distributed.table import ScaleTable

    return result.document(top=shown.get("top")) if isinstance(result, ScaleTable) else result.document()


def choose_chart(result: Any, *, of_one: str, of_table: str) -> str:
    """Return the kind of chart of one prediction, of a table over numbers of devices, or of several answers."""
    from ..timing import Prediction

    if isinstance(result, Prediction):
        return of_one
    from ..distributed.table import ScaleTable

    return of_table if isinstance(result, ScaleTable) else "devices"


def default_optimizer(question: Any) -> str:
    """Return the optimizer if none is given: AdamW of networks that read tokens and of denoisers."""
    if is_pipeline(question.network):
        return "adamw"
    if isinstance(question.network, str) and is_factory(question.network):
        return "sgd"  # of a function of one's own, which would have to be called twice
    from ..timing.optimizers import default_optimizer as default_of

    return default_of(_network_in_training(question))


def reads_tokens(question: Any) -> bool:
    """Return whether the network reads tokens."""
    return bool(_network_in_training(question).tokens)


def _network_in_training(question: Any) -> Network:
    """Return the network with the sequence length of its training."""
    from ..api.question import resolve_network, square_size
    from ..architectures.network import SequenceOptions

    size = square_size(question.image_size, question.network)
    sequence = SequenceOptions(question.sequence_length, None, "training")
    return resolve_network(question.network, size, question.inputs, sequence)
