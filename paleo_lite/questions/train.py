"""`train`: a training or fine-tuning run of a network on any number of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import BadValue, PaleoError
from .cluster_records import AmountOptions, ClusterOptions, ParallelOptions
from .compare import (
    check_network_options,
    check_single,
    choose_chart,
    compare,
    default_optimizer,
    document_of,
    find_asked_device,
    is_pipeline,
    with_usual_precision,
)
from .kind import QuestionKind, make_function
from .names import Names
from .option import Several, option, options_of
from .records import (
    COST_GROUP,
    ENGINE_GROUP,
    MODEL_GROUP,
    NETWORK_GROUP,
    PARALLEL_GROUP,
    TRAINING_GROUP,
    TRAINING_PRECISIONS,
    AdapterOptions,
    DeviceOptions,
    NetworkAsked,
    PppOptions,
    PriceOptions,
    SiteOptions,
    SizeOptions,
    UpdateOptions,
    settings_of,
)
from .train_cluster import answer_for_devices
from .training_options import (
    IN_BLOCKS,
    REPLICATING,
    chooses_pytorch_experts,
    compares_divisions,
    default_batch_size,
    divides_blocks,
    division_of,
    has_blocks,
    offload_of,
    pictures_of,
    replica_of,
    training_options,
)
from .values import BATCH_SIZE, DURATION, FIT, INTEGER

if TYPE_CHECKING:
    from ..distributed.table import ScaleTable
    from ..sweeps.comparison import Comparison
    from ..timing import Prediction
    from ..timing.capacity import RemedyAnswers
    from ..timing.memory import MemoryRemedy


@dataclass(frozen=True)
class Train(
    PriceOptions, SiteOptions, PppOptions, ParallelOptions, ClusterOptions, AmountOptions,
    AdapterOptions, UpdateOptions, DeviceOptions, SizeOptions, NetworkAsked,
):  # fmt: skip
    """Predict training or fine-tuning of a network: time and memory of a step, division over devices, hours and cost.

    Of a pipeline for pictures or videos, such as flux.1-dev, the denoiser is trained, on samples encoded beforehand.
    Several values of any option, separated by commas, are a comparison. Several numbers of devices are a table with
    speed-ups.
    """

    precision: Several[str | None] = option(
        group=TRAINING_GROUP, is_common=True, type=TRAINING_PRECISIONS, metavar="NAME",
        spellings=("--precision", "--dtype"),
        help="Precision of the arithmetic; fp8, mxfp8 and nvfp4 are recipes of mixed precision. [default: fp32; of a "
        "language model or a pipeline bf16, or fp16 on a device without it]",
    )  # fmt: skip
    batch_size: Several[int | str | None] = option(
        group=TRAINING_GROUP, is_common=True, type=BATCH_SIZE, metavar="N|fit",
        spellings=("--batch-size", "-b"),
        help="Samples per device and step, of all its micro-batches together; fit is the largest batch that fits into "
        "the memory of one device. [default: 32; of a language model 1 sequence, of a "
        "pipeline 1 picture or video]",
    )  # fmt: skip
    global_batch_size: int | None = option(
        group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Samples per step of all devices, instead of --batch-size: strong scaling.",
    )  # fmt: skip
    frames: Several[int | None] = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="N", spellings=("--frames", "--num-frames"),
        help="Frames of each video, of a pipeline whose denoiser is trained. [default: the pipeline's]",
    )  # fmt: skip
    execution: str | None = option(
        group=ENGINE_GROUP, is_common=True, type=Names("execution", ".counting.fusion:EXECUTIONS"), metavar="NAME",
        help="Software stack: eager (PyTorch), compiled (torch.compile), megatron (fused kernels of Megatron-LM), "
        "autocast (casts for mixed precision), channels-last. [default: eager; megatron with an option of networks in "
        "blocks]",
    )  # fmt: skip
    within: float | str | None = option(
        group=COST_GROUP, is_common=True, is_single=True, type=DURATION, metavar="DURATION",
        help="Time in which the amount of training is to be done, 10d or 36h: marks the numbers of --workers that meet "
        "it.",
    )  # fmt: skip
    advise: str | None = option(
        group=PARALLEL_GROUP, is_common=True, is_single=True, type=Names("ranking", ".distributed.advise:RANKINGS"),
        metavar="time|joules", bare="time",
        help="Rank all strategies and collectives for one number of devices, by the time of a step or the joules of a "
        "sample; without a value by time. What other options state of the division of blocks is kept.",
    )  # fmt: skip
    measured: tuple[str, ...] = option(
        (), group=MODEL_GROUP, is_repeatable=True, metavar="TEXT",
        help="Your own measurement, '16 workers: 5,900 samples/s', '16 workers: 174,000 tokens/s' or "
        "'16 workers: 350 ms'; may be given several times.",
    )  # fmt: skip
    time_model: str | None = option(
        group=MODEL_GROUP, type=Names("time model", ".timing:TIME_MODELS", ".paleo:REPLICAS"), metavar="NAME",
        help="Time model: peak, roofline, ppp, ppp-overlap (the larger of arithmetic and memory time instead of their "
        "sum) or calibrated; paleo and paleo-last reproduce the released PALEO, its first or last revision, including "
        "its defects. [default: ppp with --ppp, otherwise calibrated, with fits for this device or for others; "
        "roofline if no fit covers the device]",
    )  # fmt: skip

    @property
    def attention(self) -> str | None:
        """The implementation of attention; None for the default."""
        return settings_of(self.training_settings).get("attention")


def answer(question: Train) -> Prediction | ScaleTable | Comparison:
    """Return the prediction on one device, a table over numbers of devices, or several answers side by side."""
    question = _without_blocks_beside_sharding(question)
    if question.advise is not None:
        check_single(question, ("workers",))
    is_one = question.several().keys() <= {"workers"} and question.advise is None and replica_of(question) is None
    result = compare(question, partial(_answer, names_micro_batch=is_one), _ORDER, together=("workers",))
    return _with_accumulation_note(question, _with_larger_batch_note(question, result)) if is_one else result


def _without_blocks_beside_sharding(question: Train) -> Train:
    """Return the question with the way of sharding alone where "3d" stands beside it.

    Commands of earlier versions say ``--strategy 3d --sharding zero-1``; both are one option now, and every way of
    sharding divides a network in blocks.
    """
    from ..distributed.parallel_config import SHARDINGS

    strategies = question.several().get("strategy", ())
    others: list[Any] = [name for name in strategies if name != IN_BLOCKS]
    if len(others) == len(strategies) or not all(name in SHARDINGS for name in others):
        return question
    chosen: Any = others[0] if len(others) == 1 else others
    return replace(question, strategy=chosen)


def _with_larger_batch_note(question: Train, result: Any) -> Any:
    """Return a step of one device whose micro-batches have one sample with a note on the largest batch that fits."""
    from ..timing import Prediction

    is_chosen = question.batch_size == FIT or question.global_batch_size is not None or question.micro_batch is not None
    number = question.accumulation or 1
    if not isinstance(result, Prediction) or is_chosen or result.workload.batch_size > number:
        return result
    largest = None if result.memory is None else result.memory.largest_batch
    if result.fits is False or largest is None:
        return result
    from ..distributed.remedies import MICRO_BATCHES_TRIED, Trial, find_faster_micro_batch

    def attempt(batch_size: int) -> Trial:
        other = _answer_one(replace(question, batch_size=batch_size), names_remedies=False)
        assert other.throughput_per_s is not None
        return Trial(other.fits, other.throughput_per_s)

    assert result.throughput_per_s is not None
    batches = (size * number for size in MICRO_BATCHES_TRIED if size * number <= largest)
    note = find_faster_micro_batch("--batch-size", result.throughput_per_s, batches, attempt)
    return result if note is None else msgspec.structs.replace(result, notes=(note, *result.notes))


def _with_accumulation_note(question: Train, result: Any) -> Any:
    """Return an answer of a batch that is divided into micro-batches with a note on their size."""
    number, batch_size = question.accumulation, question.batch_size
    if not isinstance(number, int) or not isinstance(batch_size, int) or number < 2 or question.micro_batch is not None:
        return result
    note = (
        f"`--batch-size {batch_size}` is what a device computes per step: {number} micro-batches of "
        f"{batch_size // number}; for {number} micro-batches of {batch_size}, as with per_device_train_batch_size of "
        f"transformers, give `--micro-batch {batch_size}`"
    )
    return msgspec.structs.replace(result, notes=(*result.notes, note))


def _answer(question: Train, names_micro_batch: bool, *, names_remedies: bool = True) -> Prediction | ScaleTable:
    """Return the prediction on one device, or a table over numbers of devices."""
    if question.network is None:
        raise BadValue("`train` needs a network, such as llama-3-8b or resnet50")
    _check_denoiser(question)
    if question.batch_size is not None and question.global_batch_size is not None:
        raise BadValue("give only one of `--batch-size`, samples per device, and `--global-batch-size`, of all devices")
    states_micro_batch = question.micro_batch is not None
    makes_up_batch = states_micro_batch and question.batch_size is None
    question = _with_micro_batches(question)
    if question.advise is not None and question.workers is None and question.platform is None:
        raise BadValue(
            "`--advise` ranks the ways in which several devices divide a step: give `--workers`, or no `--advise`"
        )
    if question.workers == 1 and settings_of(question.training_settings).get("gradients") == "released":
        question = replace(question, workers=None)  # what one device may do, and several may not
    if question.within is None:
        if not _asks_for_devices(question):
            return _answer_one(question, names_remedies=names_remedies, makes_up_batch=makes_up_batch)
        return answer_for_devices(
            question,
            names_micro_batch=names_micro_batch,
            states_micro_batch=states_micro_batch,
            names_remedies=names_remedies,
        )
    if question.advise is not None:
        raise BadValue("give only one of `--within`, which compares numbers of devices, and `--advise`, which has one")
    if question.workers is None and question.platform is None:
        raise BadValue("`--within` compares numbers of devices: give several, such as `--workers 8:256:x2`")
    assert isinstance(question.within, float)  # converted by the record
    return answer_for_devices(question).with_deadline(question.within)


def _check_denoiser(question: Train) -> None:
    """Check that options of a pipeline's denoiser are given for a pipeline alone, and those of others not for it."""
    if not is_pipeline(question.network):
        pictures_of(question).check_absent(question.network)
        return
    settings = settings_of(question.training_settings)
    absent = {
        "--sequence-length": question.sequence_length is not None,
        "--input": bool(question.inputs),
        **{f"--training-settings {name}": name in settings for name in ("attention", "loss")},
    }
    for name, is_given in absent.items():
        if is_given:
            raise BadValue(f"`{name}` is not for the denoiser of a pipeline, which {question.network} is: leave it out")


def _with_micro_batches(question: Train) -> Train:
    """Return the question with the batch of a device that its micro-batches make up.

    Networks in blocks keep the size of their micro-batches, others the number. Several values of either are compared,
    each in a question of its own.
    """
    size, number, batch_size = question.micro_batch, question.accumulation, question.batch_size
    if any(isinstance(value, (str, list)) for value in (size, number, batch_size)):
        return question
    if size is None:
        _check_number_of_micro_batches(batch_size, number)
        return question
    if _keeps_size_of_micro_batches(question):
        return _with_batch_of_blocks(question, size)
    return _with_number_of_micro_batches(question, size)


def _check_number_of_micro_batches(batch_size: Any, number: int | None) -> None:
    """Raise BadValue for a batch that does not divide into a number of micro-batches."""
    if batch_size is not None and number is not None and batch_size % number:
        raise BadValue(
            f"`--batch-size {batch_size}` is what a device computes per step, which does not divide into {number} "
            f"micro-batches: give `--micro-batch {batch_size}` in its place if {batch_size} is the size of each "
            f"(as per_device_train_batch_size of transformers is), or a multiple of {number}"
        )


def _keeps_size_of_micro_batches(question: Train) -> bool:
    """Return whether blocks are timed by the micro-batch: on several devices that do more than replicate them."""
    divides = divides_blocks(question)
    if not _asks_for_devices(replace(question, micro_batch=None)):
        return False
    replicates = (question.strategy or "data") in REPLICATING and not divides and not compares_divisions(question)
    return not replicates and (divides or has_blocks(question))


def _with_batch_of_blocks(question: Train, size: int) -> Train:
    """Return the question with the batch of a device, unless that of all is given or several devices share one."""
    if question.global_batch_size is not None or question.tensor * question.pipeline * question.context_parallel > 1:
        return question
    number: Any = question.accumulation
    batch_size: Any = question.batch_size
    samples = size * (number or 1)
    if batch_size not in (None, samples) and number is not None:
        raise BadValue(_disagreement(batch_size, size, samples))
    return replace(question, batch_size=batch_size or samples, accumulation=None)


def _with_number_of_micro_batches(question: Train, size: int) -> Train:
    """Return the question with the number of micro-batches of a size instead of the size."""
    batch_size: Any = question.batch_size
    number: Any = question.accumulation
    if question.global_batch_size is not None:
        if has_blocks(question) and number is None:
            return question
        raise BadValue(
            "`--micro-batch` is a part of `--batch-size`, the batch of a device: give one of these instead of "
            "`--global-batch-size`"
        )
    samples = size * (number or 1)
    if batch_size is None:
        return replace(question, batch_size=samples, micro_batch=None)
    if batch_size % size or (number is not None and samples != batch_size):
        raise BadValue(_disagreement(batch_size, size, samples))
    return replace(question, accumulation=batch_size // size, micro_batch=None)


def _disagreement(batch_size: int, size: int, samples: int) -> str:
    """Return the sentence about a batch that is not what its micro-batches make up."""
    return (
        f"`--batch-size {batch_size}` is what a device computes per step, but micro-batches of {size} make up "
        f"{samples}: leave `--batch-size` out, or give a multiple of `--micro-batch`"
    )


_ORDER = ("network", "gpu", "precision", "batch_size", "sequence_length")
"""Options that are compared, the slowest first."""

_OF_SEVERAL_DEVICES = frozenset(
    (*options_of(ClusterOptions), *options_of(ParallelOptions), "global_batch_size", "advise", "measured")
)


def _asks_for_devices(question: Train) -> bool:
    """Return whether an option is given that speaks of several devices, or of how they divide the work."""
    names_given = set(question.given())
    if chooses_pytorch_experts(question):
        names_given.discard("experts")
    is_of_several = not _OF_SEVERAL_DEVICES.isdisjoint(names_given)
    return is_of_several or replica_of(question) is not None or offload_of(question)[1] is not None


def _answer_one(question: Any, *, names_remedies: bool = True, makes_up_batch: bool = False) -> Prediction:
    """Return the prediction of a training step on one device, whose batch micro-batches may make up."""
    from ..api.prediction import predict_pass
    from ..api.question import Question
    from ..timing.budget import Amount

    check_network_options(question, "training")
    answers = None
    if names_remedies:
        answers = remedy_answers(question)._replace(makes_up_batch=makes_up_batch)
    question = with_usual_precision(question)
    amount = None
    if any(getattr(question, name) is not None for name in options_of(AmountOptions)):
        amount = Amount(None, question.samples, question.tokens, question.epochs)
    fits = question.batch_size == FIT
    batch_size = 1 if fits else question.batch_size
    parallel = None
    if question.recompute not in ("sqrt", "all"):
        _, parallel = division_of(question)
        if parallel is not None and parallel.micro_batches:
            question = replace(question, accumulation=None)
    return predict_pass(
        Question.from_options(
            question,
            question.network,
            gpu=find_asked_device(question),
            batch_size=default_batch_size(question) if batch_size is None else batch_size,
            fit_batch=fits,
            phase="training",
            training=training_options(
                question,
                offload_of(question)[0],
                is_in_blocks=parallel is not None,
                optimizer=default_optimizer(question),
            ),
            pictures=pictures_of(question),
            parallel=parallel,
            memory=True,
            names_remedies=names_remedies,
            remedy_answers=answers,
            amount=amount,
        )
    )


def _as_training(question: Any) -> Train:
    """Return the question about a training step that a question of another kind is about, or stands beside."""
    given = {name: getattr(question, name) for name in question.given() if name in options_of(Train)}
    given["batch_size"] = question.batch_size  # whose default other kinds do not have
    if _has_attention_of_its_own(question):
        given["training_settings"] = settings_of(given.get("training_settings")) | {"attention": question.attention}
    return Train(question.network, **given)


def _has_attention_of_its_own(question: Any) -> bool:
    """Return whether a question states the implementation of attention by an option that `train` does not have."""
    return "attention" in question.given() and "attention" not in options_of(Train)


def remedies_in_training(question: Any, less_than_bytes: int) -> tuple[MemoryRemedy, ...]:
    """Return the remedies of `train` for a question about passes of a step, which need less than some bytes.

    Their times are relative to the step that `train` answers, which has an update; a step that it refuses has none.
    """
    try:
        step: Any = _answer(_as_training(question), names_micro_batch=False)
    except PaleoError:
        return ()
    remedies = tuple(remedy for remedy in step.memory.remedies if remedy.total_bytes < less_than_bytes)
    return with_stated_attention(question, remedies)


def with_stated_attention(question: Any, remedies: tuple[MemoryRemedy, ...]) -> tuple[MemoryRemedy, ...]:
    """Return remedies of which the options of `train` name the attention that a question of another kind states."""
    if not _has_attention_of_its_own(question):
        return remedies
    stated = f"attention={question.attention}"
    return tuple(msgspec.structs.replace(remedy, options=_with_setting(remedy.options, stated)) for remedy in remedies)


_SETTINGS = "--training-settings"


def _with_setting(options: str, setting: str) -> str:
    """Return the options of a remedy with a setting of a training step beside those that they have."""
    if _SETTINGS in options:
        return options.replace(f"{_SETTINGS} ", f"{_SETTINGS} {setting},", 1)
    return f"{options} {_SETTINGS} {setting}"


def remedy_answers(question: Any) -> RemedyAnswers:
    """Return what `train` answers with other options; the question may be of another kind, about a training step."""
    from ..timing.capacity import RemedyAnswers

    asked = _as_training(question)

    def time_with(changes: Mapping[str, Any]) -> float:
        settings = settings_of(asked.training_settings) | settings_of(changes.get("training_settings"))
        changed = replace(asked, **{**changes, "training_settings": settings or None})
        found: Any = _answer(changed, names_micro_batch=False, names_remedies=False)
        return float(found.rows[-1].time_s if changed.workers else found.time_s)

    def find_link() -> str | None:
        from ..distributed.request import link_to_give

        return link_to_give(find_asked_device(question))

    return RemedyAnswers(time_with, find_link)


train = make_function("train", Train, answer)


def write_schedule(question: Train, answer: Any, path: Path) -> bytes:
    """Return the schedule of a pipeline of an answer as a Chrome trace."""
    from ..distributed.table import ScaleTable
    from ..reporting.timelines import encode_trace, schedule_events

    if not isinstance(answer, ScaleTable):
        raise BadValue("a timeline of training needs a pipeline, whose stages it shows: give `--pipeline`")
    return encode_trace(schedule_events(answer))


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
        "flux.1-dev --gpu b200-sxm --workers 8 --strategy full-shard --mixed-precision --image-size 512",
    ),
    document=partial(document_of, memory=True),
    shown=("explain", "top"),
    chart=partial(choose_chart, of_one="roofline", of_table=""),
    order=_ORDER,
    files={".trace.json": ("train:write_schedule", "a timeline of the stages of a pipeline for Perfetto")},
)
