"""The prediction of a pipeline: its parts in turn, each as often as it runs; and the memory in which it fits.

A pipeline computes its parts one after another on one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..architectures.pipelines.sampling import PartRuns, part_runs
from ..errors import BadValue
from ..formats import FORMATS
from ..machines import Device, Machine
from .attention import EAGER, has_fused_attention
from .calibrated import CalibratedModel
from .causes import MovedCauses
from .diffusion import DiffusionConstants, PipelineModel, diffusion_constants, is_like_measured, pipeline_model
from .models import TimeModel
from .notes import range_notes
from .offload import host_bandwidth_bytes_per_s
from .pipeline_prediction import PartPrediction, PipelineMemory, PipelinePrediction
from .pipeline_run import PipelineRun
from .predicting import predict
from .sequence_parallel import SequenceSplit, split_time_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def predict_pipeline(
    run: PipelineRun,
    machine: Machine,
    model_in: Callable[..., TimeModel],
    constants: DiffusionConstants | None = None,
) -> PipelinePrediction:
    """Predict the time of a batch of pictures or videos.

    `model_in` goes from a precision, and `products` as of `Workload`, to the time model of the parts in it. The
    constants are the shipped ones by default. Raise BadValue if parameters are offloaded from a device without a link
    to its host.
    """
    parts = [
        _predict_part(run, runs, machine, model_in, constants or diffusion_constants())
        for runs in part_runs(run.pipeline, run.sampling)
    ]
    if run.offload != "none":
        parts = _with_transfers(parts, machine.device, run.offload)
    memory = _pipeline_memory(parts, run.sampling.images, machine.device, run.offload)
    notes = _notes(run, parts, machine.device)
    model = next(part.prediction.model for part in parts if part.part.role == "denoiser")
    prediction = PipelinePrediction(run, machine, model, tuple(parts), memory, notes)
    ranges = range_notes(prediction, machine.device, workloads=[part.prediction.workload for part in parts])
    return msgspec.structs.replace(prediction, notes=(*notes, *ranges))


def _notes(run: PipelineRun, parts: Sequence[PartPrediction], device: Device) -> tuple[str, ...]:
    """Return the caveats of the answer."""
    pipeline, sampling = run.pipeline, run.sampling
    denoiser = next(part for part in parts if part.part.role == "denoiser")
    notes = denoiser.prediction.notes
    if run.products is not None:
        notes += (
            f"the denoiser's products with weights are in {run.products}; attention, everything between products and "
            f"the other parts are in {run.wide_precision}",
        )
    elif run.weights in FORMATS and FORMATS[run.weights].is_quantized:
        narrow = FORMATS[run.weights].precision
        has_units = narrow is not None and any(peak.precision == narrow for peak in device.peaks)
        faster = f"; `--precision {run.weights}` computes in it" if has_units else ""
        notes += (
            f"the denoiser's weights in {run.weights} are converted to {run.precision} before each product, which "
            f"saves memory but no time{faster}",
        )
    if run.attention == EAGER and not has_fused_attention(device):
        notes += (
            f"PyTorch computes attention on {device.name} as separate products, which write the scores to memory: "
            "`--attention sdpa` is with its experimental kernels",
        )
    if pipeline.resizes and (sampling.width, sampling.height) != pipeline.size:
        width, height = pipeline.size
        notes += (
            f"diffusers computes {pipeline.name} at one of its sizes of about {width}x{height} pixels and resizes the "
            f"pictures, unless use_resolution_binning=False: this is the time of {sampling.width}x{sampling.height}",
        )
    if run.split.sequence_devices > 1 and denoiser.run_s > denoiser.prediction.time_s:
        notes += (
            f"a step takes longer on {run.split.sequence_devices} devices that share the sequence than on one, because "
            "of the exchanges and of the host's work for each: divide the pictures among devices instead",
        )
    return notes


def _predict_part(
    run: PipelineRun,
    runs: PartRuns,
    machine: Machine,
    model_in: Callable[..., TimeModel],
    constants: DiffusionConstants,
) -> PartPrediction:
    """Predict the runs of a part."""
    is_denoiser = runs.part.role == "denoiser"
    if is_denoiser and run.split.guidance > 1:
        runs = _one_of_two_predictions(run, runs)
    workload = run.workload(runs)
    model = model_in(workload.precision, products=workload.products)
    if is_denoiser:
        has_narrow_products = workload.products is not None
        model = pipeline_model(model, machine.device, constants, is_like_measured(workload), has_narrow_products)
    if run.moved is not None:
        model = _moved_model(model, run.moved, run.label)
    return _split_part(PartPrediction(runs.part, predict(workload, machine, model), runs.runs), run.split, constants)


def _moved_model(model: TimeModel, moved: MovedCauses, label: str) -> TimeModel:
    """Return the model of a part with the factors of its causes; only the calibrated model has any."""
    if not isinstance(model, CalibratedModel):
        return model
    model = model.with_causes(moved) if isinstance(model, PipelineModel) else moved.move(model)
    return msgspec.structs.replace(model, label=f"{model.label}; {label}")


def _split_part(part: PartPrediction, split: SequenceSplit, constants: DiffusionConstants) -> PartPrediction:
    """Return the prediction of a part on several devices: they share the denoiser's sequence."""
    if part.part.role != "denoiser" or split.devices == 1:
        return part
    split_s = split_time_s(part.prediction, split, constants.sequence)
    return part._replace(split_s=split_s, devices=split.sequence_devices, groups=split.guidance)


def on_several_devices(prediction: PipelinePrediction, split: SequenceSplit) -> PipelinePrediction:
    """Return the prediction of the same batch with another split of the sequence, without predicting its parts again.

    Raise BadValue if the predictions of guidance are divided among another number of groups, of which each computes
    another batch; or the denoiser, its heads or its tokens cannot be divided.
    """
    if split.guidance != prediction.split.guidance:
        raise BadValue("groups of devices for guidance compute another batch: predict the pipeline with them instead")
    run = msgspec.structs.replace(prediction.run, split=split)
    parts = tuple(_split_part(part, split, diffusion_constants()) for part in prediction.parts)
    return msgspec.structs.replace(prediction, run=run, parts=parts)


def _one_of_two_predictions(run: PipelineRun, runs: PartRuns) -> PartRuns:
    """Return the denoiser's runs with one of the two predictions of classifier-free guidance.

    Raise BadValue if there is no second prediction.
    """
    if run.sampling.guidance <= 1 or run.pipeline.guided == "none":
        raise BadValue(
            f"--guidance-parallel needs classifier-free guidance, which {run.pipeline.name} does not compute here"
        )
    if run.pipeline.guided == "batch":
        return runs._replace(samples=runs.samples // 2)
    return runs._replace(runs=runs.runs // 2)


def _with_transfers(parts: Sequence[PartPrediction], device: Device, offload: str) -> list[PartPrediction]:
    """Return the parts with the time in which their parameters are copied: once, or for every run."""
    bandwidth = host_bandwidth_bytes_per_s(device)
    return [
        part._replace(transfer_s=part.parameters_bytes * (part.runs if offload == "sequential" else 1) / bandwidth)
        for part in parts
    ]


def _pipeline_memory(parts: Sequence[PartPrediction], images: int, device: Device, offload: str) -> PipelineMemory:
    """Return the memory of a pipeline: parameters that are on the device at once, and the largest part's tensors."""
    from .memory import memory_coefficients, model_bytes, usable_bytes

    parameters = np.array([part.parameters_bytes for part in parts])
    loaded = np.array([model_bytes(part.prediction.workload)[0] for part in parts])
    largest_layer = np.array(
        [
            max(layer.parameters for layer in part.prediction.layers) / (part.prediction.parameters or 1)
            for part in parts
        ]
    )
    resident = {
        "none": np.full(len(parts), parameters.sum()),
        "model": loaded,
        "sequential": (loaded * largest_layer).astype(int),
    }
    tensors = np.array([memory_coefficients(part.prediction.workload) for part in parts])
    fixed = tensors[:, 0] - loaded
    per_image = tensors[:, 1] * np.array([part.prediction.batch_size / images for part in parts])
    by_offload = {name: int((amount + fixed + per_image * images).max()) for name, amount in resident.items()}
    usable = usable_bytes(device)
    largest = int(((usable - resident[offload] - fixed) / per_image).min())
    return PipelineMemory(
        by_offload[offload],
        by_offload,
        int(parameters.sum()),
        device.reported_memory_bytes,
        usable,
        largest if largest >= 1 else None,
    )
