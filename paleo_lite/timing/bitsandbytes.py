"""Products of PyTorch with weights in int8 and in nf4, as bitsandbytes computes them.

In int8 it is LLM.int8() (Dettmers et al. 2022).

A linear layer quantizes its input by rows, multiplies integers into 32-bit sums, and scales these to 16 bits. Columns
of the input with an outlier, a number of at least 6 (``llm_int8_threshold`` of transformers), are zero there, and
multiply the same columns of the weights in 16 bits: a thousandth of the columns (section 4.1), whose product is not
counted, but whose kernels are. The data gradient multiplies by the weights in 16 bits, which are converted for it.

The kernels and their bytes are those of ``MatMul8bitLt`` (bitsandbytes/autograd/_functions.py),
``int8_vectorwise_quant`` and ``int8_scaled_mm`` (backends/cuda/ops.py) and ``int8_mixed_scaled_mm``
(backends/default/ops.py) of release 0.46. Before them the host waits twice for the device, to learn whether there are
outliers, and where; only the launches are counted.

In nf4 the product of a single row reads the weights as they are stored (``gemv_4bit``). Of any other product the
weights are converted first (``MatMul4Bit``, ``dequantize_4bit``), each time that it is computed. Either way the scales
come first, which are quantized themselves: a lookup, and a sum with their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..architectures.stored_weights import StoredWeights
from ..counting import Layer, Work
from ..counting.kinds import is_expert_layer
from ..counting.kinds.products import SAVES_INPUT
from ..counting.layer import Shape
from ..counting.work import COLUMNS, PASSES
from ..formats import Format
from ..machines import Device
from ..units import element_bytes
from .quantization import CONVERSION, QUANTIZATION, stored_bytes_per_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT8_PRODUCT = "int8 product"
"""Attribute of a product with quantized weights, and of the kernels around it, whose value is their part."""

_INTEGER_BYTES, _SUM_BYTES = 1, 4

# Read and written bytes per number of an input in 16 bits: abs (2, 2), comparison (2, 1), any (1, 0), any by columns
# (1, 0), quantization (2, 1); argwhere and the zeros of columns with outliers touch little.
_INPUT_BYTES, _INPUT_LAUNCHES = (8, 4), 7
# The same per number of a result: scaling (4, 2), and the sum with the product of outliers (2, 2). Two gathers and
# three kernels that convert columns of the weights touch little.
_RESULT_BYTES, _RESULT_LAUNCHES = (6, 4), 7
# Of weights in nf4: a byte per scale of 64 numbers, which becomes four, in two kernels.
_SCALE_BYTES, _SCALE_LAUNCHES = (1 / 64, 4 / 64), 2
_CAST_BYTES = 2  # read and written to convert bf16 to fp16 before, and back after
# Conversion of weights for the data gradient: to 16 bits (1, 2), scales (small), and their product (2, 2).
_WEIGHT_BYTES, _WEIGHT_LAUNCHES = (3, 4), 3


def has_int8_kernels(device: Device) -> bool:
    """Return whether bitsandbytes multiplies integers on a device: NVIDIA's and AMD's with matrix units for them.

    On Intel's it multiplies converted weights (``MatMul8bitFp``).
    """
    has_peak = any(peak.precision == "int8" and peak.unit == "tensor" for peak in device.peaks)
    return has_peak and device.vendor in ("NVIDIA", "AMD")


def insert_int8_kernels(
    layers: Sequence[Layer], is_stored: Sequence[bool], precision: str, has_gradients: bool
) -> tuple[Layer, ...]:
    """Return the layers with the kernels before and after each product with weights in int8."""
    cast_bytes, casts = (_CAST_BYTES, 1) if precision != "fp16" else (0, 0)
    inserted: list[Layer] = []
    new_indices: list[int] = []

    def insert(layer: Layer, part: str, shape: Shape, source: int, widths: tuple[int, int], launches: int) -> None:
        attributes = {
            "widths": tuple(width + cast_bytes for width in widths), "launches": launches + casts, INT8_PRODUCT: part
        }  # fmt: skip
        name, place = f"{layer.name}.{part}", layer.place.of_addition(layer.name)
        inserted.append(Layer(name, "copy", (shape,), (shape,), (), (source,), 0, attributes, QUANTIZATION, place))

    for layer, is_chosen in zip(layers, is_stored):
        parents = [new_indices[parent] if parent >= 0 else parent for parent in layer.parents]
        attributes = layer.attributes
        is_product = is_chosen and bool(parents)
        if is_product:
            insert(layer, "quantize", layer.inputs[0], parents[0], _INPUT_BYTES, _INPUT_LAUNCHES)
            parents[0] = len(inserted) - 1
            if has_gradients:
                inserted.append(_conversion(layer))
            attributes = {**attributes, INT8_PRODUCT: "product"}
        inserted.append(layer._replace(parents=tuple(parents), attributes=attributes))
        if is_product:
            insert(layer, "scale", layer.outputs[0], len(inserted) - 1, _RESULT_BYTES, _RESULT_LAUNCHES)
        new_indices.append(len(inserted) - 1)
    return tuple(inserted)


def _conversion(layer: Layer) -> Layer:
    """Return the kernels that convert the weights of a product before its data gradient."""
    shape = layer.weights[0]
    attributes = {
        "frozen": True, "widths": _WEIGHT_BYTES, "launches": _WEIGHT_LAUNCHES, INT8_PRODUCT: "dequantize"
    }  # fmt: skip
    name, place = f"{layer.name}.dequantize", layer.place.of_addition(layer.name)
    return Layer(name, "copy", (), (shape,), (shape,), (), 0, attributes, CONVERSION, place)


def save_inputs(layers: Sequence[Layer], is_stored: Sequence[bool]) -> tuple[Layer, ...]:
    """Return the layers of training in which products with weights in int8 save their inputs.

    ``MatMul8bitLt`` keeps a reference to its input in 16 bits, though its data gradient reads the weights alone;
    ``MatMul4Bit`` does not.
    """
    return tuple(
        layer._replace(attributes={**layer.attributes, SAVES_INPUT: True}) if is_chosen else layer
        for layer, is_chosen in zip(layers, is_stored)
    )


def is_nf4(stored: Format | StoredWeights) -> bool:
    """Return whether weights are stored in nf4, for which bitsandbytes has the kernels."""
    if isinstance(stored, StoredWeights):
        return stored.method == "bitsandbytes" and stored.stored is not None and stored.stored.name == "nf4"
    return stored.name == "nf4"


def insert_nf4_kernels(
    layers: Sequence[Layer], stored: Format | StoredWeights, reads_tokens: bool, number_bytes: int, is_single: bool
) -> tuple[Layer, ...]:
    """Return the layers of inference with the kernels before each product with weights in nf4.

    A product of one row and a `is_single` sample has those of its scales; before any other the weights are converted.
    """
    inserted: list[Layer] = []
    new_indices: list[int] = []
    for layer, size in zip(layers, stored_bytes_per_number(layers, stored, reads_tokens)):
        attributes = layer.attributes
        if size is not None and not is_expert_layer(layer):
            shape, result = layer.weights[0], layer.outputs[0]
            is_vector = is_single and prod(result) == result[-1]
            part, widths, launches = ("scales", _SCALE_BYTES, _SCALE_LAUNCHES)
            if not is_vector:
                part, widths, launches = ("dequantize", (size, number_bytes), _SCALE_LAUNCHES + 1)
                attributes = {**attributes, "dequantized": True}
            name, place = f"{layer.name}.{part}", layer.place.of_addition(layer.name)
            kernels = {"widths": widths, "launches": launches}
            inserted.append(Layer(name, "copy", (), (shape,), (shape,), (), 0, kernels, CONVERSION, place))
        new_indices.append(len(inserted))
        parents = tuple(new_indices[parent] if parent >= 0 else parent for parent in layer.parents)
        inserted.append(layer._replace(parents=parents, attributes=attributes))
    return tuple(inserted)


def is_int8_product(layers: Sequence[Layer]) -> NDArray[np.bool_]:
    """Return which layers are products with weights in int8, boolean of shape (layers,)."""
    return np.array([layer.attributes.get(INT8_PRODUCT) == "product" for layer in layers], dtype=bool)


def count_int8_products(work: Work, layers: Sequence[Layer]) -> Work:
    """Return the work with products that read and write integers, and with kernels in the passes that have them.

    The kernels around a product have no gradients. The weights are converted before the data gradient alone.
    """
    fixed, per_sample = work.fixed.copy(), work.per_sample.copy()
    read, written, kernels = (COLUMNS.index(name) for name in ("bytes_read", "bytes_written", "kernels"))
    inference, forward, data, weight = (
        PASSES.index(name) for name in ("inference", "forward", "backward_data", "backward_weight")
    )
    for index, layer in enumerate(layers):
        part = layer.attributes.get(INT8_PRODUCT)
        if part == "product":
            number_bytes = element_bytes(work.precision)
            input_bytes = prod(layer.inputs[0]) * (number_bytes - _INTEGER_BYTES)
            sum_bytes = prod(layer.outputs[0]) * (_SUM_BYTES - number_bytes)
            for forward_pass in (inference, forward):
                counts = per_sample if per_sample[read, forward_pass, index] else fixed
                counts[read, forward_pass, index] -= input_bytes
                counts[written, forward_pass, index] += sum_bytes
            # Of inference the weights are counted in their format already.
            fixed[read, forward, index] -= prod(layer.weights[0]) * (number_bytes - _INTEGER_BYTES)
        elif part == "dequantize":
            has_data_gradient = np.any(work.fixed[kernels, data, index + 1] > 0)
            fixed[:, data, index] = work.fixed[:, forward, index] if has_data_gradient else 0
            fixed[:, [inference, forward, weight], index] = 0
        elif part is not None:
            for counts in (fixed, per_sample):
                counts[:, [data, weight], index] = 0
    return msgspec.structs.replace(work, fixed=fixed, per_sample=per_sample)
