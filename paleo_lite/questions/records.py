"""Records of options that kinds of question share: network, machine, time model, price, site, training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import BadValue
from .completion import CALIBRATION, DEVICE, NETWORK
from .names import FormatNames, ListedNames, Names, OffloadNames, OptimizerNames, PrecisionNames
from .option import Options, Several, option
from .values import (
    INTEGER,
    NUMBER,
    PICTURE_SIZE,
    PPP,
    TOKENS,
    CommaSeparated,
    KeyValues,
    ModuleInput,
    PriceOrCloud,
    Quantity,
)

if TYPE_CHECKING:
    from torch import nn

    from ..architectures import Network
    from ..calibration.evidence_file import EvidenceCalibration
    from ..calibration.ppp import PppCalibration
    from ..calibration.store import Calibration
    from ..machines import Device
    from ..timing.facility import Facility

NETWORK_GROUP = "Network"
DEVICE_GROUP = "Device"
MODEL_GROUP = "Time model"
COST_GROUP = "Price and energy"
TRAINING_GROUP = "Training"
PARALLEL_GROUP = "Parallelism"
ENGINE_GROUP = "Engine"

INFERENCE_PRECISIONS = PrecisionNames("precision", ".units:PRECISION_BYTES", ".formats:FORMATS_OF_PRODUCTS")
TRAINING_PRECISIONS = PrecisionNames(
    "precision", ".timing.training_options:TRAINING_PRECISIONS", ".formats:FORMATS_OF_PRODUCTS"
)
FORMATS = FormatNames("format of weights", ".formats:FORMATS")
CACHE_FORMATS = FormatNames("format of the KV cache", ".formats:FORMATS")


@dataclass(frozen=True)
class NetworkAsked(Options):
    """The network, the first positional argument."""

    network: Several[str | Network | nn.Module | None] = field(default=None)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.network) in (list, tuple) and not self.network:
            raise BadValue("the list of networks is empty: give one network, such as llama-3-8b or resnet50")
        if isinstance(self.network, str):
            object.__setattr__(self, "network", CommaSeparated(NETWORK).convert(self.network, None, None))

    def several(self) -> dict[str, list[Any]]:
        """Return the options that have several values, with the values; also several networks."""
        network: Any = self.network
        networks = {"network": list(network)} if type(network) in (list, tuple) else {}
        return {**networks, **super().several()}


HARDWARE_FILES: dict[str, Any] = {
    "group": DEVICE_GROUP,
    "spellings": ("--hardware-file",),
    "is_repeatable": True,
    "type": click.Path(path_type=Path, dir_okay=False),
    "metavar": "FILE",
    "help": "TOML file of a further device; may be given several times.",
}
"""Settings of the option for files of further devices."""


@dataclass(frozen=True)
class DeviceOptions(Options):
    """The device with its clock, units and power limit."""

    gpu: Several[str | Device | None] = option(
        group=DEVICE_GROUP, is_common=True, type=DEVICE, metavar="DEVICE",
        help="Device, by name or alias, such as k80 or h100-sxm.",
    )  # fmt: skip
    clock: str | None = option(
        group=DEVICE_GROUP, metavar="base|boost|FREQUENCY",
        help="Clock of the device, or a locked clock such as 1.2GHz. [default: the one in its data file]",
    )  # fmt: skip
    unit: str | None = option(
        group=DEVICE_GROUP, type=Names("unit", ".machines.device:UNITS"),
        help="Arithmetic units. [default: the faster ones]",
    )  # fmt: skip
    power_limit: float | str | None = option(
        group=DEVICE_GROUP, metavar="WATTS",
        help="Power limit of the device, such as 300W; a lower one slows it. [default: the one in its data file]",
    )  # fmt: skip
    hardware_files: Sequence[str | Path] = option((), **HARDWARE_FILES)


@dataclass(frozen=True)
class CalibrationOptions(Options):
    """What measurements say of the constants."""

    calibration: str | Calibration | PppCalibration | EvidenceCalibration | None = option(
        group=MODEL_GROUP, type=CALIBRATION, metavar="FILE|NAME",
        help="File or name of a calibration; files from result files of benchmarks joined by + are one. [default: the "
        "shipped calibrations under PyTorch]",
    )  # fmt: skip


@dataclass(frozen=True)
class TimeModelOptions(CalibrationOptions):
    """The time model and its constants."""

    time_model: str | None = option(
        group=MODEL_GROUP, type=Names("time model", ".timing.models:MODELS_WITHOUT_PPP"), metavar="NAME",
        help="Time model: peak, roofline or calibrated. [default: calibrated, with fits for this device or for "
        "others; roofline if no fit covers the device]",
    )  # fmt: skip


@dataclass(frozen=True)
class PppOptions(TimeModelOptions):
    """The time model, and the platform percent of peak of PALEO."""

    time_model: str | None = option(
        group=MODEL_GROUP, metavar="NAME",
        type=Names("time model", ".timing:TIME_MODELS"),
        help="Time model: peak, roofline, ppp, ppp-overlap (the larger of arithmetic and memory time instead of their "
        "sum) or calibrated. [default: ppp with --ppp, otherwise calibrated, with fits for this device or for others; "
        "roofline if no fit covers the device]",
    )  # fmt: skip
    ppp: float | None = option(
        group=MODEL_GROUP, is_common=True, type=PPP, metavar="FRACTION",
        help="Platform percent of peak as a fraction, for the time model ppp; may exceed 1.",
    )  # fmt: skip


SITE_SETTINGS = KeyValues(
    {
        "electricity": Quantity("USD/kWh"),
        "carbon-intensity": Quantity("g/kWh"),
        "pue": NUMBER,
        "host-watts": Quantity("W"),
    }
)


@dataclass(frozen=True)
class SiteOptions(Options):
    """What surrounds the devices."""

    site: dict[str, Any] | str | None = option(
        group=COST_GROUP, type=SITE_SETTINGS, metavar="KEY=VALUE,...",
        help="What surrounds the devices: electricity=USD/kWh, carbon-intensity=g/kWh (grams of CO2), pue=RATIO "
        "(energy at the meter over that of the machines), host-watts=WATTS (of hosts, fans and power supplies, per "
        "device).",
    )  # fmt: skip

    @property
    def facility(self) -> Facility | None:
        """What surrounds the devices, in one noun; None if nothing is given."""
        if not isinstance(self.site, dict):
            return None
        from ..timing.facility import facility_of_site

        return facility_of_site(self.site)


@dataclass(frozen=True)
class PriceOptions(Options):
    """The price of a device."""

    price: float | str | None = option(
        group=COST_GROUP, type=PriceOrCloud(), metavar="USD/h|CLOUD",
        help="Price per hour of one device: a number, or the cloud whose price is used, such as AWS or Lambda, or "
        "cheapest. [default: its rental price on record]",
    )  # fmt: skip

    @property
    def price_usd_per_h(self) -> float | None:
        """The price, if it is a number."""
        return self.price if isinstance(self.price, (int, float)) else None

    @property
    def price_of(self) -> str | None:
        """The cloud whose price is used, if one is named."""
        return self.price if isinstance(self.price, str) else None


@dataclass(frozen=True)
class SizeOptions(Options):
    """The size of one sample of a network."""

    sequence_length: Several[int | None] = option(
        group=NETWORK_GROUP, is_common=True, type=TOKENS, metavar="TOKENS",
        spellings=("--sequence-length", "--seq-length", "--max-length"),
        help="Tokens per sequence of a language model; in prefill the length of the prompt. [default: the maximum of "
        "the model, but at most 2048]",
    )  # fmt: skip
    image_size: int | str | None = option(
        group=NETWORK_GROUP, type=PICTURE_SIZE, metavar="PIXELS",
        help="Image size, if it differs from the network's own; needs torch once.",
    )  # fmt: skip
    inputs: Sequence[Any] = option(
        (), group=NETWORK_GROUP, is_common=True, spellings=("--input",), is_repeatable=True, type=ModuleInput(),
        metavar="[NAME=][TYPE:]SHAPE",
        help="Shape of one sample for package.module:factory, such as 3x224x224, int64:128 or input_ids=int64:1-4096 "
        "(a range of sequence lengths); lengths=int64:=100 where forward needs the values; proposals=300 for the "
        "images of a detector; one option per input. The module's code is executed: use only code that you trust.",
    )  # fmt: skip


@dataclass(frozen=True)
class SquareSize(Options):
    """The size of the images of a network."""

    image_size: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, is_single=True, metavar="PIXELS",
        help="Image size, if it differs from the network's own; needs torch once.",
    )  # fmt: skip


@dataclass(frozen=True)
class AttentionOptions(Options):
    """The implementation of attention."""

    attention: str | None = option(
        group=ENGINE_GROUP, type=Names("attention", ".timing.attention:ATTENTION_NAMES"),
        help="Implementation of attention: eager (writes the scores to memory), sdpa (PyTorch's choice), flash1, "
        "flash2, flash3 (Hopper), cudnn (Hopper, Blackwell). [default: that of the config; flash2 up to Hopper, then "
        "cudnn]",
    )  # fmt: skip


@dataclass(frozen=True)
class WeightOptions(Options):
    """How matrices and the KV cache are stored."""

    weights: Several[str | None] = option(
        group=NETWORK_GROUP, is_common=True, type=FORMATS, metavar="FORMAT",
        spellings=("--weights", "--quantization"),
        help="Format in which matrices are stored at inference, such as fp8, int4 or nvfp4. [default: the published "
        "format, or --precision where it is given]",
    )  # fmt: skip
    kv_cache: str | None = option(
        group=ENGINE_GROUP, is_common=True, type=CACHE_FORMATS, metavar="FORMAT",
        spellings=("--kv-cache", "--kv-cache-dtype"),
        help="Format of the KV cache, such as fp8. [default: the precision, but at least 16 bits]",
    )  # fmt: skip


@dataclass(frozen=True)
class ExpertOptions(Options):
    """How a group of devices divides attention and the experts of a mixture."""

    expert_parallel: int | None = option(
        group=PARALLEL_GROUP, type=INTEGER, metavar="N",
        spellings=("--expert-parallel", "--expert-parallel-size", "--ep-size", "--ep"),
        help="Groups of the --tensor devices that divide the experts of a mixture among themselves. [default: 1]",
    )  # fmt: skip
    attention_data_parallel: int | None = option(
        group=PARALLEL_GROUP, type=INTEGER, metavar="N",
        help="Groups of the --tensor devices that compute attention for sequences of their own. [default: 1]",
    )  # fmt: skip
    expert_load: str | None = option(
        group=PARALLEL_GROUP, metavar="LOAD",
        help="Tokens per expert of a mixture: uniform, or power-law:ALPHA such as power-law:1.2, with a few busy "
        "experts. [default: uniform]",
    )  # fmt: skip


ATTENTION = Names("attention", ".timing.attention:ATTENTION_NAMES")
TRAINING_SETTINGS = KeyValues(
    {"attention": ATTENTION, "loss": click.STRING, "gradients": ListedNames("way of gradients", ("fp32", "released"))}
)


def settings_of(settings: Any) -> dict[str, Any]:
    """Return the settings of a composite option, which the record has converted; none if it is not given."""
    return dict(settings or {})


@dataclass(frozen=True)
class UpdateOptions(Options):
    """The update of the weights, and what a training step saves."""

    optimizer: str | None = option(
        group=TRAINING_GROUP, is_common=True, metavar="NAME",
        type=OptimizerNames("optimizer", ".timing.optimizers:OPTIMIZERS"),
        spellings=("--optimizer", "--optim"),
        help="Optimizer. [default: adamw of a network that reads tokens, of a pipeline's denoiser, and with --lora; "
        "otherwise sgd]",
    )  # fmt: skip
    mixed_precision: bool = option(
        False, group=TRAINING_GROUP, is_common=True,
        help="Train in fp16 or bf16 with master weights in fp32.",
    )  # fmt: skip
    recompute: str | None = option(
        group=TRAINING_GROUP, is_common=True, metavar="NAME[:DETAIL]",
        spellings=("--recompute", "--gradient-checkpointing"),
        help="Activation recomputation: none; sqrt (in about sqrt(n) segments), all (between all possible cuts); of "
        "blocks full, full:N (every n-th block), selective, selective:MODULE+MODULE as Megatron-LM names them, or "
        "offload. [default: none; with megatron on Hopper and later as much as the memory requires]",
    )  # fmt: skip
    accumulation: int | None = option(
        group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--accumulation", "--gradient-accumulation-steps"),
        help="Gradient accumulation: micro-batches per update of the weights. [default: 1]",
    )  # fmt: skip
    offload: str | None = option(
        group=TRAINING_GROUP, is_common=True, type=OffloadNames("offload", ".timing.training_options:OFFLOADS"),
        metavar="PLACE",
        help="Keep gradients and optimizer state in the memory of the host (cpu) or on NVMe drives (nvme), and update "
        "there; activations:FRACTION copies this share of the saved activations to the host and back; both are "
        "cpu+activations:FRACTION. [default: none; with megatron on NVLink-C2C as many activations as the memory "
        "requires]",
    )  # fmt: skip
    training_settings: dict[str, Any] | str | None = option(
        group=TRAINING_GROUP, type=TRAINING_SETTINGS, metavar="KEY=VALUE,...",
        help="Details of a training step: attention=NAME (its implementation: eager, which writes the scores to "
        "memory, sdpa, flash1, flash2, flash3, cudnn; by default that of the config, or flash2 up to Hopper, then "
        "cudnn), loss=fp32|fused|cut|N (cross entropy of a language model: in fp32, fused in one kernel as in "
        "flash-attn, Liger and Transformer Engine, cut as in Apple's, which holds no logits, or head and loss for one "
        "N-th of the tokens at a time; by default fp32, and fused with --execution megatron from Hopper on), "
        "gradients=fp32 (of mixed precision) or released (every layer is updated in the backward pass, so that only "
        "one layer's gradients are in memory).",
    )  # fmt: skip

    @property
    def loss(self) -> str | None:
        """How the cross entropy of a language model is computed; None for the default."""
        return settings_of(self.training_settings).get("loss")


TRAINABLE_LAYERS = KeyValues(
    {
        "only": click.STRING,
        "except": click.STRING,
        "adapters": click.STRING,
        "dropout": NUMBER,
        "kernels": ListedNames("way of kernels", ("fused", "separate")),
    }
)


@dataclass(frozen=True)
class AdapterOptions(Options):
    """Which parameters are trained."""

    lora: int | None = option(
        group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="RANK",
        spellings=("--lora", "--lora-r", "--lora-rank"),
        help="Train LoRA adapters of this rank; all else is frozen.",
    )  # fmt: skip
    trainable: dict[str, Any] | str | None = option(
        group=TRAINING_GROUP, type=TRAINABLE_LAYERS, metavar="KEY=NAMES,...",
        help="Layers that are trained, by names or patterns: only=last or only=NAMES (and no others), "
        "except='model.embed_tokens,model.layers.[0-9].*' (which are frozen), adapters=q_proj,v_proj (those with LoRA "
        "adapters; by default all linear layers except the output head), dropout=0.05 (of the adapters' inputs), "
        "kernels=separate (adapters scale and add in kernels of their own, as PEFT's do; by default they are fused).",
    )  # fmt: skip
    weights: Several[str | None] = option(
        group=TRAINING_GROUP, is_common=True, type=FORMATS, metavar="FORMAT",
        help="Format of frozen matrices: --weights int4 with --lora is QLoRA. [default: the precision]",
    )  # fmt: skip
