"""Kernels of a decoder under an inference engine, described by their shapes.

The names are those that users of engines know: QKV projection, attention, router, experts, all-reduce, norm, sampling.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Rows = Literal["tokens", "decoding", "prompts", "sampled"]
"""What a kernel has a row for: all new tokens of an iteration, those of decoding sequences or of prompts only, or the
sequences of which a token is sampled."""


class ProductKernel(msgspec.Struct, frozen=True):
    """A product of new tokens with a matrix of weights."""

    name: str  # name of the kernel
    # Columns of the result and depth of the product, on one device.
    n: int
    k: int
    groups: int = 1  # products of this size in one launch
    # Part of the network, on which the format of the matrix depends; routers, heads and the products of latent
    # attention with single heads are plain: they stay in 16 bits.
    part: Literal["attention", "feed-forward", "plain"] = "feed-forward"
    rows: Rows = "tokens"  # what has a row
    # Whether the matrix takes memory of its own: a head may share that of the embedding, and the prompts of latent
    # attention use the matrices of decoding.
    is_stored: bool = True


class ExpertsKernel(msgspec.Struct, frozen=True):
    """A layer of experts, from the permutation of the tokens to the weighted sum."""

    name: str  # name of the kernel
    # Sizes of an expert, undivided.
    hidden_size: int
    inner_size: int
    # Experts of the layer, and how many of them each token passes.
    experts: int
    active: int
    matrices: int  # matrices of an expert: 3 with a gate, 2 without
    rows: Rows = "tokens"  # what has a row


class AttentionKernel(msgspec.Struct, frozen=True):
    """Attention of new tokens to the KV cache."""

    name: str  # name of the kernel
    # Heads of queries, and of keys and values, on one device.
    heads: int
    kv_heads: int
    # Elements of a key, and of a value that is stored besides the key.
    key_size: int
    value_size: int
    window: int | None = None  # tokens back that a query attends to; None: all
    chunk: int | None = None  # length of the chunks within which tokens attend to each other; None: one chunk
    is_latent: bool = False  # whether keys and values come from one latent vector per token
    rows: Rows = "decoding"  # what has a row
    has_sinks: bool = False  # whether each head has a learned sink among its scores
    # Tokens of a sequence whose keys stay in the cache: those of the window or chunk, all of them, from which sparse
    # attention selects those of the window, or none, as another block has them.
    keeps: Literal["window", "all", "none"] = "window"


class Pointwise(msgspec.Struct, frozen=True):
    """A kernel that only moves numbers."""

    name: str  # name of the kernel
    row_bytes: float  # bytes read and written per row
    fixed_bytes: float = 0.0  # bytes read and written whatever the number of rows
    launches: int = 1  # kernels that the engine launches for it; 0 if another kernel does its work
    row_flops: float = 0.0  # FLOPs per row, of recurrences
    rows: Rows = "tokens"  # what has a row
    weights: int = 0  # weights that are kept in 16 bits, such as the table of an embedding
    state_bytes: float = 0.0  # bytes of the state that a sequence keeps, of recurrences


Pattern = Literal["all-reduce", "all-gather", "dispatch", "combine", "low-latency dispatch", "low-latency combine"]


class ExchangeKernel(msgspec.Struct, frozen=True):
    """An exchange between the devices of a group."""

    name: str  # name of the kernel
    # What is exchanged, and for tokens of experts in which mode (`paleo_lite.engines.exchanges`).
    pattern: Pattern
    row_bytes: float  # bytes per row of the message, or that a device sends to others of its node
    rows: Rows = "tokens"  # what has a row
    node_row_bytes: float = 0.0  # bytes per row that a device sends to other nodes


Kernel = ProductKernel | ExpertsKernel | AttentionKernel | Pointwise | ExchangeKernel


class CountedKernel(msgspec.Struct, frozen=True):
    """A kernel, and how often an iteration launches it."""

    kernel: Kernel
    count: int  # blocks that have it

    @property
    def launches(self) -> int:
        """Kernels that the engine launches for it in an iteration."""
        each = self.kernel.launches if isinstance(self.kernel, Pointwise) else 1
        return self.count * each


def have_experts(kernels: Iterable[CountedKernel]) -> bool:
    """Return whether kernels of a mixture of experts are among some."""
    return any(isinstance(counted.kernel, ExpertsKernel) for counted in kernels)
