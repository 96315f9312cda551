"""`diffusion`: pictures and videos on one or several devices, and training of the denoiser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ..arguments import quote_value
from ..errors import BadValue, UnknownName
from ..files import file_exists
from .compare import compare, document_of, find_asked_device, half_precision
from .kind import QuestionKind, make_function
from .names import ListedNames, Names
from .option import Several, option, options_of
from .records import (
    COST_GROUP,
    DEVICE_GROUP,
    ENGINE_GROUP,
    FORMATS,
    INFERENCE_PRECISIONS,
    NETWORK_GROUP,
    PARALLEL_GROUP,
    AdapterOptions,
    AttentionOptions,
    DeviceOptions,
    NetworkAsked,
    PriceOptions,
    SiteOptions,
    TimeModelOptions,
    UpdateOptions,
)
from .training_options import training_options
from .values import INTEGER, NUMBER, PICTURE_SIZE, Quantity

if TYPE_CHECKING:
    from ..api.question import Question
    from ..distributed.pictures import PictureScaling
    from ..distributed.table import ScaleTable
    from ..sweeps.comparison import Comparison
    from ..timing import Prediction
    from ..timing.pipeline_prediction import PipelinePrediction

PHASES = ("inference", "training", "forward")


@dataclass(frozen=True)
class Diffusion(
    PriceOptions,
    SiteOptions,
    TimeModelOptions,
    AttentionOptions,
    AdapterOptions,
    UpdateOptions,
    DeviceOptions,
    NetworkAsked,
):
    """Predict how long a pipeline takes for pictures or videos, part by part, and what memory it needs.

    The network is a shipped pipeline, such as flux.1-dev or wan-2.1-14b, or the folder of one. Several values of an
    option are a comparison; with several numbers of devices the sequence of the denoiser is divided.
    """

    precision: Several[str | None] = option(
        group=NETWORK_GROUP, is_common=True, type=INFERENCE_PRECISIONS, metavar="NAME",
        spellings=("--precision", "--dtype"),
        help="Precision of the arithmetic. [default: bf16, or fp16 on a device without it]",
    )  # fmt: skip
    weights: Several[str | None] = option(
        group=NETWORK_GROUP, is_common=True, type=FORMATS, metavar="FORMAT", spellings=("--weights", "--quantization"),
        help="Format in which matrices of the denoiser are stored, such as fp8 or nvfp4; in training those that are "
        "frozen. [default: the precision]",
    )  # fmt: skip
    image_size: Several[int | str | None] = option(
        group=NETWORK_GROUP, is_common=True, type=PICTURE_SIZE, metavar="PIXELS",
        help="Size of the pictures: 1024 or width x height as in 1024x768; in Python also the tuple (1024, 768), while "
        "a list is several sizes. [default: that of the pipeline]",
    )  # fmt: skip
    steps: Several[int | None] = option(
        group=NETWORK_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--steps", "--num-inference-steps"), help="Denoising steps. [default: those of the pipeline]",
    )  # fmt: skip
    guidance: float | None = option(
        group=NETWORK_GROUP, is_common=True, type=NUMBER, metavar="SCALE",
        spellings=("--guidance", "--guidance-scale"),
        help="Scale of classifier-free guidance, none at 1 and below. [default: the pipeline's]",
    )  # fmt: skip
    frames: Several[int | None] = option(
        group=NETWORK_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--frames", "--num-frames"), help="Frames of each video. [default: the pipeline's]",
    )  # fmt: skip
    batch_size: Several[int] = option(
        1, group=NETWORK_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--batch-size", "--num-images-per-prompt", "-b"), help="Pictures or videos in one batch.",
    )  # fmt: skip
    samples: float | str | None = option(
        group=COST_GROUP, is_common=True, type=Quantity(""), metavar="COUNT",
        help="Pictures or videos in all, 10k, to predict hours, cost and energy; in training samples of an epoch.",
    )  # fmt: skip
    phase: str = option(
        "inference", group=NETWORK_GROUP, is_common=True, type=ListedNames("phase", PHASES), metavar="NAME",
        help="inference; training is a step of the denoiser, forward the forward pass of it.",
    )  # fmt: skip
    offload: Any = option(  # one or several names
        group=DEVICE_GROUP, is_common=True, metavar="PLACE",
        type=Names("offload", ".timing.training_options:OFFLOADS", ".timing.pipeline_run:PIPELINE_OFFLOADS"),
        help="Keep the parameters of each part (model) or layer (sequential) in the memory of the host until it runs; "
        "in training keep gradients and optimizer state there (cpu), or on NVMe drives (nvme). [default: none]",
    )  # fmt: skip
    execution: Several[str | None] = option(
        group=ENGINE_GROUP, is_common=True, metavar="NAME",
        type=Names("execution", ".timing.pipeline_run:EXECUTIONS", ".counting.fusion:EXECUTIONS"),
        help="Software: eager, compiled (torch.compile) or tensorrt. [default: eager]",
    )  # fmt: skip
    tiled: bool = option(
        False, group=ENGINE_GROUP, is_common=True, help="Decode in tiles that overlap, in less memory."
    )
    step_caching: float | None = option(
        group=ENGINE_GROUP, is_common=True, type=NUMBER, metavar="FACTOR",
        help="Steps per step that the denoiser computes, with caching of its results. [default: 1]",
    )  # fmt: skip
    workers: int | str | list[int] | None = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="RANGE",
        help="Number of devices: 8, 1,2,4 or 1:8:x2. [default: 1, or those of --ulysses, --ring and "
        "--guidance-parallel]",
    )  # fmt: skip
    ulysses: int | None = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Devices that split the sequence of the denoiser, exchanging tokens for heads. [default: 1]",
    )  # fmt: skip
    ring: int | None = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Groups of devices that split the sequence of the denoiser around a ring. [default: 1]",
    )  # fmt: skip
    guidance_parallel: bool = option(
        False, group=PARALLEL_GROUP, is_common=True,
        help="Compute the two predictions of the guidance on two groups of devices.",
    )  # fmt: skip


Answer: TypeAlias = "PipelinePrediction | Prediction | PictureScaling | ScaleTable"


def answer(question: Diffusion) -> Answer | Comparison:
    """Return the prediction of pictures or of a training step of the denoiser, or several answers side by side."""
    from ..timing.pipeline_prediction import PipelinePrediction

    for name in question.several().get("network", [question.network]):
        _check_pipeline(name)
    result = compare(question, _answer, _ORDER, together=("workers",))
    return _with_remedy(question, result) if isinstance(result, PipelinePrediction) else result


def _with_remedy(question: Diffusion, prediction: PipelinePrediction) -> PipelinePrediction:
    """Return the prediction with the fastest placement and decoding with which the pipeline fits, if it does not."""
    memory = prediction.memory
    if memory.fits:
        return prediction
    from ..timing.memory import MemoryRemedy

    alternatives: list[tuple[dict[str, Any], PipelinePrediction]] = [({}, prediction)]
    if not question.tiled and any(part.tile for part in prediction.pipeline.decoders):
        tiled: Any = _answer(replace(question, tiled=True))
        alternatives.append(({"tiled": True}, tiled))
    for offload in memory.by_offload:  # the fastest first
        for decoding, alternative in alternatives:
            total_bytes = alternative.memory.by_offload[offload]
            if total_bytes > memory.usable_bytes:
                continue
            changes = decoding if offload == prediction.run.offload else decoding | {"offload": offload}
            changed: Any = _answer(replace(question, **changes))
            options = [f"--{name}" if value is True else f"--{name} {value}" for name, value in changes.items()]
            ratio = changed.time_s / prediction.time_s
            largest = changed.memory.largest_batch
            remedy = MemoryRemedy(
                "placement and decoding", total_bytes, True, largest, ratio, " ".join(options), largest
            )
            return msgspec.structs.replace(prediction, memory=memory._replace(remedies=(remedy,)))
    return prediction


def _answer(question: Diffusion) -> Answer:
    """Return the prediction of pictures or of a training step of the denoiser."""
    if question.precision is None:
        question = replace(question, precision=half_precision(question, question.gpu))
    if question.phase == "inference":
        _check_no_training(question)
    elif question.attention is not None:
        raise BadValue("`--attention` is not for a training step of a denoiser: leave it out")
    elif others := {"attention", "loss"}.intersection(question.training_settings or ()):
        raise BadValue(f"`--training-settings {min(others)}` is not for a training step of a denoiser: leave it out")
    if question.samples is not None and question.phase == "forward":
        raise BadValue("`--samples` is for pictures and for training: leave `--phase forward` out")
    return _answer_one(question) if question.workers is None else _answer_for_devices(question)


_ORDER = (
    "network", "gpu", "precision", "image_size", "frames", "steps", "batch_size", "execution", "offload"
)  # fmt: skip
"""Options that are compared, the slowest first."""

_OF_TRAINING = tuple(
    name
    for record in (UpdateOptions, AdapterOptions)
    for name in options_of(record)
    if name not in ("offload", "weights")
)
_OF_PICTURES = ("steps", "guidance", "frames", "ulysses", "ring", "guidance_parallel", "tiled", "step_caching")


def _check_pipeline(network: Any) -> None:
    """Check that a network is a pipeline."""
    from ..architectures.catalog import network_names
    from ..architectures.pipelines.records import pipelines, pipelines_by_spelling, spelling_of
    from ..architectures.pipelines.sampling import find_pipeline

    if network is None:
        raise BadValue("`diffusion` needs a pipeline such as flux.1-dev or wan-2.1-1.3b")
    if not isinstance(network, str) or find_pipeline(network) is None:
        spelling = spelling_of(network) if isinstance(network, str) else ""
        named = {record.name for known, record in pipelines_by_spelling().items() if known.startswith(spelling)}
        if spelling and named:
            raise UnknownName("pipeline", network, named)
        if isinstance(network, str) and network not in network_names():
            unknown = UnknownName("pipeline", network, pipelines(), lists_all=True)
            if unknown.near or (re.fullmatch(r"[\w.-]+", network) and not file_exists(network, Path.exists)):
                raise unknown
        shown = network if isinstance(network, str) and network else quote_value(network)
        raise BadValue(
            f"`diffusion` needs a pipeline such as flux.1-dev or wan-2.1-1.3b; {shown} is not one: use `predict`, "
            "`train` or `local`"
        )


def _check_no_training(question: Diffusion) -> None:
    """Check that no option of training is given for pictures."""
    from ..timing.pipeline_run import PIPELINE_OFFLOADS

    of_training = [name for name in question.given() if name in _OF_TRAINING]
    if of_training:
        raise BadValue(f"`--{of_training[0].replace('_', '-')}` is for a training step: give `--phase training`")
    if question.offload is not None and question.offload not in PIPELINE_OFFLOADS:
        raise BadValue(
            f"`--offload {question.offload}` is for a training step: give `--phase training`, or `--offload model`"
        )


def _question(options: Any, gpu: Any) -> Question:
    """Return what is asked of the pipeline on a device."""
    from ..api.question import PictureOptions, Question
    from ..timing.budget import Amount
    from ..timing.pipeline_run import PIPELINE_OFFLOADS

    offload = None if options.offload == "none" else options.offload
    is_of_pictures = offload in PIPELINE_OFFLOADS
    pictures = PictureOptions(
        offload=offload if is_of_pictures else None,
        **{name: getattr(options, name) for name in _OF_PICTURES},
    )
    return Question.from_options(
        options,
        options.network,
        gpu=gpu,
        pictures=pictures,
        amount=None if options.samples is None else Amount(samples=options.samples),
        training=training_options(
            options,
            None if is_of_pictures else offload,
            is_in_blocks=False,
            optimizer="adamw" if options.phase == "training" else "sgd",
        ),
    )


def _answer_one(question: Any) -> Prediction | PipelinePrediction:
    """Return the prediction on one device, or on the devices of a split."""
    from ..api.prediction import predict_pass, predict_pictures

    pipeline_question = _question(question, find_asked_device(question))
    if question.phase == "inference":
        return predict_pictures(pipeline_question)
    if question.phase == "training":
        from .train import remedy_answers

        pipeline_question = msgspec.structs.replace(pipeline_question, remedy_answers=remedy_answers(question))
    return predict_pass(pipeline_question)


def _answer_for_devices(question: Any) -> PictureScaling | ScaleTable:
    """Return the predictions on several numbers of devices."""
    from ..api.scaling import predict_cluster, scale_pictures
    from ..distributed.request import ClusterRequest, link_to_give
    from ..timing.budget import Amount

    if question.phase == "inference":
        for name in ("site", "price"):
            if name in question.given():
                raise BadValue(f"`--{name}` is for one number of devices: leave `--workers` out")
        return scale_pictures(_question(question, question.gpu), question.workers)
    if question.phase == "forward":
        raise BadValue("`--phase forward` is for one device: leave `--workers` out")
    link = link_to_give(find_asked_device(question))
    if link is not None:
        raise BadValue(
            f"several workers need a link, and no usual computer of {question.gpu} is on record: give it to "
            f"`train`, as `train {question.network} --gpu {question.gpu} --workers 8 --link {link}`"
        )
    request = ClusterRequest(
        question.workers,
        batch_size=question.batch_size,
        amount=Amount(samples=question.samples),
        price=question.price_usd_per_h,
        price_of=question.price_of,
        facility=question.facility,
    )
    return predict_cluster(_question(question, question.gpu), request)


def _document(result: Any, shown: Mapping[str, Any]) -> Any:
    """Return the document of a result, with the options of the output."""
    from ..timing.pipeline_prediction import PipelinePrediction

    if isinstance(result, PipelinePrediction):
        return result.document(memory=shown.get("memory", False))
    return document_of(result, shown, memory=True)


diffusion = make_function("diffusion", Diffusion, answer)

DIFFUSION = QuestionKind(
    name="diffusion",
    record=Diffusion,
    answer=answer,
    summary="Predict pictures and videos: time and memory of each part of a pipeline.",
    examples=(
        "flux.1-dev --gpu rtx4090 --steps 28 --weights fp8 --offload model",
        "sdxl,flux.1-dev --gpu rtx4090,l40s --image-size 512,1024",
        "wan-2.1-14b --gpu h100-sxm --workers 1,2,4,8",
        "flux.1-dev --gpu h100-sxm --phase training --lora 16 --mixed-precision",
    ),
    document=_document,
    shown=("memory", "top"),
    default_chart="devices",
    order=_ORDER,
)
