"""``paleo-lite layers``."""

from __future__ import annotations

from typing import Any

import click

from ..errors import BadValue
from ..questions.completion import NETWORK
from ..questions.layers import Layers
from ..questions.option import OutputOption
from ..questions.values import INTEGER
from . import options
from .answers import CommandResult, command


@command(Layers)
@click.argument("networks", metavar="NETWORK...", nargs=-1, required=True, type=NETWORK)
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
    from ..questions.layers import answer

    if len(networks) > 1:
        if depth or top:
            raise BadValue("`--depth` and `--top` can be used only with a single network")
        comparison = answer(Layers(networks, **arguments))
        return CommandResult(comparison.to_dict, comparison.document)
    counts = answer(Layers(networks[0], **arguments))
    from ..architectures import LayerCounts
    from ..reporting.networks import counts_page

    if isinstance(counts, LayerCounts):
        return CommandResult(counts.to_dict, lambda: counts_page(counts, depth, top))
    if depth or top:
        raise BadValue("`--depth` and `--top` are for the layers of one network, not for the parts of a pipeline")
    return CommandResult(counts.to_dict, counts.document)
