"""What the modules of diffusers reach of the rates of a calibration.

The calibrated model is fitted to image networks and language models. Pipelines for pictures and videos differ in four
ways, each with a constant fitted to published batches (`calibrations/diffusion.toml`):

- Attention is bidirectional over thousands of tokens, by the kernel that PyTorch or flash-attn chooses. The softmax
  takes as long for short heads as for long ones, so that heads of 64 reach fewer FLOP/s than heads of 128::

      time = (1 - b + b * 128 / head size) * attention[generation] * time of the calibrated model

- Matrix products draw so much power that the clock falls; newer generations run kernels of older ones.
- Between products, adaptive norms, rotary embeddings, gates and casts read strided and broadcast tensors in many
  kernels, which take a multiple of the time that contiguous ones take.
- A layer norm over the few elements of a head takes a thread block per row, whatever its length.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..counting.kinds.products import MATRIX_CLASSES
from ..counting.work import COMPILED, ENGINE
from ..files import read_typed, shipped_folder
from .calibrated import NAMES, CalibratedModel
from .features import CLASS_INDEX, Features
from .sequence_parallel import SequenceConstants

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..counting import Layer
    from ..machines import Device, Machine
    from .models import TimeModel
    from .workload import Workload

FILE = "diffusion.toml"
_MAX_FILE_BYTES = 2**16

REFERENCE_HEAD = 128
"""Head size for which the factor of attention is 1."""


class Generation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factors on the times of the calibrated model for devices of a compute capability.

    Attributes
    ----------
    attention, products, memory : float
        Of attention with heads of 128, of convolutions and matrix products, and of everything else.
    head_share : float
        Share of the time of attention with heads of 128 that is inversely proportional to the head size.
    deviation : float
        Deviation of the logarithm of the time of pipelines that are held out.
    is_fitted : bool
        Whether the factors are fitted to pipelines; the uncertainty of the calibration is then part of the deviation.
    """

    attention: float
    products: float
    memory: float
    head_share: float
    deviation: float
    is_fitted: bool = False


class DiffusionConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constants of pipelines.

    Attributes
    ----------
    row_cycles : float
        Cycles of a multiprocessor per row of a layer norm.
    host_s : float
        Seconds of the host per kernel.
    fused_memory : float
        Factor on the time of what is not a product where the execution fuses it.
    sequence : SequenceConstants
        Constants of splitting the sequence over devices.
    other : Generation
        Factors of all other devices.
    generations : dict of str to Generation
        Factors by the first number of the compute capability.
    sources : tuple of str
        Whose measurements the constants are fitted to.
    """

    row_cycles: float
    host_s: float
    fused_memory: float
    sequence: SequenceConstants
    other: Generation
    generations: dict[str, Generation]
    sources: tuple[str, ...] = ()

    def of(self, device: Device) -> Generation:
        """Return the factors of a device."""
        return self.generations.get(device.capability.split(".")[0], self.other)


@cache
def diffusion_constants() -> DiffusionConstants:
    """Return the shipped constants."""
    return read_typed(
        shipped_folder("calibrations") / FILE, DiffusionConstants, "constants of pipelines", _MAX_FILE_BYTES
    )


class PipelineModel(CalibratedModel, frozen=True, eq=False):
    """Calibrated model with the constants of pipelines.

    Attributes
    ----------
    constants : DiffusionConstants
        The constants.
    """

    constants: DiffusionConstants = msgspec.field(default_factory=diffusion_constants)

    @classmethod
    def of(cls, model: CalibratedModel, device: Device, constants: DiffusionConstants) -> PipelineModel:
        """Return a calibrated model of a device with these constants."""
        theta, generation = model.theta.copy(), constants.of(device)
        theta[NAMES.index("overhead_s")] = np.log(constants.host_s)
        fields = {name: getattr(model, name) for name in CalibratedModel.__struct_fields__}
        fields |= {"theta": theta, "scatter": generation.deviation}
        if generation.is_fitted:
            fields["covariance"] = np.zeros_like(model.covariance)
        return cls(**fields, constants=constants)

    def with_kernel_rates(self, features: Features, workload: Workload, machine: Machine) -> Features:
        """Return the features at the rates of the kernels that pipelines run."""
        features = super().with_kernel_rates(features, workload, machine)
        constants, layers = self.constants, workload.layers
        generation = constants.of(machine.device)
        is_fused = workload.execution in (COMPILED, ENGINE)
        memory = constants.fused_memory if is_fused else generation.memory
        layer_index = features.position[:, 1]
        is_product = features.work_class < len(MATRIX_CLASSES)
        is_attention = features.work_class == CLASS_INDEX["attention"]
        head_factors = np.array([_head_factor(layer, generation.head_share) for layer in layers])[layer_index]
        product_factor = np.where(is_attention, generation.attention * head_factors, generation.products)
        row_bytes = self._row_bytes(workload, machine)[layer_index]
        moved = np.where(is_product, features.bytes, features.bytes * memory)
        return msgspec.structs.replace(
            features,
            padding=features.padding * np.where(is_product, product_factor, 1.0),
            bytes=moved + row_bytes,
        )

    def _row_bytes(self, workload: Workload, machine: Machine) -> NDArray[np.float64]:
        """Return the bytes that are moved in the time of the rows of layer norms, by layer."""
        device = machine.device
        clock_hz = device.clock_hz("boost") or 1.5e9
        row_s = self.constants.row_cycles / (clock_hz * float(device.cores.multiprocessors.value))
        share = float(np.exp(self.theta[NAMES.index("share_other")]))
        rows = [
            np.prod(layer.outputs[0][:-1]) * workload.batch_size if layer.kind == "layer_norm" else 0.0
            for layer in workload.layers
        ]
        return np.array(rows) * row_s * device.bandwidth_bytes_per_s * share


def _head_factor(layer: Layer, head_share: float) -> float:
    if layer.kind != "attention":
        return 1.0
    return 1 - head_share + head_share * REFERENCE_HEAD / layer.inputs[0][-1]


def pipeline_model(model: TimeModel, device: Device, constants: DiffusionConstants | None = None) -> TimeModel:
    """Return a time model of a device with the constants of pipelines; only the calibrated model has any."""
    if not isinstance(model, CalibratedModel):
        return model
    return PipelineModel.of(model, device, constants or diffusion_constants())
