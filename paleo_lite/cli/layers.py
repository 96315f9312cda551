"""``paleo-lite layers``."""

from __future__ import annotations

import click

from ..api import layers as count_layers
from ..counting import CONVENTIONS, PASSES, PHASES
from ..report.counts import counts_page
from .common import WHOLE, complete_networks, network_options, output_options, parse_inputs, show


@click.command()
@click.argument("network", shell_complete=complete_networks)
@click.option(
    "--convention", type=click.Choice(list(CONVENTIONS)), default="flops", show_default=True, help="How to count."
)
@click.option(
    "--phase", type=click.Choice(list(dict.fromkeys([*PHASES, *PASSES]))), default="inference", show_default=True,
    help="What to count; backward is the data and the weight gradient.",
)  # fmt: skip
@click.option(
    "--execution",
    type=click.Choice(["eager", "compiled", "folded"]),
    default="eager",
    show_default=True,
    help="What is fused at inference: nothing; pointwise chains; also batch norms into convolutions.",
)
@click.option("--batch-size", type=WHOLE, default=1, show_default=True, help="Samples per pass.")
@click.option("--ignore", multiple=True, metavar="LAYER|GLOB", help="Leave layers out; may be given several times.")
@network_options
@output_options
def layers(
    network: str,
    convention: str,
    phase: str,
    execution: str,
    batch_size: int,
    ignore: tuple[str, ...],
    image_size: int | None,
    inputs: tuple[str, ...],
    style: str,
) -> None:
    """Count NETWORK layer by layer: FLOPs or MACs, parameters, shapes.

    NETWORK is a shipped network, a file (a descriptor, a Caffe prototxt, PALEO's JSON), or package.module:factory
    with --input, which is imported and called.

    \b
      paleo-lite layers vgg16
      paleo-lite layers vgg16 --convention pthflops --ignore 'classifier.*'
      paleo-lite layers my_package.model:make --input 3x224x224
    """
    counts = count_layers(
        network,
        convention=convention,
        phase=phase,
        batch_size=batch_size,
        image_size=image_size,
        inputs=parse_inputs(inputs),
        ignore=ignore,
        execution=execution,
    )
    show(style, counts.to_dict, lambda: counts_page(counts))
