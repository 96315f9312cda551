"""Times of the iterations of `llama-server` and its like: slots on one device.

A slot is a sequence that runs; the cache is one for all slots, and a request waits until its whole length is free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engines.records.record import Server
from ..errors import DoesNotFit
from ..machines import Device
from ..own_machines.batches import LocalModel, matrices_s, prompt_attention_s, slots_activity, slots_attention_s
from ..own_machines.step import DEVIATIONS_AT_90
from ..timing.activity import Activity
from ..units import format_si
from .cache import CacheRoom
from .timer import Limits, TimedParts, Timer

LOCAL_NOTE = (
    "times of several slots were not compared with measurements, as none are published: matrices are read once for all "
    "slots, and few tokens are multiplied one by one unless a product of matrices is faster"
)


class LocalTimer(Timer):
    """Slots of an engine on one's own machine."""

    notes = (LOCAL_NOTE,)

    def __init__(self, model: LocalModel) -> None:
        self.model = model

    @property
    def description(self) -> str:
        """The model of the times, as text."""
        fitted = f"{self.model.engine}, with constants fitted to published speeds of one request at a time"
        return f"{fitted}; {self.model.calibrated}" if self.model.calibrated else fitted

    @property
    def device(self) -> Device:
        """The device."""
        return self.model.device

    @property
    def weights(self) -> str:
        """Format of the weights."""
        return self.model.contents.weights

    def time_parts(self, limits: Limits, contexts: Sequence[int]) -> TimedParts:
        """Return the seconds of the matrices and of attention.

        Sizes are all up to 64 tokens, and multiples of 64; slots and contexts are in proportion to the seconds.
        """
        model, slots = self.model, np.arange(1, limits.sequences + 1)
        small, large = range(1, min(limits.tokens, 64) + 1), range(64, limits.tokens + 1, 64)
        tokens = np.unique([*small, *large, limits.tokens])
        lengths = np.unique(np.rint(np.geomspace(1, max(limits.prompt, 2), 24)).astype(np.int64)).tolist()
        deviations = np.full(limits.tokens + 1, model.constants.prompt_deviation)
        deviations[: limits.sequences + 1] = model.constants.deviation
        return TimedParts(
            tokens=tokens,
            token_s=np.array([[matrices_s(model, float(size)) for size in tokens]]),
            head_s=np.array([[matrices_s(model, float(size), "last") for size in tokens]]),
            sequences=slots,
            decode_attention_s=np.array([[slots * slots_attention_s(model, 1, float(at))] for at in contexts]),
            lengths=lengths,
            prompt_attention_s=np.array([[prompt_attention_s(model, length)] for length in lengths]),
            relative_low=np.exp(-DEVIATIONS_AT_90 * deviations),
            relative_high=np.exp(DEVIATIONS_AT_90 * deviations),
        )

    def measure_room(self, engine: Server, *, mean_tokens: float, prompt_tokens: int) -> CacheRoom:
        """Return the room of the cache beside weights and buffers, which is one for all slots."""
        model, contents = self.model, self.model.contents
        room_bytes, tokens = model.cache_room_bytes, max(round(mean_tokens), 1)
        sequence_bytes = contents.cache_bytes(tokens)
        if room_bytes < sequence_bytes:
            raise DoesNotFit(
                f"{contents.name} in {contents.weights} leaves no memory for a KV cache on {model.device.name}: "
                f"weights take {format_si(model.weight_bytes, 'B', 3)}, and `serve` needs all blocks on the device: "
                "use narrower `--weights`"
            )
        block_bytes = sequence_bytes / tokens * engine.block_tokens
        blocks = int(room_bytes // block_bytes) if sequence_bytes else 1 << 40
        return CacheRoom(
            model.weight_bytes, model.buffer_bytes, room_bytes, sequence_bytes, tokens, engine.block_tokens, blocks
        )

    def decode_activity(self, sequences: float, context: float, tokens_per_sequence: int = 1) -> Activity:
        """Return what a device does in an iteration without prompts."""
        return slots_activity(self.model, sequences * tokens_per_sequence, context)

    def prompt_activity(self, tokens: float, cached: float = 0.0) -> Activity:
        """Return what a device does for a prompt."""
        return slots_activity(self.model, 0.0, 0.0, tokens)
