"""Kernels of a decoder under an inference engine, described by their shapes, and what each has to do in an iteration.

The names are those that users of engines know: QKV projection, attention, router, experts, all-reduce, norm, sampling.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import numpy as np

from ..counting.kinds.products import pairs_in_chunks

Rows = Literal["tokens", "decoding", "prompts", "sampled", "encoded"]
"""What a kernel has a row for: all new tokens of an iteration, those of decoding sequences or of prompts only, the
sequences of which a token is sampled, or the positions that an encoder computes for every prompt."""


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
    producer: str = ""  # pointwise kernel whose result is the left operand; empty where that of another one is
    positions: int = 0  # that an encoder computes for a prompt, of kernels with rows for them


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
    # Positions of an encoder, to all of which every query attends, whatever the context; 0: to the tokens before it.
    positions: int = 0


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
    positions: int = 0  # that an encoder computes for a prompt, of kernels with rows for them


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
    return count_expert_layers(kernels) > 0


def count_expert_layers(kernels: Iterable[CountedKernel]) -> int:
    """Return the layers of experts of an iteration."""
    return sum(counted.count for counted in kernels if isinstance(counted.kernel, ExpertsKernel))


class Load(msgspec.Struct, frozen=True):
    """What an iteration computes on one device; all fields are numbers or arrays of the same shape."""

    tokens: Any = 0.0  # new tokens of this device's attention group
    all_tokens: Any = 0.0  # new tokens of all attention groups together, which pass the experts
    sampled: Any = 0.0  # sequences of which a token is sampled
    # Decoding sequences, and tokens in the cache of each.
    sequences: Any = 0.0
    context: Any = 0.0
    spread: Any = 0.0  # by how much the contexts of the sequences are longer or shorter than their mean at most
    # Prompts, new tokens of each, and tokens of each that are in the cache already.
    prompts: Any = 0.0
    length: Any = 0.0
    cached: Any = 0.0
    has_prompts: bool = False  # whether some of the new tokens are those of prompts

    @classmethod
    def of_decoding(cls, sequences: Any, context: Any, groups: int = 1) -> Load:
        """Return the load of decoding sequences of all attention groups, on a device of the group with the most."""
        group_sequences = np.ceil(np.asarray(sequences) / groups)
        return cls(
            tokens=group_sequences,
            all_tokens=sequences,
            sampled=group_sequences,
            sequences=group_sequences,
            context=context,
        )

    @classmethod
    def of_prompts(cls, prompts: Any, length: Any, groups: int = 1) -> Load:
        """Return the load of whole prompts of all attention groups, evenly divided among the groups that have any."""
        busy = np.minimum(prompts, groups)
        group_tokens = np.ceil(np.asarray(prompts * length) / busy)
        sampled = np.ceil(np.asarray(prompts) / groups)
        return cls(group_tokens, prompts * length, sampled, prompts=prompts / busy, length=length, has_prompts=True)


def decoded_keys(kernel: AttentionKernel, load: Load) -> Any:
    """Return the keys that the new token of a decoding sequence attends to, itself among them.

    With chunks it is the mean over the contexts. One context beyond the first chunk stands for sequences that are
    anywhere in a chunk: that of 16,384 tokens would begin one.
    """
    context = np.asarray(load.context)
    if kernel.positions:
        return np.full(np.shape(context), float(kernel.positions))[()]
    if kernel.chunk is not None:
        shortest, longest = np.maximum(context - load.spread, 0.0), context + load.spread
        pairs = pairs_in_chunks(longest + 1, kernel.chunk) - pairs_in_chunks(shortest, kernel.chunk)
        is_known = (context < kernel.chunk) | (np.asarray(load.spread) > 0)
        return np.where(is_known, pairs / (longest + 1 - shortest), (kernel.chunk + 1) / 2)
    return context + 1.0 if kernel.window is None else np.minimum(context + 1.0, kernel.window)


def prompt_pairs(kernel: AttentionKernel, length: Any, cached: Any) -> Any:
    """Return the pairs of a query and a key of a prompt that the mask of a kernel leaves."""
    if kernel.positions:
        return np.asarray(length, dtype=np.float64) * kernel.positions
    if kernel.chunk is not None:
        return pairs_in_chunks(cached + length, kernel.chunk) - pairs_in_chunks(cached, kernel.chunk)
    return causal_pairs(length, cached, kernel.window)


def causal_pairs(length: Any, cached: Any, window: int | None) -> Any:
    """Return the pairs of a query and a key of a prompt under a causal mask."""
    full = length * cached + length * (length + 1) / 2
    if window is None:
        return full
    inside = np.minimum(length, np.maximum(window - cached, 0))
    return inside * cached + inside * (inside + 1) / 2 + (length - inside) * window


def prompt_queries(kernel: AttentionKernel, load: Load) -> Any:
    """Return the queries of a prompt: its new tokens, or the positions of an encoder."""
    return np.asarray(kernel.positions if kernel.rows == "encoded" else load.length, dtype=np.float64)


def rows_of(kernel: ProductKernel | Pointwise | ExchangeKernel, load: Load) -> Any:
    """Return the rows of a kernel."""
    if kernel.rows == "sampled":
        return np.asarray(load.sampled, dtype=np.float64)
    if kernel.rows == "decoding":
        return np.asarray(load.sequences, dtype=np.float64)
    if kernel.rows == "prompts":
        return np.asarray(load.prompts, dtype=np.float64) * np.asarray(load.length, dtype=np.float64)
    if kernel.rows == "encoded":
        assert not isinstance(kernel, ExchangeKernel)
        return np.asarray(load.prompts, dtype=np.float64) * kernel.positions
    return np.asarray(load.tokens, dtype=np.float64)
