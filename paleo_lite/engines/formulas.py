"""Times of the kernels of an inference engine, from their shapes, the rates of a device, and fitted constants.

Every formula combines the time of the arithmetic, of the memory traffic and of the shortest kernel::

    time = shortest kernel + (compute^(1 + s) + memory^(1 + s))^(1 / (1 + s))

with a sharpness s between 0 (arithmetic and traffic follow one another) and infinity (the longer one hides the other).
The constants of a class of kernels are the entries of a vector of logarithms, in the order of its `KernelClass`. All
functions are vectorised: shapes and rates may be numbers or arrays of the same length.

A launch with few tiles leaves multiprocessors idle. Where this matters, the time of the arithmetic is that of all tiles
on all multiprocessors plus that of one tile, which nothing divides. Tiles are counted without rounding, and the work of
one is that of the largest, so that no kernel takes less time for being larger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

TILE = 128
"""Rows and columns of the output that one multiprocessor computes at a time (CUTLASS's default on Ampere and later)."""

FEWEST_ROWS = 16
"""Rows that a tensor-core instruction multiplies at once; fewer rows take as long."""

RESULT_BYTES = 2
"""Bytes of a number of a kernel's result: engines keep activations in 16 bits between kernels."""


class KernelRates(NamedTuple):
    """Rates of a device for one kernel."""

    peak_per_s: Any  # dense peak in FLOP/s at the clock of the data sheet, in the precision of the kernel's products
    bandwidth_bytes_per_s: Any  # memory bandwidth
    multiprocessors: Any  # number of multiprocessors
    # Highest clock of the data sheet, in whose cycles the shortest kernels of devices are more alike than in seconds.
    clock_hz: Any


class MatrixSizes(NamedTuple):
    """Sizes of a product of `m` rows with a matrix of `n` columns and `k` rows."""

    m: Any
    n: Any
    k: Any
    weight_bytes: Any  # per number of the matrix
    operand_bytes: Any  # per number of the left operand
    groups: Any = 1  # products of this size in one launch
    is_quantised: bool = False  # whether the left operand is in its narrow format already


class ExpertSizes(NamedTuple):
    """Sizes of a layer of experts on one device."""

    rows: Any  # that the experts of this device compute
    distinct: Any  # experts of this device that at least one token chooses
    hidden_size: Any  # of an expert on this device
    inner_size: Any  # of an expert on this device
    matrices: Any  # of an expert: 3 with a gate, 2 without
    weight_bytes: Any  # per number of the weights
    operand_bytes: Any  # per number of the activations that are multiplied


class AttentionSizes(NamedTuple):
    """Sizes of attention on one device."""

    heads: Any  # of queries
    kv_heads: Any  # of keys and values
    key_size: Any  # elements of a key
    # Elements of a value; in decoding, of those that are read besides the key: 0 if values are a part of the keys
    # (latent attention).
    value_size: Any
    cache_bytes: Any  # per number of the KV cache


class KernelClass(msgspec.Struct, frozen=True):
    """A class of kernels: its formula and its constants."""

    name: str  # name of the class
    time_s: Callable[..., Any]  # function from the logarithms of the constants and the shapes to seconds
    parameters: dict[str, str]  # constants with their units
    # Record that the formula takes as ``sizes``, besides shapes and rates; None if it takes all of them one by one.
    sizes: type[MatrixSizes] | type[ExpertSizes] | type[AttentionSizes] | None = None


def combine(compute_s: Any, memory_s: Any, sharpness: Any) -> Any:
    """Return the norm of the times of arithmetic and traffic: their sum at sharpness 0, the larger one at infinity."""
    exponent = 1 + sharpness
    larger, smaller = np.maximum(compute_s, memory_s), np.minimum(compute_s, memory_s)
    ratio = smaller / np.maximum(larger, 1e-30)
    return larger * (1 + ratio**exponent) ** (1 / exponent)


def product_s(theta: Any, rates: KernelRates, *, sizes: MatrixSizes) -> Any:
    """Return the time of a product.

    ``compute = 2 (k + half depth) * (m n / (peak * efficiency) + tile / tile rate)``, with a tile of at most 128 rows
    and columns: a short inner loop is mostly prologue. Operands that are narrower than 16 bits are quantised first,
    which reads 16 bits of each number of the left operand and writes the narrow ones, unless the kernel before it has
    done so.

    `theta` are the logarithms of efficiency, share of bandwidth, shortest kernel, rate of one tile, half depth,
    sharpness, and traffic of the quantisation relative to one read and one write.
    """
    efficiency, share, floor_cycles, tile_rate, half_depth, sharpness, quantisation = np.exp(theta)
    rows = np.maximum(sizes.m, FEWEST_ROWS)
    tile = np.minimum(rows, TILE) * np.minimum(sizes.n, TILE)
    depth_s = sizes.groups * rows * sizes.n / (rates.peak_per_s * efficiency) + tile / tile_rate
    compute_s = 2.0 * (sizes.k + half_depth) * depth_s
    moved_bytes, quantised_bytes = product_bytes(sizes)
    memory_s = moved_bytes / (rates.bandwidth_bytes_per_s * share)
    quantisation_s = quantisation * quantised_bytes / rates.bandwidth_bytes_per_s
    return floor_cycles / rates.clock_hz + combine(compute_s, memory_s, sharpness) + quantisation_s


def product_bytes(sizes: MatrixSizes) -> tuple[Any, Any]:
    """Return the bytes that a product moves, and those of the quantisation of its left operand."""
    m, n, k, weight_bytes, operand_bytes, groups, is_quantised = sizes
    moved_bytes = groups * (n * k * weight_bytes + m * k * operand_bytes + RESULT_BYTES * m * n)
    quantises = (operand_bytes < RESULT_BYTES) & (not is_quantised)
    quantised_bytes = np.where(quantises, m * k * groups * (RESULT_BYTES + operand_bytes), 0.0)
    return moved_bytes, quantised_bytes


def experts_s(
    theta: Any,
    rates: KernelRates,
    *,
    tokens: Any,  # that are routed
    active: Any,  # experts per token
    sizes: ExpertSizes,
) -> Any:
    """Return the time of a layer of experts on one device, without its router: permutation, products, activation, sum.

    The rows of every expert are padded to whole tiles, and only experts with a token are read. All tokens are gathered
    and summed, whichever device holds their experts.

    `theta` are the logarithms of efficiency, share of bandwidth, shortest time, padded rows per expert, half, traffic
    per token relative to one write of every row, and sharpness.
    """
    efficiency, share, floor_cycles, padding, half, traffic, sharpness = np.exp(theta)
    padded = sizes.rows + sizes.distinct * padding
    tile = TILE * np.minimum(sizes.inner_size, TILE)
    computed = padded * sizes.inner_size + half * rates.multiprocessors * tile
    flops = 2.0 * sizes.matrices * sizes.hidden_size * computed
    compute_s = flops / (rates.peak_per_s * efficiency)
    memory_s = experts_bytes(sizes) / (rates.bandwidth_bytes_per_s * share)
    tokens_s = traffic * RESULT_BYTES * tokens * active * sizes.hidden_size / rates.bandwidth_bytes_per_s
    return floor_cycles / rates.clock_hz + combine(compute_s, memory_s, sharpness) + tokens_s


def experts_bytes(sizes: ExpertSizes) -> Any:
    """Return the bytes that the products of experts move: the matrices of those with a row, and activations."""
    weights_bytes = sizes.distinct * sizes.matrices * sizes.hidden_size * sizes.inner_size * sizes.weight_bytes
    row_bytes = sizes.hidden_size * sizes.operand_bytes + sizes.inner_size * RESULT_BYTES
    return weights_bytes + 2.0 * sizes.rows * row_bytes


TYPICAL_SIZE = 128
"""Numbers of a key and of a value at which the efficiency of attention is stated."""


def prompt_attention_s(
    theta: Any,
    rates: KernelRates,
    *,
    sequences: Any,  # number of prompts
    length: Any,  # new tokens of each prompt
    pairs: Any,  # of a query and a key, per prompt and head
    sizes: AttentionSizes,
    encoded: Any = 0,  # keys of an encoder, which the new tokens attend to instead of to themselves
) -> Any:
    """Return the time of causal attention over prompts, or of that of all new tokens to the keys of an encoder.

    A tile of 128 queries of a head takes as long as if it had some more keys: its prologue, and what the mask leaves of
    the keys on the diagonal. Fewer queries take as long as a whole tile with their pairs.

    `theta` are the logarithms of efficiency with keys and values of 128 numbers, share of bandwidth, shortest kernel,
    half, keys that a tile takes besides its own, sharpness, and numbers of a key that the exponential of a pair is
    worth.
    """
    efficiency, share, floor_cycles, half, tile_keys, sharpness, pair_numbers = np.exp(theta)
    tiles = np.maximum(length / TILE, 1.0)
    computed_pairs = pairs + tiles * TILE * tile_keys
    heads_computed = sequences * sizes.heads + half * rates.multiprocessors / tiles
    numbers = sizes.key_size + sizes.value_size + pair_numbers
    size = numbers / (2 * TYPICAL_SIZE + pair_numbers) * 2 * TYPICAL_SIZE
    flops = 2.0 * size * heads_computed * computed_pairs
    compute_s = flops / (rates.peak_per_s * efficiency)
    memory_s = prompt_attention_bytes(sequences, length, sizes, encoded) / (rates.bandwidth_bytes_per_s * share)
    return floor_cycles / rates.clock_hz + combine(compute_s, memory_s, sharpness)


def prompt_attention_bytes(sequences: Any, length: Any, sizes: AttentionSizes, encoded: Any = 0) -> Any:
    """Return the bytes that attention over prompts moves: queries, keys, values and results, and the cache.

    Keys and values of an encoder are read from the cache, whose positions are `encoded`.
    """
    head_numbers = sizes.key_size + sizes.value_size
    if encoded:
        query_bytes = RESULT_BYTES * sizes.heads * head_numbers
        return sequences * (length * query_bytes + encoded * sizes.kv_heads * head_numbers * sizes.cache_bytes)
    numbers = sizes.heads * head_numbers + sizes.kv_heads * head_numbers
    cached_bytes = sizes.kv_heads * head_numbers * sizes.cache_bytes
    return sequences * length * (RESULT_BYTES * numbers + cached_bytes)


KEYS_PER_BLOCK = 256
"""Keys of one sequence and head that a multiprocessor reads in a decoding step."""


def decode_attention_s(
    theta: Any,
    rates: KernelRates,
    *,
    sequences: Any,  # number of sequences
    keys: Any,  # that each sequence attends to
    sizes: AttentionSizes,
) -> Any:
    """Return the time of attention of one new token per sequence against its cache.

    `theta` are the logarithms of efficiency, share of bandwidth, shortest kernel, half, sharpness, and cycles per
    sequence and head.
    """
    efficiency, share, floor_cycles, half, sharpness, head_cycles = np.exp(theta)
    kv_heads = sizes.kv_heads
    block_bytes = decode_attention_bytes(np.minimum(keys, KEYS_PER_BLOCK), sizes)
    moved_bytes = sequences * kv_heads * decode_attention_bytes(keys, sizes)
    memory_s = (moved_bytes + half * rates.multiprocessors * block_bytes) / (rates.bandwidth_bytes_per_s * share)
    rows = np.maximum(sizes.heads / kv_heads, FEWEST_ROWS) * kv_heads
    flops = 4.0 * sequences * rows * keys * sizes.key_size
    compute_s = flops / (rates.peak_per_s * efficiency) + head_cycles * sequences * kv_heads / rates.clock_hz
    return floor_cycles / rates.clock_hz + combine(compute_s, memory_s, sharpness)


def decode_attention_bytes(keys: Any, sizes: AttentionSizes) -> Any:
    """Return the bytes that attention of one new token moves by head of keys: keys, values, queries and results."""
    key_bytes = (sizes.key_size + sizes.value_size) * sizes.cache_bytes
    return keys * key_bytes + 2 * RESULT_BYTES * sizes.heads / sizes.kv_heads * sizes.key_size


def pointwise_s(theta: Any, rates: KernelRates, *, moved_bytes: Any) -> Any:
    """Return the time of a kernel that only moves numbers: norms, activations, rotary embeddings, routing, sampling.

    `theta` are the logarithms of share of bandwidth and shortest kernel; the bytes are those read and written.
    """
    share, floor_cycles = np.exp(theta)
    return floor_cycles / rates.clock_hz + moved_bytes / (rates.bandwidth_bytes_per_s * share)


FEWEST_SUMMED_RANKS = 8
"""Smallest number of devices whose messages the switch adds: tables of four devices show no sums in the switch."""


def all_reduce_s(
    theta: Any,
    *,
    ranks: Any,  # devices
    message_bytes: Any,
    link_bytes_per_s: Any,  # bandwidth of a device's links in one direction
    sums_in_switch: Any = False,  # whether the switch between the devices adds messages (NVLink SHARP)
) -> Any:
    """Return the time of an engine's all-reduce.

    The fastest of three kernels: one-shot, in which every device reads the messages of all others; two-shot, a
    reduce-scatter and an all-gather, each of ``(ranks - 1) / ranks`` of the message; and NCCL's for long messages,
    which starts later and reaches more of the bandwidth. Where the switch adds, every device sends the message once.

    `theta` are the logarithms of the latency, the latency per doubling of the ranks, the share of the link's bandwidth,
    the additional latency of the second shot, and of NCCL's kernel its share of the bandwidth, its additional latency,
    and its share of the bandwidth where the switch adds.
    """
    latency_s, doubling_s, share, second_s, library_share, library_s, switch_share = np.exp(theta)
    message_s = message_bytes / link_bytes_per_s
    divided = 2 * (ranks - 1) / ranks
    one_shot_s = (ranks - 1) * message_s / share
    two_shot_s = second_s + divided * message_s / share
    is_summed = np.logical_and(sums_in_switch, ranks >= FEWEST_SUMMED_RANKS)
    sent = np.where(is_summed, np.minimum(divided / library_share, 1 / switch_share), divided / library_share)
    third_s = library_s + sent * message_s
    # A smooth minimum, because libraries switch at a fixed size and not where the kernels are equally fast.
    switched_s = (one_shot_s**-4.0 + two_shot_s**-4.0 + third_s**-4.0) ** -0.25
    return latency_s + doubling_s * np.log2(ranks) + switched_s


def expert_exchange_s(
    theta: Any,
    *,
    sent_bytes: Any,  # that a device sends to others of its node
    node_bytes: Any,  # that a device sends to other nodes
    nodes: Any,  # number of nodes
    # Bandwidths of a device in one direction: of its links inside the node, and of those between nodes, which count
    # only where there are several.
    link_bytes_per_s: Any,
    node_link_bytes_per_s: Any,
) -> Any:
    """Return the time of the dispatch or of the combination of tokens among the devices that hold the experts.

    Transfers inside nodes and between them take place at the same time. `theta` are the logarithms of the latency, the
    latency per doubling of the nodes, and the shares of the bandwidth of links inside nodes and between them.
    """
    latency_s, doubling_s, share, node_share = np.exp(theta)
    inside_s = sent_bytes / (link_bytes_per_s * share)
    between_s = np.where(np.greater(nodes, 1), node_bytes / (node_link_bytes_per_s * node_share), 0.0)
    return latency_s + doubling_s * np.log2(nodes) + np.maximum(inside_s, between_s)


PRODUCTS = KernelClass(
    "products",
    product_s,
    {
        "efficiency": "share of peak",
        "bandwidth_share": "share of bandwidth",
        "floor_cycles": "cycles",
        "tile_rate": "FLOP/s of one tile",
        "half_depth": "depth of the product at half efficiency",
        "sharpness": "",
        "quantisation": "relative to one read and one write",
    },
    sizes=MatrixSizes,
)

EXPERTS = KernelClass(
    "experts",
    experts_s,
    {
        "efficiency": "share of peak",
        "bandwidth_share": "share of bandwidth",
        "floor_cycles": "cycles",
        "padding": "rows per expert",
        "half": "tiles per multiprocessor at half efficiency",
        "traffic": "relative to one write of every row",
        "sharpness": "",
    },
    sizes=ExpertSizes,
)

PROMPT_ATTENTION = KernelClass(
    "prompt attention",
    prompt_attention_s,
    {
        "efficiency": "share of peak",
        "bandwidth_share": "share of bandwidth",
        "floor_cycles": "cycles",
        "half": "tiles per multiprocessor at half efficiency",
        "tile_keys": "keys that a tile takes besides its own",
        "sharpness": "",
        "pair_numbers": "numbers of a key that an exponential is worth",
    },
    sizes=AttentionSizes,
)

DECODE_ATTENTION = KernelClass(
    "decode attention",
    decode_attention_s,
    {
        "efficiency": "share of peak",
        "bandwidth_share": "share of bandwidth",
        "floor_cycles": "cycles",
        "half": "blocks per multiprocessor at half bandwidth",
        "sharpness": "",
        "head_cycles": "cycles per sequence and head",
    },
    sizes=AttentionSizes,
)

SINGLE_DECODE_ATTENTION = msgspec.structs.replace(DECODE_ATTENTION, name="single decode attention")
"""Decoding where every head of queries has keys of its own, in engines that have other kernels for it than for heads
that share keys (`paleo_lite.engines.records.record.Kernels.has_single_decode`)."""

LATENT_PROMPT_ATTENTION = msgspec.structs.replace(PROMPT_ATTENTION, name="latent prompt attention")
LATENT_DECODE_ATTENTION = msgspec.structs.replace(DECODE_ATTENTION, name="latent decode attention")

POINTWISE = KernelClass(
    "pointwise",
    pointwise_s,
    {"bandwidth_share": "share of bandwidth", "floor_cycles": "cycles"},
)

ALL_REDUCE = KernelClass(
    "all-reduce",
    all_reduce_s,
    {
        "latency_s": "s",
        "doubling_s": "s",
        "bandwidth_share": "share of bandwidth",
        "second_s": "s",
        "library_share": "share of bandwidth",
        "library_s": "s",
        "switch_share": "share of bandwidth",
    },
)

EXPERT_EXCHANGE = KernelClass(
    "expert exchange",
    expert_exchange_s,
    {
        "latency_s": "s",
        "doubling_s": "s",
        "bandwidth_share": "share of bandwidth",
        "node_share": "share of bandwidth between nodes",
    },
)

KERNEL_CLASSES = {
    kernel_class.name: kernel_class
    for kernel_class in (
        PRODUCTS, EXPERTS, PROMPT_ATTENTION, DECODE_ATTENTION, SINGLE_DECODE_ATTENTION,
        LATENT_PROMPT_ATTENTION, LATENT_DECODE_ATTENTION, POINTWISE, ALL_REDUCE, EXPERT_EXCHANGE,
    )
}  # fmt: skip
"""Classes of kernels by name."""
