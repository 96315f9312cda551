"""Time model for training transformers: constants of kernels and host, fitted to measured training steps.

The gradients of a matrix product are products of the same sizes with a similar efficiency, whereas the factors of other
networks are those of convolutions. Attention recomputes its scores for its gradients, which is not counted. The
constants are in ``calibrations/training.toml``; `python -m validation accuracy --split training` gives their held-out
accuracy.

A tuned stack, Megatron-LM with Transformer Engine on Hopper and later, has constants of its own: it multiplies with
tuned products for each recipe, attends with cuDNN, sends to other devices while it computes, and launches from captured
graphs. They are fitted to published pre-training (``calibrations/training_stack.toml``); `python -m validation accuracy
--split pretraining` gives their held-out accuracy.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..counting import Layer
from ..counting.kinds import is_attention, is_grouped_product
from ..counting.work import UNFUSED_EXECUTIONS
from ..errors import BadFile
from ..files import read_shipped
from ..machines import Device, Machine
from ..units import parse_quantity
from .attention import KernelShares, find_shares, kernel_shares, layer_slowdowns, scale_class
from .calibrated import CalibratedModel, library_peak
from .expert_kernels import TUNED_KERNELS
from .features import UPDATE, Features
from .models import TimeModel
from .parameters import NAMES, prepare_steps
from .power import matrix_fraction
from .terms import RequestedOutputs, Times
from .training_options import TRAINING_RECIPES
from .workload import Workload

if TYPE_CHECKING:
    from .broadcast import BatchedStack

TRAINING_FILE = "training.toml"

SCALED = ("share_other",)
"""Constants that multiply the device's parameter; the others replace it."""

HOST_CONSTANTS = ("overhead_s", "overhead_backward_s")
"""Constants of the host; the others are those of kernels."""

KERNEL_NOTE = "the kernels have the constants of"
"""Beginning of the note that says where the constants of kernels are from."""

UNKNOWN_KERNEL = KernelShares(0.35, 0.336, start_keys=260)
"""Shares of the peak of attention kernels on devices for which none are known: those of FlashAttention 2 on Hopper,
whose kernels are not made for its matrix instructions either. With heads of 64 and 8,192 tokens, FlashAttention 2 on an
MI300X reaches 0.25 of its peak (Azure's ND_MI300X_v5)."""

REFERENCE_PRODUCT_SHARE = 0.869
"""Share of the peak that the largest matrix products reach on an A100: 271.2 of 312 TFLOP/s (stas00/ml-engineering,
maximum achievable matrix-multiplication FLOPS)."""


class TrainingConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the shipped file: the fitted constants and their accuracy."""

    # Values of `paleo_lite.timing.parameters.PARAMETERS`; for those in `SCALED` a factor on the device's value.
    constants: dict[str, float]
    deviation: dict[str, float]  # standard deviations of their logarithms
    scatter: float  # relative deviation of steps of unseen sources from the model
    points: int  # number of steps in the fit
    devices: list[str]
    sources: list[str]
    # Share of the communication of sharded parameters (ZeRO stage 3, FSDP) that computation does not hide.
    exposed_sharding: float
    held_out: str = ""  # description of the errors on held-out steps
    # Share of their rate that products and attention reach in a step of eager PyTorch, over that on Ampere, by the
    # first digit of the compute capability.
    share_by_generation: dict[str, float] = msgspec.field(default_factory=dict)
    format: int = 1


@cache
def training_constants() -> TrainingConstants:
    """Read the shipped constants; raise BadFile if the file is malformed."""
    constants = read_shipped(TRAINING_FILE, TrainingConstants)
    unknown = constants.constants.keys() - set(NAMES)
    if unknown:
        raise BadFile(f"{TRAINING_FILE}: there is no parameter {min(unknown)}")
    if constants.deviation.keys() != constants.constants.keys():
        raise BadFile(f"{TRAINING_FILE}: constants and deviation must have the same names")
    return constants


class TrainingModel(CalibratedModel, frozen=True, eq=False):
    """Calibrated model with the constants of transformer training."""

    exposed_sharding: float = 0.0  # share of the communication of sharded parameters that computation does not hide
    share_by_generation: dict[str, float] = msgspec.field(default_factory=dict)  # as in `TrainingConstants`
    has_host_constants: bool = True  # whether the host has the constants of training frameworks on many devices, too
    # Share of the peak that layers of a kind reach, over that of their class of work.
    kind_efficiency: dict[str, float] = msgspec.field(default_factory=dict)
    # Smaller dimension of an expert's matrix at which grouped products reach half of `kind_efficiency`.
    half_expert_size: float = 0.0

    def with_kernel_rates(self, features: Features, workload: Workload, machine: Machine) -> Features:
        """Return the features with the rates of attention kernels and of the largest matrix products.

        The constant ``efficiency_attention`` is the share that a step reaches of the rate of the kernel alone, and
        ``efficiency_gemm`` the share of the peak on a device on which products reach `REFERENCE_PRODUCT_SHARE`.
        """
        features = self._scale_kernels(features, workload.attention, workload.precision, machine)
        if workload.execution in UNFUSED_EXECUTIONS:
            share = self.share_by_generation.get(machine.device.capability.split(".")[0], 1.0)
            for work_class in ("gemm", "attention"):
                features = scale_class(features, work_class, 1 / share, 1 / share)
        if not self.kind_efficiency:
            return features
        shares = kernel_shares(workload.attention, machine.device) or UNKNOWN_KERNEL
        by_layer = np.array([self._slowdowns_of(layer, shares) for layer in workload.layers])
        forward, backward = by_layer[features.position[:, 1]].T
        slowdown = np.where(features.pass_number == 0, forward, backward)
        slowdown = np.where(features.pass_number < UPDATE, slowdown, 1.0)
        return msgspec.structs.replace(features, padding=features.padding * slowdown)

    def _slowdowns_of(self, layer: Layer, shares: KernelShares) -> tuple[float, float]:
        """Return by how much longer the forward and the backward pass of a layer take than its class of work does."""
        if is_attention(layer):
            return layer_slowdowns(shares, layer)
        slowdown = 1 / self.kind_efficiency.get(layer.kind, 1.0)
        if is_grouped_product(layer):
            slowdown *= 1 + self.half_expert_size / min(layer.weights[0][1:])
        return slowdown, slowdown

    def evaluate_many(self, stack: BatchedStack, machine: Machine, precision: str, outputs: RequestedOutputs) -> Times:
        """Time many cases and batch sizes; see `TimeModel.evaluate_many`."""
        features = self._scale_kernels(stack.features, None, precision, machine)
        steps = prepare_steps(features, stack.run, stack.cases, stack.steps.plan)
        return super().evaluate_many(stack._replace(features=features, steps=steps), machine, precision, outputs)

    def _scale_kernels(self, features: Features, attention: str | None, precision: str, machine: Machine) -> Features:
        shares = kernel_shares(attention, machine.device) or UNKNOWN_KERNEL
        features = msgspec.structs.replace(features, padding=features.padding * shares.slowdowns(features))
        measured_share = product_share(machine.device)
        if measured_share is None:
            return features
        # The measured rate contains what the power limit costs, which the rates of the machine contain as well.
        fraction = matrix_fraction(machine.device, library_peak(machine, precision))
        slowdown = REFERENCE_PRODUCT_SHARE / measured_share * fraction
        return scale_class(features, "gemm", slowdown, slowdown)

    @property
    def residual_variance(self) -> float:
        """Variance of the log time that is not due to the parameters, measured on held-out sources."""
        return self.scatter**2


def product_share(device: Device) -> float | None:
    """Return the measured share of the peak that the largest products in bf16 reach on a device; None without one."""
    measured = device.measured.get("gemm_bf16")
    if measured is None:
        return None
    return parse_quantity(measured.value, "FLOP/s") / device.find_peak("bf16").per_s


def use_training_constants(model: TimeModel, constants: TrainingConstants | None = None) -> TimeModel:
    """Return a calibrated model with the constants of transformer training; return other models unchanged.

    The constants are the shipped ones by default.
    """
    if not isinstance(model, CalibratedModel) or (isinstance(model, TrainingModel) and model.has_host_constants):
        return model
    constants = constants or training_constants()
    values = constants.constants
    if isinstance(model, TrainingModel):  # its kernels have the constants already
        values = {name: value for name, value in values.items() if name in HOST_CONSTANTS}
    return _replace_parameters(model, constants, values, has_host_constants=True)


def use_all_constants(model: CalibratedModel, constants: TrainingConstants) -> TrainingModel:
    """Return a model in which the constants replace all parameters of the same names, those in `SCALED` as well."""
    return _replace_parameters(model, constants, constants.constants, has_host_constants=True, scaled=())


def use_kernel_constants(model: TimeModel) -> TimeModel:
    """Return a calibrated model with the constants of kernels in transformer training, but its own host.

    The steps that the constants were fitted to run on many devices, and their frameworks need more host time per kernel
    than PyTorch on a single device. Other models are returned unchanged.
    """
    if not isinstance(model, CalibratedModel) or isinstance(model, TrainingModel):
        return model
    constants = training_constants()
    note = f"{KERNEL_NOTE} {constants.points} published training steps of language models"
    model = msgspec.structs.replace(model, notes=(*model.notes, note))
    values = {name: value for name, value in constants.constants.items() if name not in HOST_CONSTANTS}
    return _replace_parameters(model, constants, values, has_host_constants=False)


def _replace_parameters(
    model: CalibratedModel,
    constants: TrainingConstants,
    values: dict[str, float],
    has_host_constants: bool,
    scaled: Collection[str] = SCALED,
) -> TrainingModel:
    """Return a model with these values of constants of transformer training, some of which scale its own values."""
    changed = [NAMES.index(name) for name in values]
    replaced = [NAMES.index(name) for name in values if name not in scaled]
    theta, covariance = model.theta.copy(), model.covariance.copy()
    theta[replaced] = 0.0
    covariance[replaced] = 0.0
    covariance[:, replaced] = 0.0
    theta[changed] += np.log(list(values.values()))
    covariance[changed, changed] += [constants.deviation[name] ** 2 for name in values]
    return TrainingModel(
        model.label,
        theta,
        covariance,
        constants.scatter,
        model.notes,
        model.learned_fraction,
        narrow_relative_efficiency=model.narrow_relative_efficiency,
        exposed_sharding=constants.exposed_sharding,
        share_by_generation=constants.share_by_generation if has_host_constants else {},
        has_host_constants=has_host_constants,
    )


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


def stack_attention(device: Device) -> str | None:
    """Return the implementation of attention that the stack calls; None, the usual one, where it was not measured."""
    return None if find_shares(STACK_ATTENTION, device) is None else STACK_ATTENTION


def use_recipe_efficiency(model: TimeModel, recipe: str | None, device: Device) -> TimeModel:
    """Return a calibrated model whose products of a recipe reach the share of the stack, on devices that it supports.

    Other stacks call the same libraries for large products in 8 bits. The shares of `paleo_lite.calibration.pool` are
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
