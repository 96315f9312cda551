"""``paleo-lite layers``."""

from __future__ import annotations

import functools
from typing import Any

import click

from ..api.counts import layers as count_layers
from ..errors import BadValue
from ..reporting.networks import counts_page
from . import options
from .options import Answer, Documented, Printing, command
from .values import LAYER, NETWORK, WHOLE, Names

_documented = functools.partial(click.option, cls=Documented, of="layers")


@command()
@click.argument("networks", metavar="NETWORK...", nargs=-1, required=True, type=NETWORK)
@options.convention()
@options.phase(help="What to count; backward is the data and the weight gradient.", type=options.PHASES_AND_PASSES)
@options.execution(default="eager", help="What is fused at inference: as of `predict`.")
@options.batch_size()
@_documented("--ignore", multiple=True, metavar="LAYER|GLOB", type=LAYER)
@options.image_size()
@options.sequence_length()
@options.inputs()
@_documented(
    "--causal", type=Names("way to count causal attention", ".api.counts:CAUSAL"), default="full", show_default=True
)
@options.rules()
@click.option(
    "--depth", type=WHOLE, cls=Printing, help="How many levels of modules to show. [default: as many as are readable]"
)
@click.option("--top", type=WHOLE, cls=Printing, help="List so many of the largest layers instead of the modules.")
def layers(networks: tuple[str, ...], depth: int | None, top: int | None, **question: Any) -> Answer:
    """Count NETWORK by module and layer: FLOPs or MACs, parameters, shapes. Several NETWORKs get a line each.

    NETWORK is a shipped network, a file (a descriptor, a config.json of Hugging Face's, ONNX, an exported program, a
    Caffe prototxt, PALEO's JSON), timm:NAME, hf:FOLDER, or package.module:factory with --input, which is imported and
    called. CSV and JSON have every layer.

    \b
      paleo-lite layers vgg16
      paleo-lite layers swin_b --depth 4
      paleo-lite layers resnet50 --top 10
      paleo-lite layers vgg16 --convention pthflops --ignore 'classifier.*'
      paleo-lite layers vgg16 vgg19 resnet50 googlenet --convention pthflops
      paleo-lite layers my_package.model:make --input 3x224x224
    """
    if len(networks) > 1:
        if depth or top:
            raise BadValue("--depth and --top show one network: name only one")
        beside = count_layers(networks, **question)
        return Answer(beside.to_dict, beside.document)
    counts = count_layers(networks[0], **question)
    return Answer(counts.to_dict, lambda: counts_page(counts, depth, top))
