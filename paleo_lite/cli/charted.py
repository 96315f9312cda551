"""Commands of charts with a computation of their own: ``paleo-lite plot memory`` and ``local``."""

from __future__ import annotations

from typing import Any

import click

from ..api.charted import memory_ranges
from ..questions.names import Names
from ..questions.values import CommaSeparated, flatten
from . import options
from .answers import CommandResult


@click.command("memory")
@options.network()
@options.gpu()
@options.precision(default="bf16")
@options.phase(type=options.PHASES_AND_GENERATING, default="decode")
@options.batch_size(default=8, help="Batch size of the range of tokens.")
@options.sequence_length(
    default=2048, show_default=True, help="Tokens of the range of batch sizes: per sequence, in decode in the KV cache."
)
@click.option("--batch-sizes", default="1:64:x2", show_default=True, metavar="RANGE", help="Batch sizes: 1:64:x2.")
@click.option(
    "--token-counts",
    default="256:65536:x2",
    show_default=True,
    metavar="RANGE",
    help="Numbers of tokens; those that the network does not support are left out.",
)
@options.weights()
@options.hardware_files()
@options.debug()
def memory(**arguments: Any) -> CommandResult:
    """Peak memory of the language model NETWORK by part, over the batch size and over the tokens.

    \b
      paleo-lite plot memory llama-3.1-8b --gpu h100-sxm --sequence-length 8192 -o memory.png
      paleo-lite plot memory llama-3.2-1b --gpu a100-sxm-80gb --phase training --token-counts 512:8192:x2 -o memory.png
    """
    ranges = memory_ranges(**arguments)
    return CommandResult(drawn=lambda: ranges)


@click.command("local")
@options.network()
@options.gpus(
    help="Device, by name or alias; several separated by commas; of one all formats are drawn. [default: all devices "
    "of people's own machines]",
)
@click.option(
    "--weights",
    multiple=True,
    metavar="FORMAT",
    type=CommaSeparated(Names("format of the weights", ".gguf_types:MIXTURES")),
    help="Format of llama.cpp; several separated by commas. [default: ten that people publish]",
)
@options.context()
@options.hardware_files()
@options.debug()
def local(network: str, gpus: tuple[Any, ...], weights: tuple[Any, ...], **arguments: Any) -> CommandResult:
    """Tokens per second of the language model NETWORK under llama.cpp, by device, or by format on one device.

    \b
      paleo-lite plot local llama-3.1-8b --gpu rtx3060,rtx4090,apple-m4-max -o local.png
      paleo-lite plot local qwen3-14b --gpu rtx3060 --context 8192 -o formats.png
    """
    from ..api.plotting import rank_locally

    advice = rank_locally(network, gpus=flatten(gpus) or None, weights=flatten(weights) or None, **arguments)
    return CommandResult(drawn=lambda: advice)
