"""Recurrent modules (``nn.RNN``, ``nn.GRU``, ``nn.LSTM``), whose steps a library computes in one call.

cuDNN computes the products of all inputs at once, and launches the kernels of every step, a product with the state and
one pointwise kernel, from a loop of its own: no framework waits between them (Appleyard et al. 2016, arXiv 1604.01946).
A trace has the operations of every step. Here each product keeps its FLOPs and one launch, so that a step has two, and
the pointwise operations of a step have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from .kinds import MATRIX_KINDS, fusion_of
from .layer import RECURRENT_MODULES, Layer
from .places import called_module


def is_looped(layer: Layer) -> bool:
    """Return whether a library launches an operation of a step of a recurrent module, rather than the framework."""
    if layer.origin not in RECURRENT_MODULES:
        return False
    return layer.kind in MATRIX_KINDS or fusion_of(layer) == "pointwise"


def count_gradients(layer: Layer) -> int:
    """Return the parameter tensors for which a layer hands the framework a gradient: those of all steps are one."""
    return 0 if is_looped(layer) and not layer.parameters else len(layer.weights)


def fuse_recurrences(
    layers: Sequence[Layer],
    work: Any,
    columns: Sequence[str],  # names along the first axis of the counts
    passes: Sequence[str],  # names along the second axis
) -> Any:
    """Return the work of a network without the launches and bytes that recurrent modules save; FLOPs stay.

    The pointwise operations of a step are computed with the product before them. The weights of the inputs are read
    once for all steps, and so are gradients of weights written; those of the state are read in every step.
    """
    byte_columns = [columns.index(name) for name in ("bytes_read", "bytes_written")]
    removed = [*byte_columns, columns.index("kernels")]
    weights_pass = passes.index("backward_weight")
    looped = [index for index, layer in enumerate(layers) if is_looped(layer)]
    products = [index for index in looped if layers[index].kind in MATRIX_KINDS]
    if not products:
        return work
    per_sample, fixed, carrier = work.per_sample.copy(), work.fixed.copy(), np.arange(len(layers))
    product, seen_parameters = products[0], set[str]()
    for index in looped:
        if layers[index].kind not in MATRIX_KINDS:
            carrier[index] = product
            for counts in (per_sample, fixed):
                counts[removed, :, index] = 0
            continue
        product = index
        parameter = called_module(layers[index].name)
        if parameter in seen_parameters:
            fixed[byte_columns, weights_pass, index] = 0
            if "weight_ih" in parameter:
                fixed[byte_columns, :, index] = 0
        seen_parameters.add(parameter)
    return msgspec.structs.replace(work, per_sample=per_sample, fixed=fixed, carrier=carrier)
