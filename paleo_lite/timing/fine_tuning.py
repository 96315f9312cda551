"""Layers of a training step: the network with LoRA adapters, frozen layers, quantized weights, and the loss.

LoRA (Hu et al. 2021) freezes every weight W and adds the product of two small trainable matrices to chosen linear
layers: y = x W' + s (x A') B' with A of shape (rank, in) and B of shape (out, rank). QLoRA (Dettmers et al. 2023)
stores the frozen matrices in 4 bits, and dequantizes each of them before its product in the forward and backward pass.

Fused adapters are two products: the second one multiplies by the scale and adds to the result of the frozen product,
as BLAS does (``addmm``; so do Unsloth, Axolotl and Transformer Engine). Separate ones, as in PEFT and torchtune, have
kernels for the scale and the sum, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import msgspec
import numpy as np

from ..counting import Layer, Work
from ..counting.kinds import ELEMENTWISE, KINDS, class_of
from ..counting.layer import Place
from ..counting.places import last_part, matches_module
from ..counting.work import COLUMNS, PASSES
from ..errors import BadValue
from .quantization import CONVERSION, QUANTIZATION

LAST = "last"
"""Value of `--trainable only` for the last layer with weights."""

LINEAR_KINDS = ("linear", "matmul")
"""Kinds of layers to which LoRA adds adapters; the linear layers of GPT-2 are products with a transposed weight."""

ADAPTER = "adapter"
"""Attribute of the layers of an adapter: "dropout", "product", "scaling" and "addition"; the second product of a fused
one, which scales and adds, is its "sum"."""

SUMS = ("addition", "sum")
"""Layers of an adapter that add to the result of the adapted layer; each adapter has one."""

LOSS = "opaque:loss"
"""Origin of the layers of the loss."""

_LOSS_BYTES = 4
"""Bytes per element of logits in the loss: frameworks compute it in fp32."""


class FineTuning(NamedTuple):
    """Which parameters of a network are trained, and how."""

    lora_rank: int = 0  # rank of the LoRA adapters; 0 without adapters
    # Names of the layers with adapters, as in `matches_module`; empty for all linear layers except the output
    # head.
    lora_modules: tuple[str, ...] = ()
    lora_dropout: float = 0.0  # probability with which an adapter drops numbers of its input
    fuses_adapters: bool = True  # whether the second product of an adapter scales and adds
    freeze: tuple[str, ...] = ()  # names or patterns of layers that are not trained
    # Names or patterns of the only layers that are trained; ``"last"`` is the last layer with weights. Empty for
    # all.
    train_only: tuple[str, ...] = ()


MOST_LETTERS = 160
"""Letters of the names of layers that a message lists."""


def adapt_layers(layers: Sequence[Layer], tuning: FineTuning) -> tuple[Layer, ...]:
    """Return the layers with adapters, in which the weights that are not trained have the attribute ``frozen``.

    Raise BadValue if a name or pattern matches no layer with weights, no layer takes an adapter, the rank of the
    adapters is above that of every adapted matrix, or nothing is left to train.
    """
    adapted = tuple(layers)
    if tuning.train_only:
        trained = _find_trained(adapted, tuning.train_only)
        adapted = _freeze(adapted, [index for index in range(len(adapted)) if index not in trained])
    for pattern in tuning.freeze:
        adapted = _freeze(adapted, _find_matches(adapted, pattern, "except"))
    if tuning.lora_rank:
        chosen = _find_adapted(adapted, tuning.lora_modules)
        largest_rank = max(min(adapted[index].weights[0]) for index in chosen)
        if tuning.lora_rank > largest_rank:
            raise BadValue(
                f"`--lora` must be <= {largest_rank}, the largest rank of an adapted matrix (got {tuning.lora_rank})"
            )
        adapted = _freeze(adapted, range(len(adapted)))
        adapted = _insert_adapters(adapted, chosen, tuning)
    if not trained_parameters(adapted):
        raise BadValue(
            "nothing is left to train: freeze fewer layers (an output head may share its weight with the embedding)"
        )
    return adapted


def original_layers(layers: Sequence[Layer]) -> list[int]:
    """Return the indices of the layers that the network has without fine-tuning."""
    return [
        index
        for index, layer in enumerate(layers)
        if ADAPTER not in layer.attributes and layer.origin not in (CONVERSION, QUANTIZATION, LOSS)
    ]


def is_trained(layer: Layer) -> bool:
    """Return whether a layer has trained weights."""
    return bool(layer.weights) and not layer.is_frozen


def find_output_head(layers: Sequence[Layer]) -> int | None:
    """Return the index of the output head: the last layer with weights, if it is a product; otherwise None."""
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        if layer.weights:
            return index if class_of(layer) == "gemm" else None
    return None


def _find_matches(layers: Sequence[Layer], pattern: str, setting: str) -> list[int]:
    """Return the indices of the layers with weights that a pattern matches."""
    matches = [index for index, layer in enumerate(layers) if layer.weights and matches_module(layer.name, pattern)]
    if not matches:
        names = ", ".join(layer.name for layer in layers if layer.weights and layer.parameters)
        reason = f"the network has {_shorten(names)}"
        raise BadValue(f"`--trainable {setting}={pattern}` matches no layer with weights; {reason}")
    return matches


def _shorten(names: str) -> str:
    return names if len(names) <= MOST_LETTERS else f"{names[:MOST_LETTERS].rpartition(', ')[0]}, ..."


def _find_trained(layers: Sequence[Layer], train_only: Sequence[str]) -> set[int]:
    trained: set[int] = set()
    for pattern in train_only:
        if pattern == LAST:
            trained.add(max(index for index, layer in enumerate(layers) if layer.weights))
        else:
            trained.update(_find_matches(layers, pattern, "only"))
    return trained


def _freeze(layers: Sequence[Layer], indices: Sequence[int]) -> tuple[Layer, ...]:
    frozen = list(layers)
    for index in indices:
        layer = frozen[index]
        if layer.weights:
            frozen[index] = layer._replace(attributes={**layer.attributes, "frozen": True})
    return tuple(frozen)


def _takes_adapter(layer: Layer) -> bool:
    is_product = layer.kind in LINEAR_KINDS and class_of(layer) == "gemm"
    return is_product and len(layer.inputs) == 1 and bool(layer.weights) and len(layer.weights[0]) == 2


def _find_adapted(layers: Sequence[Layer], modules: Sequence[str]) -> set[int]:
    """Return the indices of the layers with adapters."""
    candidates = [index for index, layer in enumerate(layers) if _takes_adapter(layer)]
    head = find_output_head(layers)
    if not modules:
        chosen = {index for index in candidates if index != head}
        if not chosen:
            raise BadValue(
                "`--lora` needs linear layers besides the output layer, and this network has none: "
                "use `--trainable only=NAMES` or `except=NAMES`"
            )
        return chosen
    chosen = set()
    for module in modules:
        matches = {index for index in candidates if matches_module(layers[index].name, module)}
        if not matches:
            names = sorted({last_part(layers[index].name) for index in candidates})
            listed = _shorten(", ".join(names)) or "none"
            raise BadValue(f"`--trainable adapters={module}` matches no linear layer; the network has {listed}")
        chosen |= matches
    return chosen


def adapted_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers that have adapters unless modules are named: all linear ones but the output head."""
    return [layers[index] for index in sorted(_find_adapted(layers, ()))]


def adapter_products(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the products of the adapters, each of which has a matrix; empty without adapters."""
    return tuple(layer for layer in layers if ADAPTER in layer.attributes and layer.weights)


def _insert_adapters(layers: Sequence[Layer], chosen: set[int], tuning: FineTuning) -> tuple[Layer, ...]:
    """Return the layers, with the layers of an adapter after each chosen one."""
    inserted: list[Layer] = []
    new_indices: list[int] = []
    for index, layer in enumerate(layers):
        parents = tuple(new_indices[parent] if parent >= 0 else parent for parent in layer.parents)
        inserted.append(layer._replace(parents=parents))
        if index in chosen:
            inserted += _adapter_layers(layer, parents[0], len(inserted) - 1, tuning)
        new_indices.append(len(inserted) - 1)
    return tuple(inserted)


def _adapter_layers(layer: Layer, parent: int, base: int, tuning: FineTuning) -> list[Layer]:
    """Return the layers of one adapter of a layer.

    `parent` is the index of the layer that produces the input, and `base` that of the adapted layer.
    """
    shape_in, shape_out, rank = layer.inputs[0], layer.outputs[0], tuning.lora_rank
    shape_inner = (*shape_in[:-1], rank)
    weight_a, weight_b = (rank, shape_in[-1]), (shape_out[-1], rank)
    is_first_use = layer.parameters > 0
    parameters_a, parameters_b = (prod(weight_a), prod(weight_b)) if is_first_use else (0, 0)
    name, product = layer.name, {ADAPTER: "product"}
    added = []
    last = base
    if tuning.lora_dropout:  # PEFT's ``lora_dropout``: every adapter keeps its own input, and a mask
        dropout = {ADAPTER: "dropout", "p": tuning.lora_dropout}
        added.append(Layer(f"{name}.lora_dropout", "dropout", (shape_in,), (shape_in,), (), (parent,), 0, dropout))
        last += 1
        parent = last
    added.append(
        Layer(f"{name}.lora_A", "linear", (shape_in,), (shape_inner,), (weight_a,), (parent,), parameters_a, product)
    )
    second, weights = f"{name}.lora_B", (weight_b,)
    inner, operands = (shape_inner,), (shape_out, shape_out)
    if tuning.fuses_adapters:
        inputs, parents, attributes = (*inner, shape_out), (last + 1, base), {ADAPTER: "sum"}
        added.append(Layer(second, "linear", inputs, (shape_out,), weights, parents, parameters_b, attributes))
    else:
        added += [
            Layer(second, "linear", inner, (shape_out,), weights, (last + 1,), parameters_b, product),
            Layer(f"{name}.lora_scaling", "mul", (shape_out,), (shape_out,), (), (last + 2,), 0, {ADAPTER: "scaling"}),
            Layer(f"{name}.lora_add", "add", operands, (shape_out,), (), (base, last + 3), 0, {ADAPTER: "addition"}),
        ]
    place = layer.place.of_addition(name)
    return [adapter_layer._replace(place=place) for adapter_layer in added]


# Quantized weights.


def is_quantized(layers: Sequence[Layer]) -> list[bool]:
    """Return whether the weight of each layer is stored in a narrower format in training: frozen products, except the
    output head, as bitsandbytes and transformers quantize them."""
    head = find_output_head(layers)
    return [
        bool(layer.weights) and index != head and class_of(layer) == "gemm" and layer.is_frozen
        for index, layer in enumerate(layers)
    ]


def insert_dequantization(layers: Sequence[Layer], stored_bytes: float, element_bytes: int) -> tuple[Layer, ...]:
    """Return the layers of a training step with a kernel that dequantizes a quantized weight before each product.

    The bytes are those of a stored and of a dequantized weight.
    """
    inserted: list[Layer] = []
    new_indices: list[int] = []
    for layer, quantized in zip(layers, is_quantized(layers)):
        if quantized:
            shape = layer.weights[0]
            attributes = {"frozen": True, "widths": (stored_bytes, element_bytes)}
            name, place = f"{layer.name}.dequantize", layer.place.of_addition(layer.name)
            inserted.append(Layer(name, "copy", (), (shape,), (shape,), (), 0, attributes, CONVERSION, place))
        new_indices.append(len(inserted))
        parents = tuple(new_indices[parent] if parent >= 0 else parent for parent in layer.parents)
        inserted.append(layer._replace(parents=parents))
    return tuple(inserted)


def repeat_dequantization(work: Work, layers: Sequence[Layer]) -> Work:
    """Return the work with the dequantization of a weight also before the data gradient of its product."""
    forward, backward = PASSES.index("forward"), PASSES.index("backward_data")
    kernels = COLUMNS.index("kernels")
    fixed = work.fixed.copy()
    for index, layer in enumerate(layers):
        if layer.origin == CONVERSION:
            has_data_gradient = np.any(work.fixed[kernels, backward, index + 1] > 0)
            fixed[:, backward, index] = work.fixed[:, forward, index] if has_data_gradient else 0
            fixed[:, PASSES.index("backward_weight"), index] = 0
    return msgspec.structs.replace(work, fixed=fixed)


# The loss.


def append_loss(
    layers: Sequence[Layer], element_bytes: int, casts: bool = True, fused: bool = False
) -> tuple[Layer, ...]:
    """Return the layers of a language model with those of the cross entropy of its logits.

    Frameworks cast the logits to fp32, compute their logarithmic softmax, which the backward pass needs, and pick the
    logarithm of every target. A fused loss is one kernel, which reads the logits as they are (flash-attn, Liger).
    `element_bytes` are those of a logit of the network. `casts` says whether to add the cast to fp32, which autocast
    inserts itself.
    """
    head = find_logits(layers)
    if head is None:
        return tuple(layers)
    shape = layers[-1].outputs[0]
    added = []
    source, place = len(layers) - 1, Place(module="loss")
    if fused:
        return (*layers, Layer("loss", "cross_entropy", (shape,), (shape[:-1],), (), (source,), 0, {}, LOSS))
    if casts and element_bytes < _LOSS_BYTES:
        attributes = {"widths": (element_bytes, _LOSS_BYTES), "function": "to"}
        added.append(Layer("loss.to", "copy", (shape,), (shape,), (), (source,), 0, attributes, LOSS, place))
        source += 1
    wide = {"widths": (max(element_bytes, _LOSS_BYTES),) * 2}
    added += [
        Layer("loss.log_softmax", "log_softmax", (shape,), (shape,), (), (source,), 0, wide, LOSS, place),
        Layer("loss.nll", "gather", (shape,), (shape[:-1],), (), (source + 1,), 0, wide, LOSS, place),
    ]
    return (*layers, *added)


def skip_loss_at_inference(work: Work, layers: Sequence[Layer]) -> Work:
    """Return the work without the loss in the pass ``inference``."""
    is_loss = np.array([layer.origin == LOSS for layer in layers], dtype=bool)
    if not is_loss.any():
        return work
    inference = PASSES.index("inference")
    per_sample, fixed = work.per_sample.copy(), work.fixed.copy()
    per_sample[:, inference, is_loss] = 0
    fixed[:, inference, is_loss] = 0
    return msgspec.structs.replace(work, per_sample=per_sample, fixed=fixed)


def find_logits(layers: Sequence[Layer]) -> int | None:
    """Return the index of the layer that computes the logits of a language model; None without logits per token."""
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        if layer.kind in LINEAR_KINDS and layer.weights:
            has_tokens = len(layer.outputs[0]) == 3
            return index if has_tokens and layer.outputs[0][-1] > layer.inputs[0][-1] else None
        kind = KINDS.get(layer.kind)
        if layer.kind not in ELEMENTWISE and (kind is None or kind.group != "data movement"):
            return None
    return None


def trained_parameters(layers: Sequence[Layer]) -> int:
    """Return the number of trained parameters."""
    return sum(layer.parameters for layer in layers if is_trained(layer))
