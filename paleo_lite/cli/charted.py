"""Commands of charts with a computation of their own: ``paleo-lite plot memory`` and ``local``."""

from __future__ import annotations

from typing import Any

import click

from ..api.charted import memory_ranges
from ..questions.charts import LocalChart, MemoryChart
from ..questions.option import parameters_of
from ..questions.values import flatten
from . import DEBUG, options
from .answers import CommandResult


@click.command("memory", params=[*parameters_of(MemoryChart), DEBUG])
@options.network()
def memory(**arguments: Any) -> CommandResult:
    """Peak memory of the language model NETWORK by part, over the batch size and over the tokens.

    \b
      paleo-lite plot memory llama-3.1-8b --gpu h100-sxm --sequence-length 8192 -o memory.png
      paleo-lite plot memory llama-3.2-1b --gpu a100-sxm-80gb --phase training --token-counts 512:8192:x2 -o memory.png
    """
    ranges = memory_ranges(**arguments)
    return CommandResult(drawn=lambda: ranges)


@click.command("local", params=[*parameters_of(LocalChart), DEBUG])
@options.network()
def local(network: str, gpus: tuple[Any, ...], weights: tuple[Any, ...], **arguments: Any) -> CommandResult:
    """Tokens per second of the language model NETWORK under llama.cpp, by device, or by format on one device.

    \b
      paleo-lite plot local llama-3.1-8b --gpu rtx3060,rtx4090,apple-m4-max -o local.png
      paleo-lite plot local qwen3-14b --gpu rtx3060 --context 8192 -o formats.png
    """
    from ..api.plotting import rank_locally

    advice = rank_locally(network, gpus=flatten(gpus) or None, weights=flatten(weights) or None, **arguments)
    return CommandResult(drawn=lambda: advice)
