"""Peak memory to look at: one line, the table of its parts, and what would help where it does not fit."""

from __future__ import annotations

from ..timing.capacity import MemoryFit
from .document import Column, Table, say_count, say_percent, say_size, say_yes_or_no

_MEANINGS = {
    "parameters": "weights, and running statistics of batch norms",
    "gradients": "of the weights",
    "optimizer": "state that stays from step to step",
    "activations": "saved for the backward pass",
    "inputs": "what the network is given",
    "cache": "keys and values of every token so far",
    "workspace": "results not saved and gradients of activations, at the peak",
}


def memory_fact(fit: MemoryFit) -> tuple[str, str]:
    """The line of the summary: how much, of how much, and what takes most of it."""
    memory = fit.memory
    largest = sorted(memory.rows(), key=lambda row: -row[1])
    largest_parts = ", ".join(f"{name} {say_size(amount)}" for name, amount in largest[:4] if amount)
    lead = "" if fit.fits else "DOES NOT FIT, "
    text = f"{say_size(memory.total_bytes)} of {say_size(fit.usable_bytes)}: {largest_parts}"
    most = "not even one sample fits" if fit.largest_batch is None else f"largest batch {fit.largest_batch:,}"
    return "peak memory", f"{lead}{text}; {most}"


def memory_tables(fit: MemoryFit, by_part: bool) -> list[Table]:
    """The parts, where they are asked for; the remedies, where it does not fit."""
    tables = []
    if by_part:
        tables.append(_parts(fit))
    if not fit.fits and fit.remedies:
        tables.append(_remedies(fit))
    return tables


def _parts(fit: MemoryFit) -> Table:
    memory = fit.memory
    total = memory.total_bytes
    meanings = dict(_MEANINGS)
    if fit.optimizer is None:
        meanings["activations"] = "alive at once, at the most"
    else:
        meanings["optimizer"] = f"{fit.optimizer}: {_MEANINGS['optimizer']}"
    rows = [
        {"part": name, "bytes": amount, "share": amount / total, "meaning": meanings[name]}
        for name, amount in memory.rows()
        if amount or name in ("parameters", "activations")
    ]
    columns = [
        Column("part", "part", left=True),
        Column("bytes", "bytes", say_size),
        Column("share", "share", say_percent),
        Column("meaning", "what it is", left=True, spare=1),
    ]
    return Table("Peak memory", columns, rows, [{"part": "total", "bytes": total, "share": 1.0}])


def _remedies(fit: MemoryFit) -> Table:
    rows = [
        {"name": remedy.name, "bytes": remedy.total_bytes, "fits": remedy.fits, "largest": remedy.largest_batch}
        for remedy in fit.remedies
    ]
    columns = [
        Column("name", "remedy", left=True),
        Column("bytes", "needs", say_size),
        Column("fits", "fits", say_yes_or_no, left=True),
        Column("largest", "largest batch", say_count),
    ]
    return Table(f"What would help, most first ({say_size(fit.usable_bytes)} may be used)", columns, rows)
