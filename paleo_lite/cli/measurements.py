"""``paleo-lite measurements``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.result_files import measurements as read_measurements
from ..questions.completion import LINK, NETWORK
from ..questions.values import INTEGER
from . import options
from .answers import CommandResult, command, progress


@command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.gpu(required=False, help="Device, where the files do not record it.")
@click.option("--devices", type=INTEGER, metavar="N", help="Number of devices, where the files do not record it.")
@click.option("--network", type=NETWORK, metavar="NETWORK", help="Network, where the files do not record it.")
@options.precision(default=None, show_default=False, help="Precision, where the files do not record it.")
@click.option("--tensor", type=INTEGER, metavar="N", help="Tensor parallelism, where the files do not record it.")
@click.option("--engine", metavar="ENGINE", help="Inference engine, where the files do not record it.")
@click.option("--link", type=LINK, metavar="LINK", help="Link between the devices, where the files do not record it.")
@options.sequence_length(help="Tokens per sequence, where the files do not record them.")
@options.top()
@options.jobs()
@options.scheduler()
@options.decompressed()
@click.option("--keep-going", is_flag=True, help="Report unreadable files and continue with the others.")
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
    with progress("reading files") as on_done:
        result = read_measurements(paths, on_done=on_done, **arguments)
    failures = [failure["error"] for failure in result.failed]
    document = (lambda: result.document(top=top)) if result.files else None
    return CommandResult(result.to_dict, document, failures=failures)
