"""Implementations of the products of experts in a tuned training stack.

A mixture multiplies the tokens of every expert by that expert's matrices. Transformer Engine's ``GroupedLinear``
calls cuBLAS once per expert, and quantizes the tokens of every expert by kernels of their own. Kernels of 2026 multiply
the tokens of all experts at once, and apply the gated activation and the quantization of its result before they write
it (cuDNN's grouped products with SwiGLU and block scales; Megatron-Bridge uses them from release 26.06 on).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..counting import Layer
from ..counting.kinds import is_grouped_product
from ..errors import BadValue
from ..machines import Device


class ExpertKernels(NamedTuple):
    """An implementation of the products of experts."""

    is_per_expert: bool  # whether every expert has kernels of its own
    # Whether activation function and quantization of its result, and of its gradient, have no kernels of their
    # own.
    fuses_activation: bool
    # Recipes of `paleo_lite.timing.training_recipes` that it multiplies in; empty for all, and for bf16.
    recipes: tuple[str, ...]
    capabilities: tuple[str, ...]  # beginnings of the compute capabilities of the devices that run it; empty for all
    needs_gate: bool  # whether it is for gated activation functions only
    description: str


EXPERT_KERNELS = {
    "separate": ExpertKernels(
        is_per_expert=True,
        fuses_activation=False,
        recipes=(),
        capabilities=(),
        needs_gate=False,
        description="kernels for every expert: Transformer Engine's GroupedLinear, all releases",
    ),
    "fused": ExpertKernels(
        is_per_expert=False,
        fuses_activation=True,
        recipes=("mxfp8",),
        capabilities=("10.",),
        needs_gate=True,
        description="one kernel for all experts with activation and quantization: Megatron-Bridge from 26.06 on",
    ),
}
"""Implementations by the name that ``--experts kernels`` takes."""


def expert_layers(layers: Sequence[Layer]) -> list[tuple[int, int]]:
    """Return first and last product of each mixture: the layers between them are its activation function."""
    products = [index for index, layer in enumerate(layers) if is_grouped_product(layer)]
    return list(zip(products[::2], products[1::2]))


def available_expert_kernels(layers: Sequence[Layer], recipe: str | None, device: Device) -> tuple[str, ...]:
    """Return the names of the implementations that a network, a recipe and a device allow; none without experts."""
    pairs = expert_layers(layers)
    if not pairs:
        return ()
    return tuple(name for name, kernels in EXPERT_KERNELS.items() if _runs(kernels, layers, pairs, recipe, device))


def _runs(
    kernels: ExpertKernels,
    layers: Sequence[Layer],
    pairs: Iterable[tuple[int, int]],
    recipe: str | None,
    device: Device,
) -> bool:
    if kernels.recipes and recipe not in kernels.recipes:
        return False
    if kernels.capabilities and not device.capability.startswith(kernels.capabilities):
        return False
    return not kernels.needs_gate or all(
        any(layer.kind == "mul" for layer in layers[first + 1 : last]) for first, last in pairs
    )


def check_expert_kernels(name: str, layers: Sequence[Layer], recipe: str | None, device: Device) -> None:
    """Raise BadValue if a network, a recipe or a device does not allow an implementation."""
    available = available_expert_kernels(layers, recipe, device)
    if name in available:
        return
    if not available:
        raise BadValue(f"`--experts kernels={name}` is for mixtures of experts: this network has none")
    raise BadValue(
        f"`--experts kernels={name}` needs gated experts, `--precision mxfp8` and Blackwell: with {recipe or 'bf16'} "
        f"on {device.name} use {' or '.join(available)}"
    )
