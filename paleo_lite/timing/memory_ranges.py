"""`MemoryRanges`: the peak memory of a language model by part, over the batch size and over the length of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from ..result import Result
from .memory import MemoryFit
from .workload import Workload


class MemoryAt(msgspec.Struct, frozen=True):
    """Peak memory at one batch size and length."""

    batch_size: int  # sequences per pass
    tokens: int  # tokens per sequence; in decode, tokens in the KV cache
    fit: MemoryFit  # peak memory by part, and the memory of the device

    @classmethod
    def of(cls, workload: Workload, fit: MemoryFit) -> MemoryAt:
        """Return the peak memory of a workload whose network reads sequences."""
        return cls(workload.batch_size, tokens_of(workload), fit)

    def to_dict(self) -> dict[str, Any]:
        """Return batch size, tokens and the JSON of the memory; remedies are those of a prediction."""
        fit = self.fit.to_dict()
        del fit["remedies"]
        return {"batch_size": self.batch_size, "tokens": self.tokens, **fit}


def tokens_of(workload: Workload) -> int:
    """Return the tokens per sequence of a network that reads sequences; in decode, the tokens in the KV cache."""
    lengths = workload.network.lengths
    assert lengths is not None
    return lengths.keys - lengths.queries if workload.phase == "decode" else lengths.queries


class MemoryRanges(Result, msgspec.Struct, frozen=True):
    """Peak memory of a language model on one device, over the batch size and over the length of sequences."""

    _page: ClassVar[str] = "paleo_lite.reporting.memory:memory_ranges_page"

    network: str
    gpu_name: str
    precision: str
    phase: str
    over_batch: Sequence[MemoryAt]  # all with the same number of tokens
    over_tokens: Sequence[MemoryAt]  # all with the same batch size
    left_out: Sequence[str] = ()  # reasons why lengths are left out

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, and the memory at each batch size and at each length."""
        names = ("network", "gpu_name", "precision", "phase")
        return {
            **{name: getattr(self, name) for name in names},
            "over_batch": [point.to_dict() for point in self.over_batch],
            "over_tokens": [point.to_dict() for point in self.over_tokens],
            "left_out": list(self.left_out),
        }
