"""``paleo-lite layers``."""

from __future__ import annotations

from typing import Any

import click

from ..api.counts import layers as count_layers
from ..architectures.pipelines.counts import PipelineCounts
from ..errors import BadValue
from ..questions.completion import LAYER, NETWORK
from ..questions.names import Names
from ..questions.values import INTEGER
from ..reporting.networks import counts_page
from . import options
from .answers import CommandResult, command
from .options import OutputOption


@command()
@click.argument("networks", metavar="NETWORK...", nargs=-1, required=True, type=NETWORK)
@options.convention()
@options.phase(
    help="Phase or pass to count; backward is the data gradient and the weight gradient.",
    type=options.PHASES_AND_PASSES,
)
@options.execution(
    type=Names("execution", ".counting.fusion:EXECUTIONS"),
    default="eager",
    help="Kernel fusion at inference, as for `predict`.",
)
@options.batch_size()
@click.option(
    "--ignore", multiple=True, metavar="LAYER|GLOB", type=LAYER, help="Names or glob patterns of layers to leave out."
)
@options.picture_size()
@click.option("--steps", type=INTEGER, metavar="N", help="Denoising steps of a pipeline. [default: its own]")
@click.option("--frames", type=INTEGER, metavar="N", help="Frames of each video. [default: the pipeline's]")
@options.sequence_length()
@options.inputs()
@click.option(
    "--causal",
    type=Names("count of causal attention", ".api.counts:CAUSAL"),
    default="full",
    show_default=True,
    help="Count causal attention in full, or by half as its mask leaves about half of the scores.",
)
@options.gpu(
    required=False, help="Device on which kinds of layers are ranked by the joules that they take, such as h100-sxm."
)
@options.precision()
@options.clock()
@options.power_limit()
@options.site()
@options.rules()
@click.option(
    "--depth",
    type=INTEGER,
    cls=OutputOption,
    help="Number of module levels to show. [default: as many as are readable]",
)
@click.option(
    "--top", type=INTEGER, cls=OutputOption, help="List this number of the largest layers instead of the modules."
)
def layers(networks: tuple[str, ...], depth: int | None, top: int | None, **arguments: Any) -> CommandResult:
    """Count NETWORK by module and layer: FLOPs or MACs, parameters, shapes. Several NETWORKs get one line each.

    NETWORK is a shipped network, a file (a descriptor, a config.json of Hugging Face, ONNX, an exported program, a
    Caffe prototxt, a JSON of PALEO), timm:NAME, hf:FOLDER, or package.module:factory with --input, which is imported
    and called. CSV and JSON have every layer. With --gpu, each has its seconds and joules on a device.

    \b
      paleo-lite layers vgg16
      paleo-lite layers swin_b --depth 4
      paleo-lite layers resnet50 --top 10
      paleo-lite layers resnet50 --gpu h100-sxm --precision fp16 --batch-size 64
      paleo-lite layers vgg16 --convention pthflops --ignore 'classifier.*'
      paleo-lite layers sdxl --image-size 1024x768
      paleo-lite layers vgg16 vgg19 resnet50 googlenet --convention pthflops
      paleo-lite layers my_package.model:make --input 3x224x224
    """
    if len(networks) > 1:
        if depth or top:
            raise BadValue("`--depth` and `--top` can be used only with a single network")
        comparison = count_layers(networks, **arguments)
        return CommandResult(comparison.to_dict, comparison.document)
    counts = count_layers(networks[0], **arguments)
    if isinstance(counts, PipelineCounts):
        if depth or top:
            raise BadValue("`--depth` and `--top` are for the layers of one network, not for the parts of a pipeline")
        return CommandResult(counts.to_dict, counts.document)
    return CommandResult(counts.to_dict, lambda: counts_page(counts, depth, top))
