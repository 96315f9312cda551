"""`train`: a training or fine-tuning run of a network on any number of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import BadValue
from .compare import (
    FULL_PRECISION,
    check_network_options,
    check_no_pipeline,
    check_single,
    compare,
    document_of,
    find_asked_device,
    with_usual_precision,
)
from .kind import QuestionKind, make_function
from .option import Several, option, options_of
from .records import (
    ENGINE_GROUP,
    MODEL_GROUP,
    PARALLEL_GROUP,
    PPP_OVERLAP,
    TRAINING_GROUP,
    TRAINING_PRECISIONS,
    AdapterOptions,
    AmountOptions,
    AttentionOptions,
    ClusterOptions,
    DeviceOptions,
    NetworkAsked,
    ParallelOptions,
    PppOptions,
    PriceOptions,
    SiteOptions,
    SizeOptions,
    UpdateOptions,
    model_name,
)
from .values import INTEGER, Names

if TYPE_CHECKING:
    from ..distributed.parallel_config import ParallelConfig
    from ..distributed.settings import Settings
    from ..distributed.table import ScaleTable
    from ..sweeps.comparison import Comparison
    from ..timing import Prediction
    from ..timing.workload import TrainingOptions

SAMPLES_PER_DEVICE = 32
"""Samples per device if no batch size is given, except for networks that read tokens: those get one sequence."""


@dataclass(frozen=True)
class Train(
    PriceOptions, SiteOptions, PppOptions, ParallelOptions, ClusterOptions, AttentionOptions, AmountOptions,
    AdapterOptions, UpdateOptions, DeviceOptions, SizeOptions, NetworkAsked,
):  # fmt: skip
    """Predict training or fine-tuning of a network: time and memory of a step, division over devices, hours and cost.

    Several values of any option, separated by commas, are a comparison. Several numbers of devices are a table with
    speed-ups.
    """

    precision: Several[str] | None = option(
        group=TRAINING_GROUP, is_common=True, type=TRAINING_PRECISIONS, metavar="NAME",
        spellings=("--precision", "--dtype"),
        help="Precision of the arithmetic; fp8, mxfp8 and nvfp4 are recipes of mixed precision. [default: fp32; of a "
        "language model bf16, or fp16 on a device without it]",
    )  # fmt: skip
    batch_size: Several[int] | None = option(
        group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--batch-size", "--per-device-train-batch-size", "-b"),
        help="Samples per device and step. [default: 32; of a language model 1 sequence]",
    )  # fmt: skip
    global_batch_size: int | None = option(
        group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Samples per step of all devices, instead of --batch-size: strong scaling.",
    )  # fmt: skip
    fit_batch: bool = option(
        False, group=TRAINING_GROUP, is_common=True,
        help="Use the largest batch size that fits into the memory of one device.",
    )  # fmt: skip
    execution: str | None = option(
        group=ENGINE_GROUP, is_common=True, type=Names("execution", ".counting.fusion:EXECUTIONS"), metavar="NAME",
        help="Software stack: eager (PyTorch), compiled (torch.compile), megatron (fused kernels of Megatron-LM), "
        "autocast (casts for mixed precision), channels-last. [default: eager; megatron with an option of networks in "
        "blocks]",
    )  # fmt: skip
    advise: str | None = option(
        group=PARALLEL_GROUP, is_common=True, is_single=True, type=Names("ranking", ".distributed.advise:RANKINGS"),
        metavar="time|joules",
        help="Rank all strategies and collectives for one number of devices, by the time of a step or the joules of a "
        "sample.",
    )  # fmt: skip
    measured: tuple[str, ...] = option(
        (), group=MODEL_GROUP, is_repeatable=True, metavar="TEXT",
        help="Your own measurement, '16 workers: 5,900 samples/s' or '16 workers: 350 ms'; may be given several times.",
    )  # fmt: skip
    compat: str | None = option(
        group=MODEL_GROUP, is_single=True, type=Names("replica", ".paleo:REPLICAS"), metavar="paleo|paleo-last",
        help="Reproduce the released PALEO, its first or last revision, including its defects.",
    )  # fmt: skip


def answer(question: Train) -> Prediction | ScaleTable | Comparison:
    """Return the prediction on one device, a table over numbers of devices, or several answers side by side."""
    for network in question.several().get("network", [question.network]):
        check_no_pipeline(network, "train")
    if question.advise is not None:
        check_single(question, ("workers",))
    return compare(question, _answer, _ORDER, together=("workers",))


def _answer(question: Train) -> Prediction | ScaleTable:
    """Return the prediction on one device, or a table over numbers of devices."""
    if question.network is None:
        raise BadValue("`train` needs a network, such as llama-3-8b or resnet50")
    if question.batch_size is not None and question.global_batch_size is not None:
        raise BadValue("give only one of `--batch-size`, samples per device, and `--global-batch-size`, of all devices")
    return _answer_for_devices(question) if _asks_for_devices(question) else _answer_one(question)


_ORDER = ("network", "gpu", "precision", "batch_size", "sequence_length")
"""Options that are compared, the slowest first."""

_OF_SEVERAL_DEVICES = frozenset(
    (*options_of(ClusterOptions), *options_of(ParallelOptions), "global_batch_size", "advise", "measured", "compat")
)


def _asks_for_devices(question: Train) -> bool:
    """Return whether an option is given that speaks of several devices, or of how they divide the work."""
    return not _OF_SEVERAL_DEVICES.isdisjoint(question.given())


def _answer_one(question: Any) -> Prediction:
    """Return the prediction of a training step on one device."""
    from ..api.prediction import answer as predict_question
    from ..api.question import Question
    from ..timing import Prediction
    from ..timing.budget import Amount

    check_network_options(question, "training")
    question = with_usual_precision(question)
    amount = None
    if any(getattr(question, name) is not None for name in options_of(AmountOptions)):
        amount = Amount(
            None, question.samples, question.tokens, question.epochs, question.packing is not None, question.packing
        )
    batch_size = question.batch_size
    if question.fit_batch:
        if batch_size is not None:
            raise BadValue("`--fit-batch` chooses the batch size: leave `--batch-size` out")
        batch_size = 1
    prediction = predict_question(
        Question(
            question.network,
            find_asked_device(question),
            precision=question.precision,
            batch_size=default_batch_size(question) if batch_size is None else batch_size,
            phase="training",
            training=training_options(question, question.offload, is_in_blocks=False),
            fit_batch=question.fit_batch,
            memory=True,
            amount=amount,
            facility=question.facility,
            time_model=model_name(question.time_model),
            concurrent=question.time_model == PPP_OVERLAP,
            **{name: getattr(question, name) for name in _PASSED},
        )
    )
    assert isinstance(prediction, Prediction)  # pipelines are refused above
    return prediction


_PASSED = (
    "ppp", "clock", "unit", "image_size", "sequence_length", "inputs", "hardware_files",
    "calibration", "execution", "attention", "weights",
)  # fmt: skip


def default_batch_size(question: Any) -> int:
    """Return the samples per device if none are given."""
    from ..api.resolve import resolve_network, square_size
    from ..architectures.network import SequenceOptions

    size = square_size(question.image_size, question.network)
    sequence = SequenceOptions(question.sequence_length, None, "training")
    network = resolve_network(question.network, size, question.inputs, sequence)
    return 1 if network.tokens else SAMPLES_PER_DEVICE


def training_options(question: Any, offload: str | None, *, is_in_blocks: bool) -> TrainingOptions | None:
    """Return the options of a training step; None if none is given.

    Parameters
    ----------
    question : record with the options of `UpdateOptions` and `AdapterOptions`
    offload : str, optional
        Where gradients and optimizer state are kept.
    is_in_blocks : bool
        Whether recomputation is that of a network in blocks on several devices, which is no option of the step.
    """
    given: dict[str, Any] = {} if offload is None else {"offload": offload}
    if question.recompute is not None and not is_in_blocks:
        given["checkpointing"] = _checkpointing(question.recompute)
    if question.loss is not None:
        given |= _loss_options(question.loss)
    for name, field in _TRAINING_FIELDS.items():
        value = getattr(question, name)
        if value is not None and value is not False:
            given[field] = value
    for field in ("lora_modules", "freeze", "train_only"):
        if field in given:
            given[field] = _split_names(given[field])
    if not given:
        return None
    from ..timing.workload import TrainingOptions

    given.setdefault("optimizer", "adamw" if question.lora else "sgd")
    return TrainingOptions(**given)


_TRAINING_FIELDS = {
    "optimizer": "optimizer",
    "mixed_precision": "mixed_precision",
    "accumulation": "accumulation",
    "lora": "lora_rank",
    "lora_modules": "lora_modules",
    "freeze": "freeze",
    "train_only": "train_only",
    "fp32_gradients": "fp32_gradients",
}
"""Fields of `TrainingOptions` by the options that state them."""

CHECKPOINTING_OF_RECOMPUTE = {"none": "none", "sqrt": "sqrt", "full": "block", "block": "block", "all": "all"}
"""Checkpointing of a network layer by layer, by the recomputation that asks for it."""


def _checkpointing(recompute: str) -> str:
    """Return the checkpointing of a network that is not divided into blocks of several devices."""
    if recompute in CHECKPOINTING_OF_RECOMPUTE:
        return CHECKPOINTING_OF_RECOMPUTE[recompute]
    names = ", ".join(name for name in CHECKPOINTING_OF_RECOMPUTE if name != "block")
    raise BadValue(
        f"`--recompute {recompute}` is for networks in blocks on several devices: give `--workers` and `--tensor` or "
        f"`--sharding`, or one of {names}"
    )


def _loss_options(loss: str) -> dict[str, Any]:
    """Return the fields of `TrainingOptions` for ``--loss``."""
    if loss in ("fused", "fp32"):
        return {"fused_loss": loss == "fused"}
    if str(loss).isdecimal() and int(loss) >= 1:
        return {"loss_chunks": int(loss)}
    raise BadValue(f"`--loss` must be fp32, fused or a number of parts >= 1 (got {loss!r})")


def _split_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _answer_for_devices(question: Any) -> ScaleTable:
    """Return the table over numbers of devices."""
    from ..api.scaling import scale_network

    if question.fit_batch:
        raise BadValue("`--fit-batch` is for one device: give `--batch-size`, or leave the number of devices out")
    check_network_options(question, "training")
    if question.compat is None:
        question = with_usual_precision(question, _device_of_topology(question))
    question = _with_one_sharding(question)
    communication = _dict(question.communication)
    parallel = _parallel_config(question)
    is_in_blocks = parallel is not None or question.strategy == "3d"
    training = training_options(question, question.offload, is_in_blocks=is_in_blocks)
    feed = _dict(question.feed)
    settings = _settings(question, communication, parallel)
    batch_size = question.global_batch_size or question.batch_size
    if batch_size is None and question.compat is None:
        batch_size = default_batch_size(question)
    replica, _, revision = (question.compat or "").partition("-")
    return scale_network(
        question.network,
        gpu=question.gpu,
        workers=question.workers,
        link=question.link,
        topology=question.topology,
        platform=question.platform,
        measured=question.measured,
        batch_size=batch_size,
        scaling="strong" if question.global_batch_size is not None else None,
        strategy=question.strategy or "data",
        advise=question.advise is not None,
        by=question.advise or "time",
        settings=settings,
        precision=question.precision or FULL_PRECISION,
        training=training,
        power_limit=question.power_limit,
        ppp_comm=communication.get("ppp"),
        samples=question.samples,
        tokens=question.tokens,
        epochs=question.epochs,
        packing=question.packing is not None,
        mean_length=question.packing,
        storage=feed.get("storage"),
        decode=feed.get("decode"),
        pageable=feed.get("pageable", False),
        compat=replica or None,
        revision=revision or "first",
        price=question.price_usd_per_h,
        price_of=question.price_of,
        time_model=model_name(question.time_model),
        concurrent=question.time_model == PPP_OVERLAP,
        **question.site_settings,
        **{name: getattr(question, name) for name in _PASSED},
    )


def _with_one_sharding(question: Train) -> Train:
    """Return the question with ZeRO of a language model as its sharding, which is timed block by block."""
    strategy = question.strategy
    if strategy not in ("zero-1", "zero-2", "zero-3") or question.sharding is not None:
        return question
    from ..api.resolve import resolve_network, square_size

    network = resolve_network(question.network, square_size(question.image_size, question.network), question.inputs)
    return replace(question, strategy=None, sharding=strategy) if network.is_language_model else question


def _device_of_topology(question: Train) -> str | None:
    """Return the device that a topology or a platform names; None if it names none."""
    if question.topology is None and question.platform is None:
        return None
    from ..api.arguments import to_paths
    from ..distributed.run import ClusterRequest

    request = ClusterRequest(
        question.workers, topology=question.topology, platform=question.platform, link=question.link
    )
    return request.build_topology(to_paths(question.hardware_files)).device


def _dict(settings: Any) -> dict[str, Any]:
    """Return settings that the record has converted."""
    return dict(settings or {})


def _settings(question: Train, communication: Mapping[str, Any], parallel: ParallelConfig | None) -> Settings:
    """Return the settings of the exchange of gradients and of the schedule."""
    from ..distributed.settings import Settings

    given: dict[str, Any] = {
        "collective": communication.get("collective"),
        "gradient_precision": communication.get("precision"),
        "overlap": communication.get("overlap"),
        "bucket_bytes": communication.get("bucket"),
        "slowdown": communication.get("slowdown"),
        "interference": communication.get("interference"),
        "micro_batches": _dict(question.schedule).get("micro-batches"),
        "parallel": parallel,
    }
    return Settings(**{name: value for name, value in given.items() if value is not None})


def _parallel_config(question: Train) -> ParallelConfig | None:
    """Return how a network in blocks is divided; None if no option of it is given."""
    experts, schedule = _dict(question.experts), _dict(question.schedule)
    given: dict[str, Any] = {
        "tensor": question.tensor,
        "pipeline": question.pipeline,
        "context": question.context_parallel,
        "expert": question.expert_parallel,
    }
    given = {field: degree for field, degree in given.items() if degree != 1}
    given |= {
        "layout": schedule.get("layout"),
        "virtual_stages": schedule.get("interleaved"),
        "sequence_parallel": question.sequence_parallel or None,
        "dispatch": experts.get("dispatch"),
        "expert_kernels": experts.get("kernels"),
        "expert_tensor": experts.get("tensor"),
        "expert_imbalance": experts.get("imbalance"),
        "expert_capacity": experts.get("capacity"),
        "expert_overlap": experts.get("overlap"),
        "micro_batch_size": question.micro_batch,
        "offloaded_share": question.offloaded_activations,
        "sharding": question.sharding,
        **_recompute_fields(question),
    }
    given = {field: value for field, value in given.items() if value is not None}
    if not given:
        return None
    from ..distributed.parallel_config import ParallelConfig

    return ParallelConfig(**given)


def _recompute_fields(question: Train) -> dict[str, Any]:
    """Return the fields of `ParallelConfig` for ``--recompute``; none for recomputation layer by layer."""
    name, _, detail = (question.recompute or "").partition(":")
    if name == "selective":
        modules = tuple(module for module in detail.replace("+", " ").split())
        return {"recompute": name, "recompute_modules": modules} if modules else {"recompute": name}
    if name in ("full", "block"):
        if detail and not detail.isdecimal():
            raise BadValue(
                f"`--recompute {name}:N` takes the number of blocks of which one is recomputed (got {detail!r})"
            )
        return {"recompute": "full", "recompute_every": int(detail)} if detail else {"recompute": "full"}
    if detail:
        raise BadValue(f"`--recompute {name}` has no details: give `--recompute {name}`")
    if name == "offload":
        return {"recompute": name}
    if name and name not in CHECKPOINTING_OF_RECOMPUTE:
        raise BadValue(
            f"`--recompute` must be none, sqrt, all, full, full:N, selective, selective:MODULE+MODULE or offload "
            f"(got {question.recompute!r})"
        )
    return {"recompute": "none"} if name == "none" and _divides_blocks(question) else {}


def _divides_blocks(question: Train) -> bool:
    """Return whether another option divides a network in blocks."""
    names = ("tensor", "pipeline", "context_parallel", "expert_parallel", "sharding", "micro_batch", "experts")
    return question.strategy == "3d" or not set(names).isdisjoint(question.given())


def _document(result: Any, shown: Mapping[str, Any]) -> Any:
    """Return the document of a result, with the options of the output."""
    return document_of(result, shown, memory=True)


def _chart(result: Any) -> str:
    """Return the kind of chart of a result, if it is not that of several numbers of devices."""
    from ..timing import Prediction

    if isinstance(result, Prediction):
        return "roofline"
    from ..distributed.table import ScaleTable

    return "" if isinstance(result, ScaleTable) else "devices"


train = make_function("train", Train, answer)

TRAIN = QuestionKind(
    name="train",
    record=Train,
    answer=answer,
    summary="Predict training or fine-tuning on any number of devices: step, memory, hours, cost.",
    examples=(
        "llama-3-8b --gpu rtx4090 --precision bf16 --lora 16 --weights int4 --samples 52k --epochs 3",
        "resnet50 --gpu t4,l4,a10 --precision fp16 --mixed-precision --batch-size 64",
        "llama-3-8b --platform dgx-h100 --workers 8 --precision bf16 --sharding full-shard --tokens 15B",
        "gpt3-175b --platform dgx-a100 --workers 1024 --tensor 8 --pipeline 16 --precision bf16",
        "resnet50 --gpu k80-die --link ethernet20 --workers 1,2,4,...,128",
        "vgg16 --gpu p100-sxm2 --link nvlink1-x4 --workers 8 --batch-size 64 --advise time",
    ),
    document=_document,
    shown=("explain", "top"),
    chart=_chart,
    order=_ORDER,
)
