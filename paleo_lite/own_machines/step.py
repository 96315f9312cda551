"""Times of llama.cpp on a device: a token of the answer, and a prompt.

A token reads every matrix once. A matrix takes the norm of the time to read it and of the time to unpack and multiply
its numbers on the lanes; a block takes some launches besides. Prompts are computed in batches of `UBATCH` tokens at a
share of the peak in 16 bits. Constants depend on the backend and on the group of tensor types
(`paleo_lite.own_machines.contents.GROUPS`), and are fitted to published tables (``validation/local``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import msgspec
import numpy as np

from ..errors import BadValue, UnknownPrecision
from ..files import read_shipped
from ..machines import Device
from ..timing.activity import Activity
from .contents import GROUPS, Contents, Piece

UBATCH = 512
"""Tokens of a prompt that are computed at once (``-ub``)."""

SHARPNESS = 4.0
"""Exponent of the norm of reading and unpacking."""

DEVIATIONS_AT_90 = 1.8
"""Standard deviations on each side of the interval at 90%."""

MATRIX_FLOPS_PER_CYCLE = 1024.0
"""FLOPs per cycle and multiprocessor of the matrix instructions that kernels for quantized numbers use: those of one
warp, at their rate on GeForce cards. Matrix units of data-centre devices are up to eight times as fast, but not with
these instructions."""

INTEGER_SHARES = {"legacy": 1.0, "k": 0.5, "table": 0.5, "mxfp4": 0.5}
"""Share of the peak of integer products of lanes by group of types: scales in two levels and look-ups take as many
instructions as the products themselves (an RX 6800 and an MI50 in llama.cpp's pull requests 24127 and 27841)."""

LANE_GAINS = {"G15": 1.5, "G16": 1.5, "G17": 1.5}
"""Numbers that a lane unpacks in a cycle relative to the constants, by architecture: Apple's GPUs since the M3 issue
integer and floating-point instructions at once."""

PROMPT_GAINS = {"G15": 1.2, "G16": 1.2}
"""Share of the peak in prompts relative to the constants, by architecture, for the same reason; the M5 multiplies by
its neural accelerators instead."""

FILE = "llama_cpp.json"


class BackendConstants(msgspec.Struct, frozen=True):
    """Constants of a backend."""

    share: float  # share of the memory bandwidth that matrices reach
    cache_share: float  # share of the memory bandwidth that keys and values reach
    unpack: dict[str, float]  # numbers per lane and clock cycle by group of types
    # Additional seconds of a token per block of a dense transformer: launches, norms, synchronisation.
    block_s: float
    efficiency: dict[str, float]  # share of the peak in prompts by group of types
    attention_efficiency: float  # share of the peak of attention in prompts
    expert_rows: float  # tokens of an expert in a batch at which its products reach half of that share
    # Standard deviation of the logarithm of the time of a token, and of a prompt, of devices that were left out.
    deviation: float
    prompt_deviation: float
    # Cores of the device for which `block_s` holds, if that time grows with the cores; 0 if it is the same for all.
    block_cores: float = 0.0
    # Makers of the measured devices, if the backend is for those of several makers, and the deviation of the time of a
    # prompt on devices of a maker that was left out; that of a token is no larger than `deviation`.
    makers: tuple[str, ...] = ()
    other_maker_deviation: float = 0.0

    def wait_s(self, device: Device) -> float:
        """Return the overhead per transformer block on a device: launches, norms, synchronisation."""
        if not self.block_cores:
            return self.block_s
        return self.block_s * float(device.cores.multiprocessors.value) / self.block_cores


class LocalConstants(msgspec.Struct, frozen=True):
    """Constants of all backends."""

    backends: dict[str, BackendConstants]  # constants by backend
    pipeline: float  # share of the ideal gain of batches that several devices compute one after another
    sources: tuple[str, ...] = ()  # published tables


@cache
def local_constants() -> LocalConstants:
    """Return the shipped constants."""
    return read_shipped(FILE, LocalConstants)


def constants_of(backend: str, device: Device) -> BackendConstants:
    """Return the constants of a backend, less certain for a device of a maker of which none was measured."""
    constants = local_constants().backends[backend]
    if not constants.makers or device.vendor in constants.makers:
        return constants
    deviation = max(constants.prompt_deviation, constants.other_maker_deviation)
    return msgspec.structs.replace(constants, prompt_deviation=deviation)


def prompt_peak_per_s(device: Device, group: str = "legacy") -> float:
    """Return the peak of prompts in FLOP/s: the fastest in 16 bits, whatever its sums, or that of fp32.

    Quantized numbers are multiplied as integers of 8 bits, also by lanes that add four products at once where there are
    no matrix units; the rate is at most what the instructions of their kernels reach (`MATRIX_FLOPS_PER_CYCLE`).
    """
    rates = [peak.per_s for peak in device.peaks if peak.precision in ("fp16", "bf16")]
    if group != "wide":
        share = INTEGER_SHARES[group]
        rates += [share * peak.per_s for peak in device.peaks if (peak.precision, peak.unit) == ("int8", "vector")]
    try:
        rates.append(device.find_peak("fp32", "vector").per_s)
    except UnknownPrecision:
        if not rates:
            raise
    if group == "wide":
        return max(rates)
    if device.scope == "cpu":  # integers of 8 bits are multiplied in lanes of 32
        return device.find_peak("fp32", "vector").per_s
    clock_hz = device.clock_hz(device.clocks.default)
    if clock_hz is None:
        return max(rates)
    return min(max(rates), float(device.cores.multiprocessors.value) * clock_hz * MATRIX_FLOPS_PER_CYCLE)


def prompt_rate_per_s(device: Device, group: str, constants: BackendConstants) -> float:
    """Return the FLOP/s that products of a prompt reach with matrices of a group of types."""
    gain = PROMPT_GAINS.get(device.architecture, 1.0)
    return prompt_peak_per_s(device, group) * constants.efficiency[group] * gain


def lane_cycles_per_s(device: Device) -> float:
    """Return the fp32 lanes of a device times its clock."""
    clock_hz = device.clock_hz(device.clocks.default)
    lanes = device.cores.fp32_lanes
    if clock_hz is None or lanes is None:
        raise BadValue(f"{device.name} has no {'clock' if clock_hz is None else 'lanes'} on record")
    return float(lanes.value) * clock_hz


def piece_parts_s(piece: Piece, device: Device, constants: BackendConstants) -> tuple[float, float]:
    """Return the seconds in which a token reads a piece, and in which it unpacks and multiplies its numbers."""
    read_s = piece.read_bytes / (device.bandwidth_bytes_per_s * constants.share)
    numbers_per_cycle = constants.unpack[piece.group] * LANE_GAINS.get(device.architecture, 1.0)
    unpack_s = piece.numbers / (lane_cycles_per_s(device) * numbers_per_cycle)
    return read_s, unpack_s


def piece_s(piece: Piece, device: Device, constants: BackendConstants) -> float:
    """Return the seconds in which a token reads and multiplies a piece."""
    return overlap_s(*piece_parts_s(piece, device, constants))


def overlap_s(read_s: float, unpack_s: float) -> float:
    """Return the seconds of reading and unpacking that overlap: the norm of both."""
    larger = max(read_s, unpack_s)
    if not larger:
        return 0.0
    ratio = min(read_s, unpack_s) / larger
    return float(larger * (1 + ratio**SHARPNESS) ** (1 / SHARPNESS))


def cache_read_s(contents: Contents, device: Device, constants: BackendConstants, context: float) -> float:
    """Return the seconds in which a token reads the keys and values of a context."""
    return contents.cache_bytes(context) / (device.bandwidth_bytes_per_s * constants.cache_share)


def token_s(contents: Contents, device: Device, constants: BackendConstants, context: float) -> float:
    """Return the seconds of a token behind a context, with everything on one device."""
    matrices_s = sum(piece_s(piece, device, constants) for piece in contents.pieces)
    waits_s = contents.launches * constants.wait_s(device)
    return matrices_s + cache_read_s(contents, device, constants, context) + waits_s


def token_activity(
    contents: Contents,
    pieces: Iterable[Piece],
    device: Device,
    constants: BackendConstants,
    context: float,
    cache_share: float = 1.0,
) -> Activity:
    """Return what a device does for a token: it unpacks numbers of pieces, reads them and its share of the cache.

    The same kernels read and unpack, so that the seconds overlap (`Activity.overlapping_shares_of`).
    """
    arithmetic_s, memory_s, numbers = 0.0, cache_share * cache_read_s(contents, device, constants, context), 0.0
    for piece in pieces:
        read_s, unpack_s = piece_parts_s(piece, device, constants)
        arithmetic_s += unpack_s
        memory_s += read_s
        numbers += piece.numbers
    return Activity(arithmetic_s, memory_s, 0.0, 2.0 * numbers / prompt_peak_per_s(device))


def prompt_activity(contents: Contents, device: Device, constants: BackendConstants, tokens: int) -> Activity:
    """Return the activity of a device during a prompt, without the waits between blocks."""
    batches = -(-tokens // UBATCH)
    seconds = prompt_s(contents, device, constants, tokens) - batches * contents.launches * constants.wait_s(device)
    numbers = sum(piece.numbers for piece in contents.pieces if piece.rows == "tokens")
    return Activity(seconds, 0.0, 0.0, 2.0 * numbers * tokens / prompt_peak_per_s(device))


def prompt_s(
    contents: Contents,
    device: Device,
    constants: BackendConstants,
    tokens: int,
    *,
    cached: int = 0,
    largest_share: float = 1.0,
    pipeline: float = 0.0,
) -> float:
    """Return the seconds of a prompt behind a cached context, in batches that several devices may overlap.

    The largest share is that of the blocks on the device that has most: 1 of one device.
    """
    batches = -(-tokens // UBATCH)
    total_s = 0.0
    for group in GROUPS:
        pieces = [piece for piece in contents.pieces if piece.group == group and piece.rows != "none"]
        rows = sum(
            piece.numbers * (tokens if piece.rows == "tokens" else 1) * padding_of(piece, constants, tokens / batches)
            for piece in pieces
        )
        total_s += 2.0 * rows / prompt_rate_per_s(device, group, constants)
        read_bytes = sum(piece.stored_bytes if piece.is_expert else piece.read_bytes for piece in pieces)
        total_s += batches * read_bytes / (device.bandwidth_bytes_per_s * constants.share)
    total_s += attention_s(contents, device, constants, tokens, cached)
    total_s += batches * contents.launches * constants.wait_s(device)
    return total_s * overlapped_share(tokens, largest_share, pipeline)


def overlapped_share(tokens: int, largest_share: float, pipeline: float) -> float:
    """Return the time of a prompt whose batches follow one another over several devices, over that of taking turns.

    The largest share is that of the time on the device which takes longest. A batch passes all devices in turn, and the
    next ones follow at the pace of that device.
    """
    batches = -(-tokens // UBATCH)
    gain = 1 - (1 + (batches - 1) * largest_share) / batches
    return 1 - pipeline * gain


def attention_s(
    contents: Contents, device: Device, constants: BackendConstants, tokens: float, cached: float = 0.0
) -> float:
    """Return the seconds of attention of a prompt behind a cached context."""
    gain = PROMPT_GAINS.get(device.architecture, 1.0)
    rate_per_s = prompt_peak_per_s(device) * constants.attention_efficiency * gain
    mean = cached + tokens / 2
    reached = [mean if window is None else min(mean, window) for window in contents.windows]
    return sum(flops * tokens * keys for flops, keys in zip(contents.pair_flops, reached)) / rate_per_s


def padding_of(piece: Piece, constants: BackendConstants, batch_tokens: float) -> float:
    """Return the time of a product of a batch relative to that of a large one: an expert has few tokens of its own."""
    if not piece.is_expert:
        return 1.0
    own_tokens = max(batch_tokens * piece.read_bytes / piece.stored_bytes, 1.0)
    return 1.0 + constants.expert_rows / own_tokens


def interval_of(seconds: float, deviation: float) -> tuple[float, float]:
    """Return the interval that contains a time with a probability of 90%."""
    factor = float(np.exp(DEVIATIONS_AT_90 * deviation))
    return seconds / factor, seconds * factor
