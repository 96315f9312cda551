"""Kernels of a decoder under an inference engine, described by their shapes.

The names are those that users of engines know: QKV projection, attention, router, experts, all-reduce, norm, sampling.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Rows = Literal["tokens", "decoding", "prompts", "sampled"]
"""What a kernel has a row for: all new tokens of an iteration, those of decoding sequences or of prompts only, or the
sequences of which a token is sampled."""


class Product(msgspec.Struct, frozen=True):
    """A product of new tokens with a matrix of weights.

    Attributes
    ----------
    name : str
        Name of the kernel.
    n, k : int
        Columns of the result and depth of the product, on one device.
    groups : int
        Products of this size in one launch.
    part : {"attention", "feed-forward", "plain"}
        Part of the network, on which the format of the matrix depends; routers, heads and the products of latent
        attention with single heads are plain: they stay in 16 bits.
    rows : Rows
        What has a row.
    is_stored : bool
        Whether the matrix takes memory of its own: a head may share that of the embedding, and the prompts of latent
        attention use the matrices of decoding.
    """

    name: str
    n: int
    k: int
    groups: int = 1
    part: Literal["attention", "feed-forward", "plain"] = "feed-forward"
    rows: Rows = "tokens"
    is_stored: bool = True


class Experts(msgspec.Struct, frozen=True):
    """A layer of experts, from the permutation of the tokens to the weighted sum.

    Attributes
    ----------
    name : str
        Name of the kernel.
    hidden_size, inner_size : int
        Sizes of an expert, undivided.
    experts, active : int
        Experts of the layer, and how many of them each token passes.
    matrices : int
        Matrices of an expert: 3 with a gate, 2 without.
    rows : Rows
        What has a row.
    """

    name: str
    hidden_size: int
    inner_size: int
    experts: int
    active: int
    matrices: int
    rows: Rows = "tokens"


class Attention(msgspec.Struct, frozen=True):
    """Attention of new tokens to the KV cache.

    Attributes
    ----------
    name : str
        Name of the kernel.
    heads, kv_heads : int
        Heads of queries, and of keys and values, on one device.
    key_size, value_size : int
        Elements of a key, and of a value that is stored besides the key.
    window : int or None
        Tokens back that a query attends to; None: all.
    is_latent : bool
        Whether keys and values come from one latent vector per token.
    rows : Rows
        What has a row.
    """

    name: str
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None
    is_latent: bool = False
    rows: Rows = "decoding"


class Pointwise(msgspec.Struct, frozen=True):
    """A kernel that only moves numbers.

    Attributes
    ----------
    name : str
        Name of the kernel.
    row_bytes : float
        Bytes read and written per row.
    fixed_bytes : float
        Bytes read and written whatever the number of rows.
    launches : int
        Kernels that the engine launches for it; 0 if another kernel does its work.
    row_flops : float
        FLOPs per row, of recurrences.
    rows : Rows
        What has a row.
    weights : int
        Weights that are kept in 16 bits, such as the table of an embedding.
    state_bytes : float
        Bytes of the state that a sequence keeps, of recurrences.
    """

    name: str
    row_bytes: float
    fixed_bytes: float = 0.0
    launches: int = 1
    row_flops: float = 0.0
    rows: Rows = "tokens"
    weights: int = 0
    state_bytes: float = 0.0


class Exchange(msgspec.Struct, frozen=True):
    """An exchange between the devices of a group.

    Attributes
    ----------
    name : str
        Name of the kernel.
    pattern : {"all-reduce", "all-gather", "dispatch", "combine"}
        What is exchanged.
    row_bytes : float
        Bytes of the message per row.
    rows : Rows
        What has a row.
    """

    name: str
    pattern: Literal["all-reduce", "all-gather", "dispatch", "combine"]
    row_bytes: float
    rows: Rows = "tokens"


Kernel = Product | Experts | Attention | Pointwise | Exchange


class CountedKernel(msgspec.Struct, frozen=True):
    """A kernel, and how often an iteration launches it.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    count : int
        Blocks that have it.
    """

    kernel: Kernel
    count: int
