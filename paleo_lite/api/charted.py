"""Computation of a chart that no command prints: memory over batch size and length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import BadValue
from ..machines import Device
from ..units import parse_range, spell_out_tokens
from .question import Question
from .resolve import resolve_question


def memory_ranges(
    network: Any,
    *,
    gpu: str | Device | None,
    precision: str = "bf16",
    phase: str = "decode",
    batch_size: int = 8,  # at which the tokens vary
    sequence_length: int = 2048,  # tokens at which the batch size varies: of a sequence, or in decode in the KV cache
    batch_sizes: str | Sequence[int] = "1:64:x2",  # at `sequence_length`
    # Tokens at `batch_size`; those that the network does not support are left out.
    token_counts: str | Sequence[int] = "256:65536:x2",
    **arguments: Any,  # further arguments of `paleo_lite.predict` that change the memory
) -> Any:
    """Estimate the memory of a language model over the batch size and over the tokens, for the chart ``memory``.

    Raise BadValue if the network is not a language model, or supports none of the lengths.
    """
    from ..timing.memory_ranges import vary_memory
    from ..timing.training_options import TrainingOptions

    if gpu is None:
        raise BadValue("give the device with `--gpu`, such as `--gpu h100-sxm`")
    settings: dict[str, Any] = {"gpu": gpu, "precision": precision, "phase": phase, **arguments}
    if phase == "training":
        settings.setdefault("training", TrainingOptions("adamw"))  # the default of networks that read tokens
    settings["context" if phase == "decode" else "sequence_length"] = sequence_length
    workload, machine, model = resolve_question(Question(network, batch_size=batch_size, **settings))
    counts = spell_out_tokens(token_counts) if isinstance(token_counts, str) else token_counts
    return vary_memory(workload, machine, model, parse_range(batch_sizes, "batch sizes"), parse_range(counts, "tokens"))
