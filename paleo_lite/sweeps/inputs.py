"""What the chunks of a sweep are computed from, looked up once in each process."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..counting import Work, count
from ..counting.work import ENGINE, passes_of, trains
from ..distributed.job import gradient_bytes
from ..distributed.overlap import Buckets, make_buckets
from ..errors import PaleoError
from ..hardware import Device, Machine, find_device
from ..networks import Network, find_network
from ..timing.broadcast import Case, Stack, stack
from ..timing.memory import memory_coefficients, model_bytes
from ..timing.models import LEARNT, TimeModel, find_model
from ..timing.options import TrainingOptions, with_update
from ..timing.workload import Workload
from ..units import PRECISION_BYTES
from .contexts import at_context
from .space import AUTOMATIC, Sized

ModelOf = Callable[[Device, str, "str | None", str], TimeModel]
"""From device, precision, None or ``calibrated``, and execution to the best model there is, or a `PaleoError`."""


@lru_cache(256)
def network_of(name: Sized) -> Network:
    """A network by name and length."""
    if name.phase == "decode" and name.length is not None:
        return at_context(name.name, name.length, _of_size(2)).network
    return find_network(name.name, tokens=name.tokens)


@lru_cache(512)
def device_of(name: str, files: tuple[str, ...]) -> Device:
    """A device by name."""
    return find_device(name, [Path(file) for file in files])


@lru_cache(512)
def counted(name: Sized, number_bytes: int) -> Work:
    """A network's work with numbers of that size: what precisions of one size have in common."""
    if name.phase == "decode" and name.length is not None:
        return at_context(name.name, name.length, _of_size(number_bytes)).work
    layers = network_of(name).layers
    work = count(layers, _of_size(number_bytes))
    if not name.phase:
        return work
    from ..counting.fusion import fuse  # with what it needs, and only then

    return fuse(layers, work, ENGINE)


def _of_size(number_bytes: int) -> str:
    """A precision with numbers of that size: memory and traffic are alike for all of them."""
    return next(precision for precision, size in PRECISION_BYTES.items() if size == number_bytes)


def work_of(name: Sized, precision: str, optimizer: str) -> Work:
    """A network's work with the update of an optimizer."""
    work = counted(name, PRECISION_BYTES[precision])
    return with_update(work, precision, TrainingOptions(optimizer))


@lru_cache(2048)
def memory_parts(
    name: Sized, precision_bytes: int, phase: str, optimizer: str
) -> tuple[tuple[int, int, int], int, int]:
    """Bytes of parameters, gradients and optimizer state, other fixed bytes, and bytes per sample of a case."""
    training = trains(phase)  # memory is that of a step or of a forward pass, nothing between
    workload = Workload(
        network_of(name), _of_size(precision_bytes), phase="training" if training else phase,
        training=TrainingOptions(optimizer) if training else None,
    ).doing(counted(name, precision_bytes))  # fmt: skip
    fixed, per_sample = memory_coefficients(workload)
    model = model_bytes(workload)
    return model, fixed - sum(model), per_sample


def passes(phase: str) -> int:
    """How many passes a phase consists of."""
    return len(passes_of(phase))


@lru_cache(512)
def buckets_of(name: Sized, number_bytes: int) -> Buckets:
    """A network's gradients in buckets: with which each layer's backward pass belongs."""
    workload = Workload(network_of(name), _of_size(number_bytes), phase="training").doing(counted(name, number_bytes))
    return make_buckets(gradient_bytes(workload))


@lru_cache(512)
def exchanges_of(name: Sized, number_bytes: int, optimizer: str = "") -> dict[tuple[Any, ...], Any]:
    """Where what no device changes is kept once it is known: exchanges of gradients, and memory with an optimizer."""
    return {}


@lru_cache(64)
def layers_of(name: Sized, precision_bytes: int, optimizer: str) -> Stack:
    """The entries of a network's training step, layer by layer."""
    work = work_of(name, _of_size(precision_bytes), optimizer)
    return stack([Case(network_of(name).layers, work, "training", by_layer=True)])


@lru_cache(64)
def stack_of(cases: tuple[tuple[Sized, str], ...], precision_bytes: int, optimizer: str, in_buckets: bool) -> Stack:
    """The entries of several networks and phases; in buckets: their backward passes in pieces."""
    same = _of_size(precision_bytes)
    return stack(
        [
            Case(
                network_of(name).layers,
                work_of(name, same, optimizer),
                phase,
                buckets_of(name, precision_bytes).of_layer.tolist() if in_buckets else (),
            )
            for name, phase in cases
        ]
    )


def model_or_reason(
    name: str, device: Device, precision: str, ppp: float | None, model_of: ModelOf, execution: str = "eager"
) -> TimeModel | str:
    """A device's time model by the name that the sweep gives it, or why there is none."""
    try:
        machine = Machine(device)
        machine.peak(precision)
        machine.vector_peak(precision)
        if name in (AUTOMATIC, LEARNT):
            return model_of(device, precision, None if name == AUTOMATIC else name, execution)
        return find_model(name, ppp)
    except PaleoError as error:
        return str(error)
