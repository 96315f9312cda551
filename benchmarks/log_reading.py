"""Time to read a log of 300 MB, compared with `grep -c` of the word in its measured lines.

The log is written to a temporary folder: an iteration of Megatron-LM in every thousand lines of other messages.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .turns import Turns, run, take_turns

LOG_BYTES = 300_000_000
OTHERS = 1_000
"""Other lines between two iterations."""

_OTHER = "[2026-11-28 12:00:{second:02d}] node{node:03d}: INFO nccl: a message about channel {channel} of no interest\n"
_ITERATION = (
    " iteration {number:8d}/ 1000000 | consumed samples: {samples:12d} | elapsed time per iteration (ms): {ms:.1f} | "
    "global batch size:   256 | lm loss: 2.1E+00 | number of skipped iterations:   0 |\n"
)


def log_blocks() -> Iterator[str]:
    """Yield the blocks of the log."""
    others = "".join(_OTHER.format(second=line % 60, node=line % 64, channel=line) for line in range(OTHERS))
    number = written = 0
    while written < LOG_BYTES:
        number += 1
        block = others + _ITERATION.format(number=number, samples=256 * number, ms=3300 + number % 20)
        written += len(block)
        yield block


def measure(repeats: int) -> list[Turns]:
    """Return a table of the two readers."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "megatron.log"
        with log.open("w") as file:
            file.writelines(log_blocks())
        script = str(Path(sys.executable).parent / "paleo-lite")
        contestants = {
            "paleo-lite measurements": run([script, "measurements", str(log)]),
            "grep -c": run(["grep", "-c", "iteration", str(log)]),
        }
        seconds = take_turns(contestants, repeats)
    return [Turns("a log of 300 MB", seconds, wanted={"grep -c": 0.1})]
