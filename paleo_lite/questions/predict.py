"""`predict`: one pass of a network on one device, or on a group of devices that share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from ..counting import GENERATION_PHASES
from ..counting.work import PHASES_WITH_GRADIENTS
from ..errors import BadValue, DoesNotFit, PaleoError
from .compare import (
    check_network_options,
    check_no_pipeline,
    check_single,
    choose_chart,
    compare,
    default_optimizer,
    document_of,
    find_asked_device,
    published_weights,
    with_usual_precision,
)
from .completion import LINK, PLATFORM
from .kind import QuestionKind, make_function
from .names import Names
from .option import Several, option
from .records import (
    DEVICE_GROUP,
    ENGINE_GROUP,
    NETWORK_GROUP,
    PARALLEL_GROUP,
    TRAINING_PRECISIONS,
    AttentionOptions,
    DeviceOptions,
    ExpertOptions,
    NetworkAsked,
    PppOptions,
    PriceOptions,
    SiteOptions,
    SizeOptions,
    WeightOptions,
)
from .values import BATCH_SIZE, FIT, INTEGER, TOKENS

if TYPE_CHECKING:
    from ..api.question import Question as ResolvedQuestion
    from ..distributed.table import ScaleTable
    from ..sweeps.comparison import Comparison
    from ..timing import Prediction
    from ..timing.capacity import RemedyAnswers
    from ..timing.memory import MemoryFit, MemoryRemedy
    from ..timing.training_options import TrainingOptions

PHASES = Names("phase", ".counting:PHASES", ".counting:GENERATION_PHASES")
WITHOUT_UPDATE = PHASES_WITH_GRADIENTS - {"training"}
"""Phases with the gradients of a training step, but not its update; their remedies are those of a training step."""

EXECUTIONS = Names("execution", ".counting.fusion:EXECUTIONS")
ENGINES = Names("serving engine", ".engines.records:SERVERS")


@dataclass(frozen=True)
class Predict(
    PriceOptions,
    SiteOptions,
    ExpertOptions,
    AttentionOptions,
    WeightOptions,
    PppOptions,
    DeviceOptions,
    SizeOptions,
    NetworkAsked,
):
    """Predict how long one pass of a network takes on a device.

    The network is a shipped one (`paleo-lite networks list`), a file (a descriptor, a config.json of Hugging Face,
    ONNX, an exported program), timm:NAME, hf:FOLDER, or package.module:factory with --input, which is imported and
    called. Several values of any option, separated by commas, are a comparison.
    """

    precision: Several[str | None] = option(
        group=NETWORK_GROUP, is_common=True, type=TRAINING_PRECISIONS, metavar="NAME",
        spellings=("--precision", "--dtype"),
        help="Precision of the arithmetic. [default: fp32; of a language model, and in prefill and decode, bf16, or "
        "fp16 on a device without it]",
    )  # fmt: skip
    batch_size: Several[int | str] = option(
        1, group=NETWORK_GROUP, is_common=True, type=BATCH_SIZE, metavar="N|fit",
        spellings=("--batch-size", "-b"),
        help="Samples per pass; several as 1,8,32 or as a range 1:64:x2; fit is the largest batch that fits into the "
        "memory.",
    )  # fmt: skip
    phase: Several[str] = option(
        "inference", group=NETWORK_GROUP, is_common=True, type=PHASES, metavar="NAME",
        help="inference; training is forward, backward and update (`train` has its options), forward the forward pass "
        "of it; prefill and decode are the phases of text generation.",
    )  # fmt: skip
    context: int | None = option(
        group=NETWORK_GROUP, is_common=True, type=TOKENS, metavar="TOKENS", spellings=("--context", "-c"),
        help="Tokens in the KV cache, for the phase decode.",
    )  # fmt: skip
    flops: float | str | None = option(
        group=NETWORK_GROUP, metavar="COUNT",
        help="FLOPs per sample instead of a network, such as 30.97G; a multiply-accumulate counts as 2.",
    )  # fmt: skip
    macs: float | str | None = option(
        group=NETWORK_GROUP, metavar="COUNT",
        help="Multiply-accumulates per sample instead of a network, such as 15503M; each is 2 FLOPs.",
    )  # fmt: skip
    convention: str = option(
        "flops", group=NETWORK_GROUP, type=Names("convention", ".counting:CONVENTIONS"), metavar="NAME",
        help="Convention of the FLOP count.",
    )  # fmt: skip
    execution: str | None = option(
        group=ENGINE_GROUP, is_common=True, type=EXECUTIONS, metavar="NAME",
        help="Kernel fusion and casts: eager (none); autocast (casts for mixed precision); channels-last (images as "
        "NHWC); megatron (fused softmax and residuals, as Megatron-LM); compiled (fused pointwise chains); at "
        "inference folded (also batch norms folded into convolutions) and engine (fused as by an inference engine). "
        "[default: eager; engine at inference in int8; in prefill and decode the kernels of --engine, or engine where "
        "they are not known]",
    )  # fmt: skip
    engine: str | None = option(
        group=ENGINE_GROUP, is_common=True, type=ENGINES, metavar="NAME",
        help="In prefill and decode: engine whose kernels are timed, vllm, sglang, tensorrt-llm, ... [default: vllm]",
    )  # fmt: skip
    tensor: Several[int] = option(
        1, group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--tensor", "--tensor-parallel-size", "-tp"),
        help="In prefill and decode: devices that divide all matrices among themselves.",
    )  # fmt: skip
    platform: str | None = option(
        group=DEVICE_GROUP,
        type=PLATFORM,
        metavar="NAME|FILE",
        help="Computer of the --tensor devices, such as dgx-h100.",
    )
    link: str | None = option(
        group=DEVICE_GROUP, type=LINK, metavar="LINK", help="Link between the --tensor devices. [default: the fastest]"
    )
    memory: bool = option(False, group=NETWORK_GROUP, is_common=True, help="Show the peak memory by part.")


def answer(question: Predict) -> Prediction | ScaleTable | Comparison:
    """Return the prediction, a table over groups of devices, or several answers side by side."""
    return compare(question, _answer, _ORDER, together=("tensor",))


def _with_group_remedy(question: Predict, prediction: Prediction) -> Prediction:
    """Return the prediction of text generation with the smallest group of devices that holds what one does not.

    If no group holds the stated weights, it is the smallest one that holds narrower ones.
    """
    fit = prediction.memory
    if fit is None or fit.fits:
        return prediction
    from ..timing.capacity import NARROWER_FORMATS

    bytes_of_options = {remedy.options: remedy.total_bytes for remedy in fit.remedies if not remedy.fits}
    found = _group_remedy(question, prediction, fit, fit.total_bytes)
    if found is None:
        narrower = []
        for weights in NARROWER_FORMATS:
            options = f"--weights {weights}"
            if options in bytes_of_options:
                changed = replace(question, weights=weights)
                remedy = _group_remedy(changed, prediction, fit, bytes_of_options[options], options)
                narrower += [] if remedy is None else [remedy]
        found = min(narrower, key=lambda devices_and_remedy: devices_and_remedy[0], default=None)
    if found is None:
        return prediction
    remedies = sorted((*fit.remedies, found[1]), key=lambda remedy: not remedy.fits)
    return msgspec.structs.replace(prediction, memory=msgspec.structs.replace(fit, remedies=tuple(remedies)))


def _group_remedy(
    question: Predict, prediction: Prediction, fit: MemoryFit, total_bytes: int, options: str = ""
) -> tuple[int, MemoryRemedy] | None:
    """Return the smallest group of devices that holds a network of some bytes, with its size; None if none does.

    `options` are those in which the question differs from that of the prediction.
    """
    from ..serving.placement import doubled_degrees
    from ..timing.memory import MemoryRemedy

    for tensor in islice(doubled_degrees(1), 1, None):
        if total_bytes / tensor > fit.usable_bytes:
            continue
        try:
            row = _answer_for_groups(replace(question, tensor=tensor)).rows[0]
        except PaleoError:
            return None  # heads or a node that cannot be divided so
        if row.fits and row.memory_bytes is not None:
            name = f"{tensor} devices that divide all matrices"
            ratio = row.time_s / prediction.time_s
            stated = f"{options} --tensor {tensor}".strip()
            return tensor, MemoryRemedy(name, round(row.memory_bytes), True, None, ratio, stated)
    return None


def _answer(question: Predict) -> Prediction | ScaleTable:
    """Return the prediction, or a table over groups of devices."""
    if question.tensor != 1:
        return _answer_for_groups(question)
    _check_alone(question)
    prediction = _answer_one(question)
    return _with_group_remedy(question, prediction) if prediction.phase in GENERATION_PHASES else prediction


_ORDER = ("network", "gpu", "precision", "phase", "batch_size", "sequence_length", "weights")
"""Options that are compared, the slowest first."""


def _answer_one(question: Any) -> Prediction:
    """Return the prediction of one network on one device."""
    from ..api.prediction import predict_pass
    from ..api.question import Question

    check_no_pipeline(question.network, "predict")
    check_network_options(question, question.phase)
    asked = question
    question = with_usual_precision(_with_precision_of_engine(question))
    fits = question.batch_size == FIT
    names_remedies = question.phase not in WITHOUT_UPDATE
    passes = Question.from_options(
        question,
        question.network,
        names_remedies=names_remedies,
        remedy_answers=_remedy_answers(asked),
        gpu=find_asked_device(question),
        batch_size=1 if fits else question.batch_size,
        fit_batch=fits,
        training=_training(question),
        execution=_execution(question),
        policy=None if _is_known_to_models(question.engine) else question.engine,
    )
    if not names_remedies:
        return _with_remedies_of_training(asked, passes)
    prediction = predict_pass(passes)
    fit = prediction.memory
    if question.phase != "training" or fit is None or fit.fits:
        return prediction
    from .train import with_stated_attention

    fit = msgspec.structs.replace(fit, remedies=with_stated_attention(asked, fit.remedies))
    return msgspec.structs.replace(prediction, memory=fit)


def _with_remedies_of_training(question: Any, passes: ResolvedQuestion) -> Prediction:
    """Return the prediction of passes of a training step without its update, with the remedies that `train` names.

    These are options of `train`, whose step has the state of an optimizer: it gives their times, memory and fit.
    """
    from ..api.prediction import predict_pass
    from .train import remedies_in_training

    try:
        prediction = predict_pass(passes)
    except DoesNotFit as error:
        raise DoesNotFit(f"{error}; `train` with the same options names remedies of a training step") from None
    fit = prediction.memory
    if fit is None or fit.fits:
        return prediction
    remedies = remedies_in_training(question, less_than_bytes=fit.total_bytes)
    return msgspec.structs.replace(prediction, memory=msgspec.structs.replace(fit, remedies=remedies))


def _remedy_answers(question: Any) -> RemedyAnswers | None:
    """Return what is answered with other options, of a training step by `train`; None where remedies have no times."""
    if question.phase == "training":
        from .train import remedy_answers

        return remedy_answers(question)
    if question.network is None or question.phase in WITHOUT_UPDATE:
        return None
    from ..timing.capacity import RemedyAnswers

    return RemedyAnswers(lambda changes: float(_answer_one(replace(question, **changes)).time_s), lambda: None)


def _training(question: Any) -> TrainingOptions | None:
    """Return the options of a training step with the optimizer of `train`; None for plain SGD and other phases."""
    if question.phase != "training" or question.network is None or default_optimizer(question) == "sgd":
        return None
    from ..timing.training_options import TrainingOptions

    return TrainingOptions(default_optimizer(question))


def _with_precision_of_engine(question: Any) -> Any:
    """Return a question about text generation with the precision in which an engine computes with its weights."""
    asks_engine = question.phase in GENERATION_PHASES and question.execution is None
    if asks_engine:
        question = replace(question, weights=question.weights or published_weights(question))
    if not asks_engine or question.weights is None or question.gpu is None:
        return question
    from ..files import to_paths
    from ..machines import find_device
    from ..serving.products import check_products, choose_precision

    device = find_device(question.gpu, to_paths(question.hardware_files))
    if question.precision is None:
        return replace(question, precision=choose_precision(question.weights, device, question.unit))
    check_products(question.weights, question.precision, device)
    return question


def _is_known_to_models(engine: str | None) -> bool:
    """Return whether an engine is an execution of the time models, without its version."""
    if engine is None:
        return False
    from ..engines.records import KERNEL_ENGINES

    return engine in KERNEL_ENGINES


def _execution(question: Predict) -> str | None:
    """Return the execution that is asked for, which may be an engine."""
    if question.engine is None:
        return question.execution
    if question.execution is not None:
        raise BadValue("give only one of `--engine`, which launches kernels of its own, and `--execution`")
    if question.phase not in GENERATION_PHASES:
        raise BadValue(f"`--engine` is for `--phase prefill` and decode, not for {question.phase}: leave it out")
    return question.engine if _is_known_to_models(question.engine) else None


def _check_alone(question: Predict) -> None:
    """Check that no option of a group of devices is given for one device."""
    for name in ("expert_parallel", "attention_data_parallel", "expert_load", "link", "platform"):
        if name in question.given():
            raise BadValue(f"`--{name.replace('_', '-')}` is for several devices: give their number with `--tensor`")


def _answer_for_groups(question: Any) -> ScaleTable:
    """Return the predictions of text generation on groups of devices, a row per size."""
    from ..api.question import Question
    from ..api.scaling import PARALLEL_3D, predict_cluster
    from ..distributed.parallel_config import ParallelConfig
    from ..distributed.request import ClusterRequest
    from ..distributed.settings import Settings as SettingsOfDevices

    check_no_pipeline(question.network, "predict")
    if question.phase not in GENERATION_PHASES:
        raise BadValue(
            "`--tensor` is for `--phase prefill` and decode: `train --tensor` divides a training step, others run on "
            "one device"
        )
    others = [name for name in question.given() if name not in _TAKEN_BY_GROUPS]
    if question.batch_size == FIT:
        raise BadValue("`--batch-size fit` is for one device: give a number of sequences with `--tensor`")
    if others:
        raise BadValue(f"`--{others[0].replace('_', '-')}` is for one device: leave it out with `--tensor`")
    check_single(question, ("tensor",))
    question = with_usual_precision(_with_precision_of_engine(question))
    parallel = None
    if question.expert_parallel is not None or question.attention_data_parallel is not None:
        parallel = ParallelConfig(
            expert=question.expert_parallel or 1, attention_data=question.attention_data_parallel or 1
        )
    request = ClusterRequest(
        question.tensor,
        link=question.link,
        platform=question.platform,
        batch_size=question.batch_size,
        scaling="strong",
        strategy=PARALLEL_3D,
        facility=question.facility,
    )
    network_question = Question.from_options(
        question, question.network, policy=question.engine, batch_size=1, memory=False
    )
    return predict_cluster(network_question, request, SettingsOfDevices(parallel=parallel))


_TAKEN_BY_GROUPS = {
    "network", "gpu", "power_limit", "clock", "unit", "hardware_files", "precision", "phase", "sequence_length",
    "context", "batch_size", "time_model", "ppp", "calibration", "execution", "engine", "attention", "weights",
    "kv_cache", "tensor", "expert_parallel", "attention_data_parallel", "expert_load", "link", "platform", "memory",
    "site",
}  # fmt: skip


def _document(result: Any, shown: Mapping[str, Any]) -> Any:
    """Return the document of a result, with the options of the output."""
    return document_of(result, shown, memory=shown.get("memory", False))


predict = make_function("predict", Predict, answer)

PREDICT = QuestionKind(
    name="predict",
    record=Predict,
    answer=answer,
    summary="Predict how long one pass of a network takes on a device.",
    examples=(
        "vgg16 --gpu k80 --precision fp64",
        "resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64 --phase training",
        "llama-3-8b --gpu h100-sxm --precision bf16 --phase decode --batch-size 8 --context 4096",
        "llama-3-70b --gpu h100-sxm --precision bf16 --phase decode --tensor 2,4,8",
        "vgg16,resnet50 --gpu k80-die,k40m,p100-sxm2 --batch-size 1,8,32",
        "vgg16 --gpu k40m --ppp 0.62",
        "--macs 15503M --gpu k80",
    ),
    document=_document,
    shown=("explain", "top"),
    chart=partial(choose_chart, of_one="", of_table="scaling"),
    order=_ORDER,
)
