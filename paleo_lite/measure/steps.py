"""Steps of whole networks: a forward pass of inference, or a training step, of a real module on real memory."""

from __future__ import annotations

from typing import Any

from ..errors import BadValue
from .clock import Effort, Run, Timing, time_call
from .setup import Setup

STEPS = ("inference", "forward+backward", "training")
"""Phases that can be timed by themselves."""


class OutOfMemory(Exception):
    """The device has no room for a step: a smaller batch may fit."""


def time_step(
    module: Any, setup: Setup, phase: str, batch_size: int, image_size: int = 224, effort: Effort | None = None
) -> Timing:
    """Time a step of a network.

    Parameters
    ----------
    module : torch.nn.Module
        Takes images; is moved to the setup's device and precision.
    phase : str
        One of `STEPS`; training is forward, backward and a step of plain stochastic gradient descent.

    Raises
    ------
    BadValue
        If the phase is none of `STEPS`.
    OutOfMemory
        If the device has no room for it.
    """
    if phase not in STEPS:
        raise BadValue(f"a step of {phase!r} cannot be timed on its own: expected one of {', '.join(STEPS)}")
    torch = setup.torch
    try:
        module = module.to(setup.device, setup.dtype)
        if setup.channels_last:
            module = module.to(memory_format=torch.channels_last)
        module.train(phase != "inference")
        if setup.compiled:
            torch.compiler.reset()  # each batch size is compiled for itself, and does not count as one shape too many
        called = torch.compile(module, dynamic=False) if setup.compiled else module
        images = setup.images(batch_size, 3, image_size, image_size)
        if phase == "inference":
            with torch.inference_mode():
                return time_call(lambda: called(images), setup.clock, effort)
        return time_call(_training(module, called, images, setup, phase == "training"), setup.clock, effort)
    except RuntimeError as error:
        # Only CUDA has a class for it.
        if not isinstance(error, torch.cuda.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        raise OutOfMemory(str(error).partition("\n")[0]) from None
    finally:
        module.zero_grad(set_to_none=True)  # the next batch size needs the room


def _training(module: Any, called: Any, images: Any, setup: Setup, updates: bool) -> Run:
    """A training step; its loss is the sum of the outputs, which costs next to nothing."""
    # A rate of 0 would let weights stand, but some libraries skip it; this one leaves them what they were in effect.
    optimizer = setup.torch.optim.SGD(module.parameters(), lr=1e-12)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        called(images).sum().backward()
        if updates:
            optimizer.step()

    return step
