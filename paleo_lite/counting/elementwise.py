"""Arithmetic per element of elementwise operations, forward and backward.

One operation each: + - * / compare, and exp, log, tanh, erf, sqrt, pow. A sign change is free. The backward figure is
what turns the gradient of the output into that of the input, from what the forward pass kept.
"""

from __future__ import annotations

from typing import NamedTuple


class PerElement(NamedTuple):
    """Operations per output element."""

    forward: int
    backward: int


ACTIVATIONS: dict[str, PerElement] = {
    "relu": PerElement(1, 1),  # max(x, 0); select
    "relu6": PerElement(2, 2),
    "hardtanh": PerElement(2, 2),
    "leaky_relu": PerElement(2, 2),
    "prelu": PerElement(2, 2),
    "threshold": PerElement(1, 1),
    "hard_shrink": PerElement(2, 1),
    "soft_shrink": PerElement(3, 1),
    "elu": PerElement(4, 3),  # compare, exp, -1, *alpha
    "selu": PerElement(5, 4),
    "celu": PerElement(5, 4),
    "sigmoid": PerElement(3, 3),  # exp, +1, /; y (1 - y) dy
    "log_sigmoid": PerElement(3, 3),
    "hard_sigmoid": PerElement(4, 3),  # x + 3, max, min, /6
    "hard_swish": PerElement(5, 5),
    "silu": PerElement(4, 7),  # sigmoid, *; s (1 + x (1 - s)) dy
    "gelu": PerElement(5, 9),  # x / sqrt 2, erf, +1, *x, *0.5; cdf + x pdf
    "gelu_tanh": PerElement(9, 15),
    "tanh": PerElement(1, 3),
    "softplus": PerElement(3, 4),
    "softsign": PerElement(3, 4),
    "mish": PerElement(5, 9),
    "glu": PerElement(4, 6),
}
"""Activation functions, by kind."""

ARITHMETIC: dict[str, PerElement] = {
    "add": PerElement(1, 0),  # the gradient passes through
    "sub": PerElement(1, 0),
    "mul": PerElement(1, 1),  # for each operand: dy * the other
    "div": PerElement(1, 2),
    "pow": PerElement(1, 3),
    "sqrt": PerElement(1, 2),
    "rsqrt": PerElement(2, 3),
    "exp": PerElement(1, 1),
    "log": PerElement(1, 1),
    "abs": PerElement(1, 1),
    "neg": PerElement(0, 0),
    "sin": PerElement(1, 2),
    "cos": PerElement(1, 2),
    "erf": PerElement(1, 5),
    "reciprocal": PerElement(1, 3),
    "clamp": PerElement(2, 1),
    "maximum": PerElement(1, 1),
    "minimum": PerElement(1, 1),
    "round": PerElement(1, 0),
    "where": PerElement(1, 1),
    "compare": PerElement(1, 0),
    "logical": PerElement(1, 0),
    "lerp": PerElement(3, 2),
    "scale": PerElement(2, 1),  # Caffe's Scale layer: one factor and one offset per channel
}
"""Arithmetic on one or more tensors of (broadcast) equal shape, by kind."""

ELEMENTWISE = ACTIVATIONS | ARITHMETIC
