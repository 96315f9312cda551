"""What the modules of diffusers reach of the rates of a calibration.

The calibrated model is fitted to image networks and language models. In pipelines for pictures and videos four kernels
do not reach what a newer device offers, as they are bounded by what each multiprocessor issues per cycle, which has
hardly changed since Ampere, instead of by tensor cores and memory, which have. Each has a constant in work per cycle
and multiprocessor, the same for all devices, fitted to published batches (`calibrations/diffusion.toml`):

- Attention is bidirectional over thousands of tokens, by kernels that are written for Ampere's matrix instructions.
  They take the cycles of the products and those of the softmax, of which short heads have more per product::

      cycles = FLOPs / flops_per_cycle + scores / scores_per_cycle

  Where the calibrated model takes longer, as on older devices, its time holds, of which `head_share` is inversely
  proportional to the head size.
- Between products, adaptive norms, rotary embeddings, gates and casts read strided and broadcast tensors in many
  kernels. Their time is the root of the sum of squares of that of the calibrated model and that of
  ``bytes / bytes_per_cycle``. Compiled kernels read contiguous tensors.
- A layer norm over the few elements of a head takes a thread block per row, whatever its length: `row_cycles`.
- The host takes `host_s` per kernel.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting.autocast import ORIGIN as CASTS
from ..counting.work import COMPILED, ENGINE
from ..errors import BadValue
from ..files import read_shipped
from .attention import ATTENTIONS, SDPA, KernelShares, kernel_shares, layer_slowdowns
from .calibrated import CalibratedModel, rates_of
from .causes import ATTENTION, MEMORY, PRODUCTS, MovedCauses
from .features import CLASS_INDEX, UPDATE, Features
from .parameters import NAMES
from .quantization import CONVERSION
from .sequence_parallel import SequenceConstants

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..counting import Layer
    from ..machines import Device, Machine
    from .models import TimeModel
    from .workload import Workload

FILE = "diffusion.toml"
REFERENCE_HEAD = 128
"""Head size for which the calibrated time of attention holds."""

FIRST_FLASH2 = 8
"""First compute capability of FlashAttention 2's kernels."""

FLASH2_PRECISIONS = ("fp16", "bf16")
"""Precisions of FlashAttention 2's kernels, in which pipelines were measured."""

HEAD_STEP = 32
"""Step of the head sizes of FlashAttention 2's kernels (Dao-AILab/flash-attention, csrc/flash_attn, 32 to 256)."""

OTHER_ATTENTIONS = frozenset(ATTENTIONS) - {"flash2"}
"""Implementations of attention other than that of the measured pipelines, which have the rates of their kernels."""


class DiffusionConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constants of pipelines, per cycle and multiprocessor where they are rates."""

    # Arithmetic of attention, and scores that its softmax computes.
    flops_per_cycle: float
    scores_per_cycle: float
    bytes_per_cycle: float  # bytes that eager kernels between products read and write
    row_cycles: float  # cycles per row of a layer norm
    host_s: float  # seconds of the host per kernel
    head_share: float  # share of the calibrated time of attention that is inversely proportional to the head size
    deviation: float  # deviation of the logarithm of the time of pipelines that are held out, on the measured devices
    other_deviation: float  # the same on other devices, beside the uncertainty of the device's calibration
    measured: tuple[str, ...]  # devices that the constants are fitted to
    sequence: SequenceConstants  # constants of splitting the sequence over devices
    sources: tuple[str, ...] = ()  # whose measurements the constants are fitted to


@cache
def diffusion_constants() -> DiffusionConstants:
    """Return the shipped constants."""
    return read_shipped(FILE, DiffusionConstants)


def cycles_per_s(device: Device) -> float:
    """Return the cycles per second of all multiprocessors of a device, at its boost clock or else its default one.

    Raise BadValue if no source gives either clock.
    """
    clock_hz = device.clock_hz("boost") or device.clock_hz(device.clocks.default)
    if clock_hz is None:
        raise BadValue(f"{device.name} has no clock on record")
    return clock_hz * float(device.cores.multiprocessors.value)


class PipelineModel(CalibratedModel, frozen=True, eq=False):
    """Calibrated model with the constants of pipelines."""

    constants: DiffusionConstants = msgspec.field(default_factory=diffusion_constants)
    # Factors on the times of attention and of other products, calibrated by measured batches.
    attention_slowdown: float = 1.0
    product_slowdown: float = 1.0

    @classmethod
    def of(
        cls,
        model: CalibratedModel,
        device: Device,
        constants: DiffusionConstants,
        # Whether the constants are fitted to such runs, if the device is one of theirs: inference in 16 bits.
        is_measured: bool = True,
        has_narrow_products: bool = False,  # whether products have fewer than 16 bits
    ) -> PipelineModel:
        """Return a calibrated model of a device with these constants."""
        theta = model.theta.copy()
        theta[NAMES.index("overhead_s")] = np.log(constants.host_s)
        fields: dict[str, Any] = {name: getattr(model, name) for name in CalibratedModel.__struct_fields__}
        is_measured = is_measured and device.id in constants.measured
        fields |= {"theta": theta, "scatter": constants.deviation if is_measured else constants.other_deviation}
        if is_measured:
            # The deviation of held-out models is that of the sum of both uncertainties.
            gemm = NAMES.index("efficiency_gemm")
            fields["covariance"] = np.zeros_like(model.covariance)
            if has_narrow_products:  # which were not measured
                fields["covariance"][gemm, gemm] = model.covariance[gemm, gemm]
            fields["learned_fraction"] = None
            fields["notes"] = (
                f"pipelines were measured on {device.name}: the interval is as wide as the errors of those held out",
            )
        return cls(**fields, constants=constants)

    def with_causes(self, moved: MovedCauses) -> PipelineModel:
        """Return the model with the seconds of each cause multiplied by its factor.

        Attention and what is between products are bounded by the constants of pipelines, not by the calibrated rates.
        """
        other_logs = {cause: log for cause, log in moved.logs.items() if cause != ATTENTION}
        model = MovedCauses(other_logs, moved.width).move(self)
        memory, constants = moved.factor_of(MEMORY), self.constants
        constants = msgspec.structs.replace(
            constants,
            bytes_per_cycle=constants.bytes_per_cycle / memory,
            row_cycles=constants.row_cycles * memory,
        )
        return msgspec.structs.replace(
            model,
            constants=constants,
            attention_slowdown=self.attention_slowdown * moved.factor_of(ATTENTION),
            product_slowdown=self.product_slowdown * moved.factor_of(PRODUCTS),
        )

    def with_kernel_rates(self, features: Features, workload: Workload, machine: Machine) -> Features:
        """Return the features at the rates of the kernels that pipelines run."""
        features = super().with_kernel_rates(features, workload, machine)
        layers = workload.layers
        layer_index = features.position[:, 1]
        heads = np.array([_head_size(layer) for layer in layers])[layer_index]
        is_attention = features.work_class == CLASS_INDEX["attention"]
        attention_factor = self._attention_factors(features, heads, workload, machine) * self.attention_slowdown
        is_contiguous = np.array([_is_contiguous(layer) for layer in layers])[layer_index]
        is_between = ~features.matrix & ~is_contiguous
        row_bytes = np.where(features.pass_number < UPDATE, self._row_bytes(workload, machine)[layer_index], 0.0)
        between_factor = self._between_factor(workload, machine)
        return msgspec.structs.replace(
            features,
            padding=features.padding * np.where(is_attention & features.matrix, attention_factor, 1.0),
            bytes=features.bytes * np.where(is_between, between_factor, 1.0) + row_bytes,
        )

    def _attention_factors(
        self, features: Features, heads: NDArray[np.float64], workload: Workload, machine: Machine
    ) -> NDArray[np.float64]:
        """Return the factors on the calibrated time of attention, by entry; meaningless for other layers."""
        constants, rates = self.constants, rates_of(machine, workload.precision)
        sustained_per_s = rates.matrix_per_s * rates.sustained_fraction
        # The products of attention have a factor of their own, not that of other products.
        products_per_s = sustained_per_s * float(np.exp(self.theta[NAMES.index("efficiency_gemm")]))
        products_per_s *= self.product_slowdown
        efficiency = float(np.exp(self.theta[NAMES.index("efficiency_attention")]))
        calibrated_per_s: NDArray[np.float64] = sustained_per_s * efficiency / features.padding
        if workload.attention in OTHER_ATTENTIONS:
            shares = kernel_shares(workload.attention, machine.device)
            assert shares is not None
            of_shape = np.array([_slowdown(shares, layer) for layer in workload.layers])[features.position[:, 1]]
            other: NDArray[np.float64] = of_shape * shares.slowdowns(features) * calibrated_per_s / rates.matrix_per_s
            return other
        cycles = cycles_per_s(machine.device)
        products_s = padded_heads(heads) / heads / np.minimum(products_per_s, constants.flops_per_cycle * cycles)
        # A score takes two multiply-accumulates per element of the head: one of the query, one of the value.
        softmax_s = 1 / (4 * heads * constants.scores_per_cycle * cycles)
        factors: NDArray[np.float64] = (products_s + softmax_s) * calibrated_per_s
        if runs_flash2(machine.device, workload.precision):
            return factors
        return np.maximum(1 - constants.head_share + constants.head_share * REFERENCE_HEAD / heads, factors)

    def _between_factor(self, workload: Workload, machine: Machine) -> float:
        """Return the factor on the time of what is not a product."""
        if workload.execution in (COMPILED, ENGINE):
            return 1.0
        share = float(np.exp(self.theta[NAMES.index("share_other")]))
        bandwidth = rates_of(machine, workload.precision).bandwidth_bytes_per_s * share
        return float(np.hypot(1, bandwidth / (self.constants.bytes_per_cycle * cycles_per_s(machine.device))))

    def _row_bytes(self, workload: Workload, machine: Machine) -> NDArray[np.float64]:
        """Return the bytes that are moved in the time of the rows of layer norms, by layer."""
        device = machine.device
        row_s = self.constants.row_cycles / cycles_per_s(device)
        share = float(np.exp(self.theta[NAMES.index("share_other")]))
        rows = [
            np.prod(layer.outputs[0][:-1]) * workload.batch_size if layer.kind == "layer_norm" else 0.0
            for layer in workload.layers
        ]
        return np.array(rows) * row_s * device.bandwidth_bytes_per_s * share


def runs_flash2(device: Device, precision: str) -> bool:
    """Return whether PyTorch computes attention by FlashAttention 2: in 16 bits, on NVIDIA's devices from Ampere on."""
    generation = device.capability.split(".")[0]
    return precision in FLASH2_PRECISIONS and generation.isdigit() and int(generation) >= FIRST_FLASH2


def is_like_measured(workload: Workload) -> bool:
    """Return whether a denoiser runs as in the batches that the constants are fitted to.

    They are eager, in 16 bits, with FlashAttention 2.
    """
    has_flash2 = workload.attention in (None, SDPA, "flash2")
    return workload.precision in FLASH2_PRECISIONS and workload.execution == "eager" and has_flash2


def padded_heads(heads: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the head sizes for which FlashAttention 2 has kernels: the others are padded to the next one."""
    padded: NDArray[np.float64] = np.ceil(heads / HEAD_STEP) * HEAD_STEP
    return padded


def _slowdown(shares: KernelShares, layer: Layer) -> float:
    return layer_slowdowns(shares, layer)[0] if layer.kind == "attention" else 1.0


def _is_contiguous(layer: Layer) -> bool:
    """Return whether a layer that is not a product reads and writes contiguous tensors."""
    return layer.kind == "softmax" or layer.origin in (CASTS, CONVERSION)


def _head_size(layer: Layer) -> float:
    return float(layer.inputs[0][-1]) if layer.kind == "attention" else REFERENCE_HEAD


def pipeline_model(
    model: TimeModel,
    device: Device,
    constants: DiffusionConstants | None = None,
    is_measured: bool = True,
    has_narrow_products: bool = False,
) -> TimeModel:
    """Return a time model of a device with the constants of pipelines; only the calibrated model has any."""
    if not isinstance(model, CalibratedModel):
        return model
    return PipelineModel.of(model, device, constants or diffusion_constants(), is_measured, has_narrow_products)
