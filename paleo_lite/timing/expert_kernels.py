"""Implementations of the products of experts in training.

A mixture multiplies the tokens of every expert by that expert's matrices. In Megatron-LM, Transformer Engine's
``GroupedLinear`` calls cuBLAS once per expert, and quantizes the tokens of every expert by kernels of their own.
Kernels of 2026 multiply the tokens of all experts at once, and apply the gated activation and the quantization of its
result before they write it (cuDNN's grouped products with SwiGLU and block scales; Megatron-Bridge uses them from
release 26.06 on).

transformers multiplies by PyTorch's grouped products from release 5 on. Before, a loop in Python computed each expert
for its own tokens (Mixtral, Qwen3, OLMoE, DeepSeek), and Llama 4 every expert for every token, of which all but the
chosen ones were multiplied by zero: in one batched product, or one after another where experts are quantized, as
bitsandbytes needs plain linear layers (axolotl's ``llama4_linearized_experts``).
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
    # Recipes of `paleo_lite.timing.training_options` that it multiplies in; empty for all, and for bf16.
    recipes: tuple[str, ...]
    capabilities: tuple[str, ...]  # beginnings of the compute capabilities of the devices that run it; empty for all
    needs_gate: bool  # whether it is for gated activation functions only
    description: str
    is_of_pytorch: bool = False  # whether eager and compiled PyTorch have it, not Megatron-LM
    on_all_tokens: bool = False  # whether every expert computes every token, not those that chose it


def _of_pytorch(description: str, *, is_per_expert: bool, on_all_tokens: bool) -> ExpertKernels:
    """Return an implementation in PyTorch, which every device and network can run."""
    return ExpertKernels(is_per_expert, False, (), (), False, description, True, on_all_tokens)


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
    "grouped": _of_pytorch(
        "one kernel for all experts: transformers from 5.0 on", is_per_expert=False, on_all_tokens=False
    ),
    "loop": _of_pytorch(
        "experts one after another, each on its tokens: transformers before 5.0",
        is_per_expert=True,
        on_all_tokens=False,
    ),
    "dense": _of_pytorch(
        "every expert on every token, in batched products: Llama 4 in transformers before 5.0",
        is_per_expert=False,
        on_all_tokens=True,
    ),
    "dense-loop": _of_pytorch(
        "every expert on every token, one after another: Llama 4 with quantized experts before 5.0",
        is_per_expert=True,
        on_all_tokens=True,
    ),
}
"""Implementations by the name that ``--experts kernels`` takes."""

TUNED_KERNELS = tuple(name for name, kernels in EXPERT_KERNELS.items() if not kernels.is_of_pytorch)
"""Names of the implementations of the tuned stack."""


def check_stack(name: str, is_megatron: bool) -> None:
    """Raise BadValue if a software stack does not have an implementation."""
    names = [other for other, kernels in EXPERT_KERNELS.items() if kernels.is_of_pytorch != is_megatron]
    if name not in names:
        stack = "Megatron-LM" if is_megatron else "PyTorch"
        execution = "eager` or compiled" if is_megatron else "megatron`"
        raise BadValue(
            f"`--experts kernels={name}` is not of {stack}, which has {', '.join(names)}: give one of these, or "
            f"`--execution {execution}"
        )


def launches_per_expert(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers, of which those between the choice of experts and their sum are launched once per expert."""
    changed = list(layers)
    for first, _ in expert_layers(layers):
        experts, owner = layers[first].weights[0][0], layers[first].place.owner
        for index, layer in enumerate(layers):
            if layer.place.owner == owner and layer.place.role == "experts":
                changed[index] = layer._replace(attributes={**layer.attributes, "launches": experts})
    return tuple(changed)


def rows_of_all_tokens(layers: Sequence[Layer]) -> float:
    """Return the rows of all experts if each of them computes every token, over those of the chosen experts."""
    for layer in layers:
        if is_grouped_product(layer):
            return float(layer.weights[0][0] / layer.attributes["active"])
    raise BadValue("`--experts kernels` is for mixtures of experts: this network has none")


def expert_layers(layers: Sequence[Layer]) -> list[tuple[int, int]]:
    """Return first and last product of each mixture: the layers between them are its activation function."""
    products = [index for index, layer in enumerate(layers) if is_grouped_product(layer)]
    return list(zip(products[::2], products[1::2]))


def available_expert_kernels(layers: Sequence[Layer], recipe: str | None, device: Device) -> tuple[str, ...]:
    """Return the names of the implementations that a network, a recipe and a device allow; none without experts."""
    pairs = expert_layers(layers)
    if not pairs:
        return ()
    return tuple(name for name in TUNED_KERNELS if _runs(EXPERT_KERNELS[name], layers, pairs, recipe, device))


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
