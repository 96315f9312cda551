"""`PipelineRun`: a pipeline for pictures or videos, what is asked of it, and how it runs."""

from __future__ import annotations

import msgspec

from ..architectures.pipelines.records import Part, Pipeline
from ..architectures.pipelines.sampling import PartRuns, Sampling
from ..counting.attention import decompose_attention
from ..counting.work import ENGINE
from ..errors import BadValue, UnknownName
from .attention import EAGER
from .sequence_parallel import ONE_DEVICE, SequenceSplit
from .workload import Workload, cached_for_layers

PIPELINE_OFFLOADS = ("none", "model", "sequential")
"""Where the parameters of a pipeline are: all parts on the device; each part only while it runs, otherwise in the
memory of the host; or each layer only while it runs."""

NARROW = ("fp8", "int8", "fp4")
"""Precisions in which only the denoiser computes; text encoders and decoder keep 16 bits."""

EXECUTIONS = {"tensorrt": ENGINE}
"""Further names of executions of pipelines."""


class PipelineRun(msgspec.Struct, frozen=True):
    """A pipeline, what is asked of it, and how it runs."""

    pipeline: Pipeline
    sampling: Sampling  # steps, size, frames, guidance and number of pictures
    # Precision of the denoiser. In fp8, int8 and fp4 the other parts have 16 bits.
    precision: str
    # As for `Workload`.
    execution: str = "eager"
    attention: str | None = None
    weights: str | None = None  # format in which the denoiser's matrices are stored
    offload: str = PIPELINE_OFFLOADS[0]  # placement of parameters, one of `PIPELINE_OFFLOADS`
    split: SequenceSplit = ONE_DEVICE  # devices that share the denoiser's sequence; the other parts run on each

    def __post_init__(self) -> None:
        if self.offload not in PIPELINE_OFFLOADS:
            raise UnknownName("offload of a pipeline", self.offload, PIPELINE_OFFLOADS)
        if self.split.sequence_devices > 1 and not self.pipeline.denoiser.splits_sequence:
            raise BadValue(
                f"--ulysses and --ring are for transformers, and the denoiser of {self.pipeline.name} is a U-Net, "
                "whose convolutions xDiT does not split: use --guidance-parallel, or `scale` with a larger --batch-size"
            )

    def precision_of(self, part: Part) -> str:
        """Return the precision of a part."""
        is_narrow = self.precision in NARROW
        if part.role == "decoder":
            return self.pipeline.decoder_precisions.get(self.precision, "bf16" if is_narrow else self.precision)
        return "bf16" if is_narrow and part.role != "denoiser" else self.precision

    def workload(self, runs: PartRuns) -> Workload:
        """Return the workload of one run of a part."""
        layers = runs.network.layers
        if self.attention == EAGER:
            layers = cached_for_layers(decompose_attention, layers)
        return Workload(
            runs.network._replace(layers=layers),
            precision=self.precision_of(runs.part),
            batch_size=runs.samples,
            execution=EXECUTIONS.get(self.execution, self.execution),
            weights=self.weights if runs.part.role == "denoiser" else None,
            attention=self.attention,
        )
