"""Charts with a computation of their own, `memory` and `local`: their options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from .completion import DEVICE
from .names import Names
from .option import Options, option
from .profile_options import PRECISIONS
from .records import DEVICE_GROUP, FORMATS, HARDWARE_FILES, NETWORK_GROUP
from .values import INTEGER, TOKENS, CommaSeparated

if TYPE_CHECKING:
    from ..machines import Device


@dataclass(frozen=True)
class MemoryChart(Options):
    """Peak memory of a language model by part, over the batch size and over the tokens."""

    compares: ClassVar[bool] = False

    gpu: str | Device | None = option(
        group=DEVICE_GROUP, type=DEVICE, metavar="DEVICE", help="Device, by name or alias, such as k80 or h100-sxm."
    )
    precision: str = option("bf16", group=NETWORK_GROUP, type=PRECISIONS, help="Precision of the arithmetic.")
    phase: str = option(
        "decode", group=NETWORK_GROUP, type=Names("phase", ".counting:PHASES", ".counting:GENERATION_PHASES"),
        help="Phase: training is forward, backward and update.",
    )  # fmt: skip
    batch_size: int = option(8, group=NETWORK_GROUP, type=INTEGER, help="Batch size of the range of tokens.")
    sequence_length: int = option(
        2048, group=NETWORK_GROUP, type=TOKENS, metavar="TOKENS",
        help="Tokens of the range of batch sizes: per sequence, in decode in the KV cache.",
    )  # fmt: skip
    batch_sizes: str | Sequence[int] = option(
        "1:64:x2", group=NETWORK_GROUP, metavar="RANGE", help="Batch sizes: 1:64:x2."
    )
    token_counts: str | Sequence[int] = option(
        "256:65536:x2", group=NETWORK_GROUP, metavar="RANGE",
        help="Numbers of tokens; those that the network does not support are left out.",
    )  # fmt: skip
    weights: str | None = option(
        group=NETWORK_GROUP, type=FORMATS, metavar="FORMAT",
        help="Format in which matrices are stored at inference, such as fp8, int4 or nvfp4, or frozen ones in "
        "training. [default: the precision]",
    )  # fmt: skip
    hardware_files: Sequence[str | Path] = option((), **HARDWARE_FILES)


@dataclass(frozen=True)
class LocalChart(Options):
    """Tokens per second of a language model under llama.cpp, by device, or by format on one device."""

    compares: ClassVar[bool] = False

    gpus: Sequence[str | Device] = option(
        (), group=DEVICE_GROUP, spellings=("--gpu",), is_repeatable=True, type=CommaSeparated(DEVICE), metavar="DEVICE",
        help="Device, by name or alias; several separated by commas; of one all formats are drawn. [default: all "
        "devices of people's own machines]",
    )  # fmt: skip
    weights: Sequence[str] = option(
        (), group=NETWORK_GROUP, is_repeatable=True, metavar="FORMAT",
        type=CommaSeparated(Names("format of the weights", ".gguf_types:MIXTURES")),
        help="Format of llama.cpp; several separated by commas. [default: ten that people publish]",
    )  # fmt: skip
    context: int | None = option(
        group=NETWORK_GROUP, type=TOKENS, metavar="TOKENS", help="Tokens in the KV cache. [default: 4096]"
    )
    hardware_files: Sequence[str | Path] = option((), **HARDWARE_FILES)
