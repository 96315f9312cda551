"""`PipelineRun`: a pipeline for pictures or videos, what is asked of it, and how it runs."""

from __future__ import annotations

from functools import cache

import msgspec

from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import PartRuns, Sampling
from ..architectures.stored_weights import StoredWeights
from ..counting.attention import decompose_attention
from ..counting.work import ENGINE, MIXED_EXECUTIONS
from ..errors import BadValue, UnknownName
from ..formats import FORMATS
from ..units import element_bytes
from .activity import NARROW_PRECISIONS
from .attention import EAGER
from .causes import MovedCauses
from .quantization import dequantize_weights
from .sequence_parallel import ONE_DEVICE, SequenceSplit
from .workload import Workload, cached_for_layers

PIPELINE_OFFLOADS = ("none", "model", "sequential")
"""Where the parameters of a pipeline are: all parts on the device; each part only while it runs, otherwise in the
memory of the host; or each layer only while it runs."""


EXECUTIONS = {"tensorrt": ENGINE}
"""Further names of executions of pipelines."""


class PipelineRun(msgspec.Struct, frozen=True):
    """A pipeline, what is asked of it, and how it runs."""

    pipeline: Pipeline
    sampling: Sampling  # steps, size, frames, guidance and number of pictures
    # Precision of the denoiser; in fp8, int8 and fp4 that of its products with weights alone.
    precision: str
    # As for `Workload`.
    execution: str = "eager"
    attention: str | None = None
    weights: str | None = None  # format in which the denoiser's matrices are stored
    offload: str = PIPELINE_OFFLOADS[0]  # placement of parameters, one of `PIPELINE_OFFLOADS`
    split: SequenceSplit = ONE_DEVICE  # devices that share the denoiser's sequence; the other parts run on each
    wide_precision: str = "bf16"  # precision of everything else where that of the denoiser has fewer than 16 bits
    moved: MovedCauses | None = None  # factors of the causes of the times, calibrated by measured batches
    label: str = ""  # of these, as text

    def __post_init__(self) -> None:
        if self.products is not None and self.weights in FORMATS and FORMATS[self.weights].precision != self.products:
            raise BadValue(
                f"products in {self.products} read weights in {self.products}: leave `--weights {self.weights}` out, "
                f"or give `--precision bf16 --weights {self.weights}`, which converts them to 16 bits before a product"
            )
        stored = self.weights or self.products
        if self.execution in MIXED_EXECUTIONS and stored in FORMATS and FORMATS[stored].is_quantized:
            raise BadValue(
                f"`--execution {self.execution}` keeps weights in fp32, not in {stored}: use `--execution eager`"
            )
        if self.offload not in PIPELINE_OFFLOADS:
            raise UnknownName("offload of a pipeline", self.offload, PIPELINE_OFFLOADS)
        if self.split.sequence_devices > 1 and not self.pipeline.denoiser.splits_sequence:
            raise BadValue(
                f"--ulysses and --ring are for transformers, and the denoiser of {self.pipeline.name} is a U-Net, "
                "whose convolutions xDiT does not split: use --guidance-parallel"
            )

    @property
    def products(self) -> str | None:
        """Precision of the denoiser's products with quantized weights and activations; None for none."""
        return self.precision if self.precision in NARROW_PRECISIONS else None

    @property
    def tensor_precision(self) -> str:
        """Precision of tensors between products, and of the parts beside the denoiser."""
        return self.precision if self.products is None else self.wide_precision

    def workload(self, runs: PartRuns) -> Workload:
        """Return the workload of one run of a part."""
        network, precision, weights, products = runs.network, self.tensor_precision, None, None
        if runs.part.role == "decoder":
            precision = self.pipeline.decoder_precisions.get(precision, precision)
        if runs.part.role == "denoiser":
            weights, products = self.weights or self.products, self.products
        layers = network.layers
        if self.attention == EAGER:
            layers = cached_for_layers(decompose_attention, layers)
        execution = EXECUTIONS.get(self.execution, self.execution)
        stored = FORMATS.get(weights or "")
        if stored is not None and stored.is_quantized and execution != ENGINE:
            of_linear_layers = None
            if stored.mixture is None:  # the mixtures of GGUF files say themselves which layers they are for
                of_linear_layers, weights = linear_weights(stored.name), None
            if products is None:
                number_bytes = element_bytes(precision)
                layers = cached_for_layers(dequantize_weights, layers, of_linear_layers or stored, False, number_bytes)
            network = network._replace(stored_weights=of_linear_layers)
        return Workload(
            network._replace(layers=layers),
            precision=precision,
            batch_size=runs.samples,
            execution=execution,
            weights=weights,
            attention=self.attention,
            products=products,
        )


@cache
def linear_weights(name: str) -> StoredWeights:
    """Return the storage of a denoiser whose linear layers have a format, as torchao and bitsandbytes convert them."""
    return StoredWeights("linear layers", FORMATS[name], has_narrow_activations=FORMATS[name].precision is not None)
