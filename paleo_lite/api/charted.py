"""Computations of charts that no command prints, or prints with less detail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BadValue
from ..extras import require
from ..machines import Device
from ..units import parse_range, spell_out_tokens
from .question import Question, resolve_question


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


def timeline(path: str | Path, *, slices: int = 500) -> Any:
    """Read the device activity over time from a profile, for the chart ``timeline``."""
    from ..questions.profile_options import PROFILE_READER

    require(*PROFILE_READER)
    from ..profile_analysis.timeline import read_timeline
    from ..profiles.detect import open_profile

    return read_timeline(open_profile(Path(path)), slices)


def fit(*subject: Any, **arguments: Any) -> Any:
    """Fit a calibration, for the chart ``fit``."""
    from ..questions.measured import CalibrationQuestion
    from .calibrations import fit_calibration

    return fit_calibration(CalibrationQuestion(*subject, **arguments))


def find_front(file: str | Path, *, pareto: str | Sequence[str] = (), top: int | None = None, **arguments: Any) -> Any:
    """Find the best rows of a sweep or its Pareto front, for the chart ``pareto``."""
    from ..questions.best import BestRows, answer_best
    from ..sweeps.front import BACKGROUND_ROWS, MAX_FRONT_ROWS

    most_rows = MAX_FRONT_ROWS if top is None else top
    question = BestRows(file=file, pareto=pareto, top=most_rows, sample=BACKGROUND_ROWS, **arguments)
    return answer_best(question)


def rank_locally(
    network: Any,
    *,
    gpus: Sequence[Any] | None = None,
    weights: Sequence[str] | None = None,
    context: int | None = None,
    hardware_files: Any = (),
) -> Any:
    """Rank devices, in one format, or formats of a network under llama.cpp, for the chart ``local``."""
    from ..own_machines.question import LocalQuestion
    from .local import advise_local

    formats = list(weights or [])
    question = LocalQuestion(context=context, weights=formats[0] if len(formats) == 1 else None)
    several = formats if len(formats) > 1 else None
    return advise_local(network, gpus, question, weights=several, hardware_files=hardware_files)
