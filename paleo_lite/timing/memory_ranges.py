"""`MemoryRanges`: the peak memory of a language model by part, over the batch size and over the length of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from ..architectures.network import SequenceOptions
from ..errors import BadValue, PaleoError
from ..machines import Machine
from ..result import Result
from .capacity import compare_memory
from .memory import MemoryFit
from .models import TimeModel
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

    _page: ClassVar[str] = "paleo_lite.reporting.answers:memory_ranges_page"

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


def vary_memory(
    workload: Workload,
    machine: Machine,
    model: TimeModel,
    batch_sizes: Sequence[int],  # at the length of the workload
    token_counts: Sequence[int],  # per sequence, in decode in the KV cache, at the batch size of the workload
) -> MemoryRanges:
    """Return the memory of a workload at other batch sizes and lengths.

    Batch sizes that are no whole number of micro-batches, and lengths that the network does not support, are left out.
    Raise BadValue if the network reads no sequences, or nothing is left.
    """
    network = workload.network
    if network.lengths is None or network.rebuild is None:
        raise BadValue(f"the chart memory needs a network that reads sequences (got {network.name})")

    def at_length(tokens: int) -> Workload:
        assert network.rebuild is not None
        context = tokens if workload.phase == "decode" else None
        return workload.with_changes(
            network=network.rebuild(SequenceOptions(None if context else tokens, context, workload.phase))
        )

    left_out: list[str] = []

    def memory_of(change: Callable[[int], Workload], values: Sequence[int]) -> list[MemoryAt]:
        points = []
        for value in values:
            try:
                changed = change(value)
                points.append(MemoryAt.of(changed, compare_memory(changed, machine, model)))
            except PaleoError as error:
                left_out.append(str(error))
        if not points:
            raise BadValue(left_out[0])
        return points

    over_batch = memory_of(lambda samples: workload.with_changes(batch_size=samples), batch_sizes)
    over_tokens = memory_of(at_length, token_counts)
    return MemoryRanges(
        network.name,
        machine.device.name,
        workload.precision,
        workload.phase,
        over_batch,
        over_tokens,
        tuple(left_out[:1]),
    )
