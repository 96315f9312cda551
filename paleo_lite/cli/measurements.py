"""``paleo-lite measurements``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..questions.measured import ResultFilesQuestion, answer_result_files
from . import options
from .answers import CommandResult, command, progress_of_long_answers


@command(ResultFilesQuestion)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.top()
@options.decompressed()
def measurements(paths: tuple[Path, ...], top: int | None, **arguments: Any) -> CommandResult:
    """Read result files of benchmarks, and say what they measured, what they leave out and what makes them doubtful.

    PATHS are files that any of forty tools wrote (servers and their clients, llama.cpp, training logs, collectives,
    power, kernels, pictures), folders of them, or archives; each file is recognised by its content.

    What a file does not record is given by an option, or by a sidecar NAME.toml beside it.

    \b
      paleo-lite measurements bench.json
      paleo-lite measurements results/ --keep-going
      paleo-lite measurements llama-bench.jsonl --format json
      paleo-lite measurements nccl.log --link nvlink4
      paleo-lite measurements bench.json --gpu h100-sxm --tensor 8 --precision fp8
    """
    with progress_of_long_answers("reading files"):
        result = answer_result_files(ResultFilesQuestion(paths=paths, **arguments))
    failures = [failure["error"] for failure in result.failed]
    document = (lambda: result.document(top=top)) if result.files else None
    return CommandResult(result.to_dict, document, failures=failures)
