"""Time model of training blocks with a tuned stack: Megatron-LM with Transformer Engine, on Hopper and later.

The stack multiplies with tuned products for each recipe, attends with cuDNN, sends to other devices while it computes,
and launches from captured graphs. Its constants are fitted to published pre-training
(``calibrations/training_stack.toml``); `python -m validation accuracy --split pretraining` gives their held-out
accuracy.
"""

from __future__ import annotations

from functools import cache

import msgspec

from ..errors import BadFile
from ..files import read_shipped
from ..machines import Device
from .blocks import TrainingConstants, TrainingModel, use_all_constants
from .calibrated import CalibratedModel
from .expert_kernels import TUNED_KERNELS
from .models import TimeModel
from .parameters import NAMES
from .training_recipes import TRAINING_RECIPES

STACK_FILE = "training_stack.toml"

FUSED_KINDS = ("concat", "copy", "exchange", "gather", "slice")
"""Kinds of layers of a block that have no kernel of their own. Permutations of tokens belong to their exchange
(`expert_exchange.Dispatcher`). Slices and concatenations belong to the kernels of rotary positions and projections,
also of latent attention. Attention reads and writes the layout of the projections without copies. Products that read
the same tensor are one product (Megatron-LM's ``linear_qkv`` and ``linear_fc1``), so that their gradients need no
sum."""

STACK_ATTENTION = "cudnn"
"""Implementation of attention that Transformer Engine calls."""

_FIRST_CAPABILITY, _FIRST_FULLY_SHARDED = 9, 10


class StackConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the shipped file: the fitted constants and their accuracy."""

    # Constants of kernels and host; see `paleo_lite.timing.blocks`. Here ``share_other`` is the share of the memory
    # bandwidth itself that kernels reach on every device.
    kernels: TrainingConstants
    # Share of their peak that the products of each recipe reach, over that of products in bf16.
    relative_efficiency: dict[str, float]
    # Share of the peak that layers of a kind reach, over that of their class of work: scans of state-space mixers.
    kind_efficiency: dict[str, float]
    # The same for grouped products, by implementation in `expert_kernels.EXPERT_KERNELS`.
    expert_efficiency: dict[str, float]
    expert_launch_s: float  # time that each kernel of an expert of its own takes beside its work
    # Time in which the host launches each of them. It waits for the number of tokens of every expert before, so that
    # products are no faster than their launches.
    expert_host_s: float
    # Smaller dimension of an expert's matrix at which grouped products reach half of their share.
    half_expert_size: float
    tensor_overlap: float  # share of the communication between tensor-parallel devices that is hidden behind products
    expert_overlap: float  # share of the exchange of tokens between experts that is hidden behind computation
    format: int = 1


@cache
def stack_constants() -> StackConstants:
    """Read the shipped constants; raise BadFile if the file is malformed."""
    constants = read_shipped(STACK_FILE, StackConstants)
    unknown = constants.kernels.constants.keys() - set(NAMES)
    if unknown:
        raise BadFile(f"{STACK_FILE}: there is no parameter {min(unknown)}")
    missing = TRAINING_RECIPES.keys() - constants.relative_efficiency.keys()
    if missing:
        raise BadFile(f"{STACK_FILE}: relative_efficiency has no {min(missing)}")
    missing = set(TUNED_KERNELS) - constants.expert_efficiency.keys()
    if missing:
        raise BadFile(f"{STACK_FILE}: expert_efficiency has no {min(missing)}")
    for name in ("tensor_overlap", "expert_overlap"):
        if not 0 <= getattr(constants, name) <= 1:
            raise BadFile(f"{STACK_FILE}: {name} must be between 0 and 1 (got {getattr(constants, name):g})")
    return constants


def supports_stack(device: Device, is_fully_sharded: bool = False) -> bool:
    """Return whether a device runs the stack's kernels: NVIDIA's from Hopper on.

    Fully sharded training on Hopper has the constants of FSDP instead, to whose steps they were fitted.
    """
    major = device.capability.split(".")[0]
    first = _FIRST_FULLY_SHARDED if is_fully_sharded else _FIRST_CAPABILITY
    return device.vendor == "NVIDIA" and major.isdigit() and int(major) >= first


def use_recipe_efficiency(model: TimeModel, recipe: str | None, device: Device) -> TimeModel:
    """Return a calibrated model whose products of a recipe reach the share of the stack, on devices that it supports.

    Other stacks call the same libraries for large products in 8 bits. The shares of `paleo_lite.calibration.choose` are
    those of products of all sizes.
    """
    if recipe is None or not isinstance(model, CalibratedModel) or not supports_stack(device):
        return model
    return msgspec.structs.replace(model, narrow_relative_efficiency=stack_constants().relative_efficiency[recipe])


def use_stack_constants(
    model: TimeModel,
    recipe: str | None,  # of the products, one of `TRAINING_RECIPES`; None for bf16
    constants: StackConstants | None = None,  # the shipped ones by default
    expert_kernels: str = "separate",  # implementation of grouped products, one of `expert_kernels.EXPERT_KERNELS`
) -> TimeModel:
    """Return a calibrated model with the constants of the stack; return other models unchanged."""
    if not isinstance(model, CalibratedModel) or (isinstance(model, TrainingModel) and model.has_host_constants):
        return model
    constants = constants or stack_constants()
    tuned = use_all_constants(model, constants.kernels)
    return msgspec.structs.replace(
        tuned,
        narrow_relative_efficiency=1.0 if recipe is None else constants.relative_efficiency[recipe],
        kind_efficiency={
            **constants.kind_efficiency,
            "grouped_matmul": constants.expert_efficiency[expert_kernels],
        },
        half_expert_size=constants.half_expert_size,
    )
