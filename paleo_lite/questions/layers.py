"""`layers`: the operations of a network, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .completion import LAYER
from .names import Names, PrecisionNames
from .option import option
from .records import ENGINE_GROUP, NETWORK_GROUP, DeviceOptions, NetworkAsked, SiteOptions, SizeOptions
from .values import INTEGER


@dataclass(frozen=True)
class Layers(SiteOptions, DeviceOptions, SizeOptions, NetworkAsked):
    """Count FLOPs, bytes and parameters of a network layer by layer, or compare the totals of several networks.

    With a device, layers and kinds of layers get their predicted seconds and joules; kinds are ranked by joules.
    """

    compares: ClassVar[bool] = False

    convention: str = option(
        "flops", group=NETWORK_GROUP, type=Names("convention", ".counting:CONVENTIONS"), metavar="NAME",
        help="Convention of the FLOP count.",
    )  # fmt: skip
    phase: str = option(
        "inference", group=NETWORK_GROUP, type=Names("phase", ".counting:PHASES", ".counting:PASSES"), metavar="NAME",
        help="Phase or pass to count; backward is the data gradient and the weight gradient.",
    )  # fmt: skip
    batch_size: int = option(
        1, group=NETWORK_GROUP, type=INTEGER, help="Samples per pass; of a pipeline pictures or videos."
    )
    steps: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="N", help="Denoising steps of a pipeline. [default: its own]"
    )
    frames: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="N", help="Frames of each video. [default: the pipeline's]"
    )
    ignore: Sequence[str] = option(
        (), group=NETWORK_GROUP, is_repeatable=True, type=LAYER, metavar="LAYER|GLOB",
        help="Names or glob patterns of layers to leave out.",
    )  # fmt: skip
    execution: str = option(
        "eager", group=ENGINE_GROUP, type=Names("execution", ".counting.fusion:EXECUTIONS"), metavar="NAME",
        help="Kernel fusion and casts, as for `predict`; folding changes the FLOP count.",
    )  # fmt: skip
    causal: str = option(
        "full", group=NETWORK_GROUP, type=Names("count of causal attention", ".api.counts:CAUSAL"),
        help="Count causal attention in full, or by half as its mask leaves about half of the scores.",
    )  # fmt: skip
    precision: str = option(
        "fp32", group=NETWORK_GROUP, type=PrecisionNames("precision", ".units:PRECISION_BYTES"), metavar="NAME",
        help="Precision of the arithmetic on the device.",
    )  # fmt: skip
