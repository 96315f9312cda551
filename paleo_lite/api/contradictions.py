"""What a result file says of the network that it ran, where that contradicts the network of the forecast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..architectures import find_network
from ..architectures.pipelines.sampling import find_pipeline
from ..own_machines.contents import read_contents
from ..own_machines.predict import LocalPrediction
from ..result_files.text import to_number
from ..units import format_number, format_si
from .deployments import find_decoder
from .training_rows import is_training, measured_step_s

PARAMETER_TOLERANCE = 0.1
"""Relative difference of numbers of parameters that conventions explain: tied heads, heads that predict more tokens."""

WEIGHT_TOLERANCE = 0.15
"""Relative difference of bytes of weights that mixtures of formats explain: files of one name differ in a few."""

FASTEST = 0.95
"""Measured time over the bound below which no rounding explains it."""


def contradictions(facts: dict[str, Any], forecasts: Sequence[Any]) -> Iterator[str]:
    """Yield a sentence for each figure of a row that its network or its devices cannot have, beside its forecasts."""
    yield from _of_bounds(facts, forecasts)
    name = facts.get("network")
    if not name or find_pipeline(str(name)) is not None:
        return
    network = find_network(str(name))
    for what, of_network, tolerance in (
        ("parameters", network.parameters, PARAMETER_TOLERANCE),
        ("blocks", network.blocks, 0.0),
    ):
        of_file = to_number(facts.get(what))
        if of_file and of_network and abs(of_file / of_network - 1) > tolerance:
            yield (
                f"the file says {format_number(of_file)} {what}, and {network.name} has {format_number(of_network)}: "
                "check the network"
            )
    for answer in {id(forecast.answer): forecast.answer for forecast in forecasts}.values():
        if isinstance(answer, LocalPrediction):
            yield from _of_weights(facts, answer)


def _of_weights(facts: dict[str, Any], answer: LocalPrediction) -> Iterator[str]:
    """Yield a sentence if the weights of a file have other bytes than those of the network in its format."""
    of_file = to_number(facts.get("weight_bytes"))
    if not of_file:
        return
    of_network = read_contents(find_decoder(facts["network"]), answer.weights).stored_bytes
    if of_network and abs(of_file / of_network - 1) > WEIGHT_TOLERANCE:
        yield (
            f"the file says {of_file / 1e9:.1f} GB of weights, and {answer.network} in {answer.weights} has "
            f"{of_network / 1e9:.1f} GB: check the network and the format"
        )


def _of_bounds(facts: dict[str, Any], forecasts: Sequence[Any]) -> Iterator[str]:
    """Yield a sentence for each time that is shorter than the data sheets of the devices allow."""
    for forecast in forecasts:
        seconds = measured_step_s(facts) if is_training(facts) else to_number(facts.get(forecast.figure))
        bound_s = forecast.bound_s
        if bound_s and seconds and seconds < FASTEST * bound_s:
            checked = "the network, the device and the number of devices"
            if forecast.figure.startswith("tpot"):
                checked += ", and whether tokens are drafted"
            yield (
                f"a measured time of {format_si(seconds, 's')} is {seconds / bound_s:.2f} times the least that the "
                f"data sheets of its devices allow: check {checked}"
            )
