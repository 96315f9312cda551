"""Times of llama.cpp for several sequences at once: what an iteration of `llama-server` with its slots takes.

Matrices are read once for all tokens of a batch. Few tokens are multiplied like one, number by number; many as a
product of matrices at the share of the peak that prompts reach; the faster way counts. Attention of each slot reads its
own keys and values. No measurement of several slots was fitted.
"""

from __future__ import annotations

import msgspec

from ..calibration.evidence_file import EvidenceCalibration
from ..engines.records.record import LocalEngine
from ..machines import Device
from ..timing.activity import Activity
from .causes import KIND, calibrated_constants, local_traits
from .contents import Contents, Piece
from .memory import buffer_bytes_of, usable_bytes, whole_bytes
from .step import (
    UBATCH,
    BackendConstants,
    attention_s,
    cache_read_s,
    constants_of,
    overlap_s,
    padding_of,
    piece_parts_s,
    prompt_peak_per_s,
    prompt_rate_per_s,
)

TYPICAL_CONTEXT = 2048
"""Context at which the interval of calibrated constants is computed."""


class LocalModel(msgspec.Struct, frozen=True):
    """A network under an engine of one's own machine, wholly on one device."""

    engine: str  # name of the engine
    contents: Contents  # the network, with one piece per type
    device: Device
    constants: BackendConstants  # constants of its backend
    calibrated: str = ""  # what calibrates them, for the user

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights on the device."""
        return whole_bytes(self.contents, 0) - self.buffer_bytes

    @property
    def buffer_bytes(self) -> float:
        """Bytes of buffers."""
        return buffer_bytes_of(self.contents)

    @property
    def cache_room_bytes(self) -> float:
        """Bytes that remain for keys and values."""
        return usable_bytes(self.device) - whole_bytes(self.contents, 0)


def make_local_model(
    contents: Contents, device: Device, engine: LocalEngine, calibration: EvidenceCalibration | None = None
) -> LocalModel:
    """Return a network on a device with the constants of an engine's usual backend, calibrated if that is asked for."""
    backend = engine.backend_of(device)
    constants, note = constants_of(backend, device), ""
    if calibration is not None:
        note = calibration.describe_distance(KIND, local_traits(contents, device, backend))
        constants = calibrated_constants(calibration, contents, device, backend, constants, TYPICAL_CONTEXT, UBATCH)
    return LocalModel(engine.name, contents.merged(), device, constants, note)


def matrices_s(model: LocalModel, tokens: float, rows: str = "tokens") -> float:
    """Return the seconds of a batch in the matrices of every token and its launches, or in the head (rows ``last``)."""
    if not tokens:
        return 0.0
    batches = -(-tokens // UBATCH)
    pieces = [piece for piece in model.contents.pieces if piece.rows == rows]
    seconds = sum(_piece_s(model, piece, tokens / batches) for piece in pieces) * batches
    launches = model.contents.launches if rows == "tokens" else 0.0
    return seconds + batches * launches * model.constants.wait_s(model.device)


def _piece_s(model: LocalModel, piece: Piece, tokens: float) -> float:
    """Return the seconds of a piece in a batch that is computed at once."""
    read_s, unpack_s = piece_parts_s(piece, model.device, model.constants)
    if piece.is_expert and piece.stored_bytes:
        share = piece.read_bytes / piece.stored_bytes
        read_s *= (1 - (1 - share) ** tokens) / share  # distinct experts of all tokens
    rate_per_s = prompt_rate_per_s(model.device, piece.group, model.constants)
    product_s = 2.0 * piece.numbers * tokens * padding_of(piece, model.constants, tokens) / rate_per_s
    return min(overlap_s(read_s, tokens * unpack_s), read_s + product_s)


def slots_attention_s(model: LocalModel, sequences: float, context: float) -> float:
    """Return the seconds of attention of one new token of each of some sequences."""
    return sequences * cache_read_s(model.contents, model.device, model.constants, context)


def prompt_attention_s(model: LocalModel, length: float) -> float:
    """Return the seconds of attention of a whole prompt."""
    return attention_s(model.contents, model.device, model.constants, length)


def slots_activity(model: LocalModel, sequences: float, context: float, prompt_tokens: float = 0.0) -> Activity:
    """Return what a device does in an iteration, its launches aside: reading memory, and the products of prompts."""
    tokens = sequences + prompt_tokens
    launches_s = -(-tokens // UBATCH) * model.contents.launches * model.constants.wait_s(model.device)
    busy_s = matrices_s(model, tokens) - launches_s + matrices_s(model, sequences + bool(prompt_tokens), "last")
    numbers = sum(piece.numbers for piece in model.contents.pieces if piece.rows == "tokens")
    peak_s = 2.0 * numbers * tokens / prompt_peak_per_s(model.device)
    if prompt_tokens:
        return Activity(busy_s + prompt_attention_s(model, prompt_tokens), 0.0, 0.0, peak_s)
    return Activity(0.0, busy_s + slots_attention_s(model, sequences, context), 0.0, peak_s)
