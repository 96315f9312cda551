"""`PipelineRun`: a pipeline for pictures or videos, what is asked of it, and how it runs."""

from __future__ import annotations

from functools import cache

import msgspec

from ..architectures.checkpoint import StoredWeights
from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import PartRuns, Sampling
from ..counting.attention import decompose_attention
from ..counting.work import ENGINE
from ..errors import BadValue, UnknownName
from ..formats import FORMATS, Format
from .activity import NARROW_PRECISIONS
from .attention import EAGER
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

    def __post_init__(self) -> None:
        if self.offload not in PIPELINE_OFFLOADS:
            raise UnknownName("offload of a pipeline", self.offload, PIPELINE_OFFLOADS)
        if self.split.sequence_devices > 1 and not self.pipeline.denoiser.splits_sequence:
            raise BadValue(
                f"--ulysses and --ring are for transformers, and the denoiser of {self.pipeline.name} is a U-Net, "
                "whose convolutions xDiT does not split: use --guidance-parallel, or `scale` with a larger --batch-size"
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
        if self.attention == EAGER:
            network = network._replace(layers=cached_for_layers(decompose_attention, network.layers))
        execution = EXECUTIONS.get(self.execution, self.execution)
        if execution != ENGINE and weights in FORMATS and _is_of_linear_layers(FORMATS[weights]):
            # The libraries that quantize PyTorch's modules convert linear layers alone.
            network = network._replace(stored_weights=linear_weights(weights))
            weights = None
        return Workload(
            network,
            precision=precision,
            batch_size=runs.samples,
            execution=execution,
            weights=weights,
            attention=self.attention,
            products=products,
        )


def _is_of_linear_layers(stored: Format) -> bool:
    """Return whether a format is one of linear layers alone; the mixtures of GGUF files say it themselves."""
    return stored.is_quantized and stored.mixture is None


@cache
def linear_weights(name: str) -> StoredWeights:
    """Return the storage of a denoiser whose linear layers have a format, as torchao and bitsandbytes convert them."""
    return StoredWeights("linear layers", FORMATS[name], has_narrow_activations=FORMATS[name].precision is not None)
