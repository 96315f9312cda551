"""Kinds of operations in profiles: what the names of operations tell apart, which is less than a network does."""

from __future__ import annotations

from typing import NamedTuple


class Profiled(NamedTuple):
    """A kind of operation.

    Attributes
    ----------
    name : str
    pattern : str
        A regular expression that is found in the names of its operations.
    work_class : str
        The class of work that all its layers have; empty where they differ or are none.
    """

    name: str
    pattern: str
    work_class: str = ""


PROFILED = (
    Profiled("input", r"\[Executor\]|dali"),
    Profiled("batch_norm", r"batch_?norm", "norm"),
    Profiled("normalization", r"norm", "norm"),
    Profiled("convolution", r"conv"),
    Profiled("attention", r"attention|sdpa", "attention"),
    Profiled("pooling", r"pool", "pool"),
    Profiled("softmax", r"softmax|cross_entropy|nll_loss|_loss"),
    Profiled("linear", r"linear|addmm|matmul|(?:^|::)b?mm$|^bias$|einsum", "gemm"),
    Profiled("communication", r"all_?reduce|all_?gather|broadcast_coalesced|c10d|nccl"),
    Profiled(
        "elementwise",
        r"relu|elu|sigmoid|tanh|swish|silu|add|mul|div|sub|type|copy|clone|fill|zero|sum|mean|cat|drop"
        r"|threshold|clamp|hardtanh|AccumulateGrad|to$|_?pow|sqrt|exp|backward$|unrecognized",
        "elementwise",
    ),
)
"""In the order in which they are tried: the first whose pattern is found. All other operations are ``other``."""
