"""``paleo-lite layers``."""

from __future__ import annotations

from typing import Any

import click

from ..api.prediction import layers as count_layers
from ..report.counts import counts_page
from . import options
from .command import Answer, command


@command()
@options.network()
@options.convention()
@options.phase(help="What to count; backward is the data and the weight gradient.", type=options.PHASES_AND_PASSES)
@options.execution()
@options.batch_size()
@click.option("--ignore", multiple=True, metavar="LAYER|GLOB", help="Leave layers out; may be given several times.")
@options.image_size()
@options.inputs()
def layers(network: str, **question: Any) -> Answer:
    """Count NETWORK layer by layer: FLOPs or MACs, parameters, shapes.

    NETWORK is a shipped network, a file (a descriptor, a Caffe prototxt, PALEO's JSON), or package.module:factory
    with --input, which is imported and called.

    \b
      paleo-lite layers vgg16
      paleo-lite layers vgg16 --convention pthflops --ignore 'classifier.*'
      paleo-lite layers my_package.model:make --input 3x224x224
    """
    counts = count_layers(network, **question)
    return Answer(counts.to_dict, lambda: counts_page(counts))
