"""Whether a workload fits into a device's memory, the largest batch that does, and remedies with their cost in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from ..counting.work import PHASES_WITH_GRADIENTS
from ..errors import BadValue, DoesNotFit, PaleoError, UnknownPrecision, UnsupportedPhase
from ..machines import Device, Machine
from ..units import format_si
from .memory import (
    RESERVE_BYTES,
    MemoryFit,
    MemoryRemedy,
    largest_batch,
    paged_out_bytes,
    peak_memory,
    usable_bytes,
)
from .models import TimeModel
from .offload import peer_bandwidth_bytes_per_s
from .optimizers import OPTIMIZERS, resident_optimizer
from .predicting import predict
from .prediction import Prediction
from .training_options import CUT_LOSS
from .workload import Workload

SHARDS = 8
"""Devices across which the ZeRO remedies shard the model state: a node of eight."""

MOST_PAIRS = 4
"""Most pairs of remedies that are listed where no single one makes a workload fit."""

NARROWER_FORMATS = ("fp8", "int4")
"""Formats that are tried: of all weights of language models at inference, and elsewhere of weights that are frozen
beside adapters."""

LORA_RANK = 16
"""Rank of the adapters of the LoRA remedies."""

_ADAM_OPTIMIZERS = ("adam", "adamw")


class RemedyAnswers(NamedTuple):
    """What a question answers with other options: what remedies cost."""

    # Seconds of a step with changed options, None for those that are left out; raise PaleoError if they are refused.
    time_with: Callable[[Mapping[str, Any]], float]
    # Return the link that has to be given to several devices; None where a usual computer joins them.
    find_link: Callable[[], str | None]
    # Whether micro-batches make up the batch, which is then stated where a remedy changes them.
    makes_up_batch: bool = False


def predict_with_memory(
    workload: Workload,
    machine: Machine,
    model: TimeModel,
    *,
    fit_batch: bool = False,
    names_remedies: bool = True,
    answers: RemedyAnswers | None = None,
) -> Prediction:
    """Predict the time of a workload and its peak memory, with remedies if it does not fit and they are asked for.

    The remedies have the times of `answers`, and none without it. With `fit_batch` the batch size is the largest one
    that fits instead of the workload's; raise DoesNotFit if not even one sample does.
    """
    if not workload.has_layers:
        raise BadValue("memory and training options need the layers of a network, not a bare FLOP count")
    if fit_batch:
        workload = workload.with_changes(batch_size=workload.options.accumulation)
        fit = fit_memory(workload, machine, model) if names_remedies else compare_memory(workload, machine, model)
        if fit.largest_batch is None:
            raise DoesNotFit(too_large_message(workload, machine, fit, names_remedies=names_remedies))
        workload = workload.with_changes(batch_size=fit.largest_batch)
    prediction = predict(workload, machine, model)
    if names_remedies:
        fit = fit_memory(workload, machine, model, prediction, answers)
    else:
        fit = compare_memory(workload, machine, model)
    return msgspec.structs.replace(prediction, memory=fit)


def too_large_message(workload: Workload, machine: Machine, fit: MemoryFit, *, names_remedies: bool = True) -> str:
    """Return the sentence about a network of which not even one sample per micro-batch fits, with its remedies."""
    least = "one sample" if workload.options.accumulation == 1 else "one sample per micro-batch"
    text = f"{workload.network.name} in {workload.precision} does not fit on {machine.device.name}: {least} needs "
    text += f"{format_si(fit.memory.total_bytes, 'B')} of {format_si(fit.usable_bytes, 'B')} "
    text += f"({format_si(fit.capacity_bytes, 'B')} less {format_si(fit.reserve_bytes, 'B')} of reserve)"
    if not names_remedies:
        return text
    helpful = [remedy for remedy in fit.remedies if remedy.fits]
    if not helpful:
        return f"{text}; no remedy makes it fit, nor two together"
    names = "; ".join(f"`{remedy.options}` ({format_si(remedy.total_bytes, 'B')})" for remedy in helpful)
    return f"{text}; remedies that make it fit: {names}"


def compare_memory(workload: Workload, machine: Machine, model: TimeModel) -> MemoryFit:
    """Compare the peak memory of a workload with the memory of a machine, without remedies."""
    memory, largest = model.memory(workload, machine), model.largest_batch(workload, machine)
    state_bytes = memory.optimizer_bytes - paged_out_bytes(workload, machine.device)
    memory = msgspec.structs.replace(memory, optimizer_bytes=state_bytes)
    is_training = workload.phase in PHASES_WITH_GRADIENTS
    optimizer = workload.options.optimizer if is_training else None
    micro_batches = workload.options.accumulation if is_training else 1
    return MemoryFit(memory, machine.device.reported_memory_bytes, RESERVE_BYTES, largest, optimizer, micro_batches)


class ShardedStep(NamedTuple):
    """Memory of a step of several devices that shard the state of a network, as one of them sees it."""

    total_bytes: int
    largest_batch: int | None  # of one device, in as many micro-batches


def fit_memory(
    workload: Workload,
    machine: Machine,
    model: TimeModel,
    prediction: Prediction | None = None,
    answers: RemedyAnswers | None = None,
    shard: Callable[[CandidateRemedy], ShardedStep | None] | None = None,
) -> MemoryFit:
    """Compare the peak memory of a workload with the memory of a machine, and list remedies if it does not fit.

    Pairs of remedies of one device are tried where no single remedy makes it fit. The time model knows the memory of
    what it times. The cost in time of a remedy is that of the answer with its options over that of the prediction;
    remedies that are refused are left out. Without `answers` they have none.
    `shard` predicts the memory of several devices of a network that they divide in blocks, if it is possible.
    """
    fit = compare_memory(workload, machine, model)
    if fit.fits:
        return fit
    device = machine.device

    def rank(candidates: Iterable[CandidateRemedy], helps: Callable[[float], bool]) -> list[tuple[Any, MemoryRemedy]]:
        """Return the candidates whose bytes help as remedies, each with its key."""
        ranked = []
        for candidate in candidates:
            remedy = _remedy_of(candidate, device, helps, shard)
            if remedy is None:
                continue
            if prediction is not None and answers is not None:
                try:
                    time_ratio = answers.time_with(candidate.changes) / prediction.time_s
                except PaleoError:
                    continue  # what is refused is no remedy
                remedy = msgspec.structs.replace(remedy, time_ratio=time_ratio)
            ranked.append((remedy_key(remedy, SHARDS if candidate.zero_stage else 1), remedy))
        return sorted(ranked, key=lambda pair: pair[0])

    candidates = list(_candidate_remedies(workload, device, fit.largest_batch, answers))
    ranked = rank(candidates, lambda total: total < fit.memory.total_bytes)
    if not any(remedy.fits for _, remedy in ranked):
        pairs = rank(_pairs_of_remedies(workload, candidates), lambda total: total <= usable_bytes(device))
        ranked = pairs[:MOST_PAIRS] + ranked
    return msgspec.structs.replace(fit, remedies=tuple(remedy for _, remedy in ranked))


def _remedy_of(
    candidate: CandidateRemedy,
    device: Device,
    helps: Callable[[float], bool],  # whether as many bytes are few enough for a remedy
    shard: Callable[[CandidateRemedy], ShardedStep | None] | None,
) -> MemoryRemedy | None:
    """Return a candidate with its memory and no time; None if its bytes do not help."""
    shards, usable = SHARDS if candidate.zero_stage else 1, usable_bytes(device)
    if candidate.zero_stage and shard is not None:
        sharded = shard(candidate)
        if sharded is None:
            return None
        total, largest_with_remedy = sharded
    else:
        total = peak_memory(candidate.workload, zero_stage=candidate.zero_stage, shards=shards).total_bytes
        total -= paged_out_bytes(candidate.workload, device)
        if not helps(total):
            return None
        largest_with_remedy = largest_batch(
            candidate.workload, memory_bytes=usable, zero_stage=candidate.zero_stage, shards=shards
        )
    if not helps(total):
        return None
    largest_micro_batch = None
    if largest_with_remedy is not None:
        largest_micro_batch = largest_with_remedy // candidate.workload.options.accumulation
    return MemoryRemedy(
        candidate.name, total, total <= usable, largest_with_remedy, None, candidate.options, largest_micro_batch
    )


def _pairs_of_remedies(workload: Workload, candidates: Sequence[CandidateRemedy]) -> Iterator[CandidateRemedy]:
    """Yield two candidates of one device together, where they change other options."""
    alone = [candidate for candidate in candidates if not candidate.zero_stage]
    for first, second in combinations(alone, 2):
        if not first.changes.keys().isdisjoint(second.changes):
            continue
        changed = _differences(workload, first.workload) | _differences(workload, second.workload)
        options = _differences(workload.options, first.workload.options)
        options |= _differences(workload.options, second.workload.options)
        try:
            changed["training"] = msgspec.structs.replace(workload.options, **options)
            both = workload.with_changes(**changed)
        except BadValue:
            continue  # they do not go together
        yield CandidateRemedy(f"{first.name}, {second.name}", {**first.changes, **second.changes}, both)


def _differences(asked: msgspec.Struct, changed: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that differ between two records of a type."""
    fields = ((name, getattr(asked, name), getattr(changed, name)) for name in asked.__struct_fields__)
    return {name: value for name, before, value in fields if value is not before and value != before}


def remedy_key(remedy: MemoryRemedy, devices: int) -> tuple[bool, int, float, int]:
    """Return the sort key of a remedy: those that fit first, on the fewest devices and fastest; then the smallest."""
    if not remedy.fits:
        return (True, 0, float("inf"), remedy.total_bytes)
    time_ratio = float("inf") if remedy.time_ratio is None else remedy.time_ratio
    return (False, devices, time_ratio, remedy.total_bytes)


class CandidateRemedy(NamedTuple):
    """A remedy to try."""

    name: str  # description of the remedy
    changes: Mapping[str, Any]  # options of `train` that ask for it; None for those that they contradict
    workload: Workload  # the workload with the remedy
    zero_stage: int = 0  # ZeRO stage on `SHARDS` devices; 0 for a single device

    @property
    def options(self) -> str:
        """The options as text; those that the changes contradict are left out of the question."""
        return " ".join(_option_text(name, value) for name, value in self.changes.items() if value is not None)


def _option_text(name: str, value: Any) -> str:
    """Return an option as the command line writes it."""
    flag = "--" + name.replace("_", "-")
    if value is True:
        return flag
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={text}" for key, text in value.items())
    return f"{flag} {value}"


def _candidate_remedies(
    workload: Workload,
    device: Device,
    largest: int | None,  # batch that fits
    answers: RemedyAnswers | None,
) -> Iterator[CandidateRemedy]:
    """Yield remedies to try for a workload that does not fit on a device."""
    options, batch_size = workload.options, workload.batch_size
    stated: dict[str, Any] = {}
    if answers is not None and answers.makes_up_batch:
        stated["batch_size"] = batch_size
    narrow = _narrower_precision(device, workload.precision)
    if workload.phase not in PHASES_WITH_GRADIENTS:
        if narrow:
            changed = workload.with_changes(precision=narrow)
            yield CandidateRemedy(f"{narrow} numbers", {"precision": narrow}, changed)
        if workload.network.lengths is not None and workload.weights is None:
            yield from _narrower_weights(workload, "weights")
        return
    if options.checkpointing == "none":
        name = "checkpointing, about sqrt(n) segments"
        yield CandidateRemedy(name, {"recompute": "sqrt"}, _with_options(workload, checkpointing="sqrt"))
    if options.checkpointing not in ("block", "all"):
        name = "checkpointing, every block"
        checkpointing = _block_checkpointing(workload)
        changed = _with_options(workload, checkpointing=checkpointing)
        yield CandidateRemedy(name, {"recompute": _RECOMPUTATION[checkpointing]}, changed)
    if narrow:
        mixed_options = msgspec.structs.replace(options, mixed_precision=True)
        mixed = workload.with_changes(precision=narrow, phase="training", training=mixed_options)
        changes_of_mixed = {"precision": narrow, "mixed_precision": True}
        yield CandidateRemedy(f"mixed precision in {narrow}", changes_of_mixed, mixed)
    micro_batch_size = next((size for size in range(largest or 0, 0, -1) if batch_size % size == 0), None)
    if options.gradient_release:
        micro_batch_size = None  # a release keeps no gradients to accumulate
    if micro_batch_size and batch_size // micro_batch_size > options.accumulation:
        number = batch_size // micro_batch_size
        name = f"accumulation, {number} micro-batches of {micro_batch_size}"
        yield CandidateRemedy(name, {**stated, **_accumulate(number)}, _with_options(workload, accumulation=number))
    if options.optimizer in _ADAM_OPTIMIZERS:
        changed = _with_options(workload, optimizer="adamw-8bit")
        yield CandidateRemedy("optimizer state in 8 bits (adamw-8bit)", {"optimizer": "adamw-8bit"}, changed)
    yield from _fine_tuning_remedies(workload, narrow, stated)
    updates_at_once = options.accumulation == 1 and options.offload == "none" and not options.gradient_release
    if workload.phase == "training" and updates_at_once:
        changed = _with_options(workload, gradient_release=True)
        yield CandidateRemedy(
            "gradients released layer by layer", {"training_settings": {"gradients": "released"}}, changed
        )
    if (
        options.offload == "none"
        and not options.gradient_release
        and peer_bandwidth_bytes_per_s(device)
        and not device.shares_host_memory
    ):
        offloaded = _with_options(workload, offload="cpu")
        yield CandidateRemedy("offload of the optimizer to the host", {"offload": "cpu"}, offloaded)
    yield from _sharding_remedies(workload, None if answers is None else answers.find_link())


def _sharding_remedies(workload: Workload, link: str | None) -> Iterator[CandidateRemedy]:
    """Yield the stages of ZeRO on several devices, which may have to be joined by a link that is given."""
    options = workload.options
    sharded, instead = workload, ""
    further_changes: dict[str, Any] = {"link": link}
    if OPTIMIZERS[options.optimizer].is_paged:  # several devices divide the state instead of moving it
        resident = resident_optimizer(options.optimizer)
        sharded, instead = _with_options(workload, optimizer=resident), f", with {resident}"
        further_changes["optimizer"] = resident
    samples = workload.batch_size // options.accumulation
    if workload.network.blocks and samples > 1:  # whose micro-batches have one sample unless their size is given
        further_changes["micro_batch"] = samples
    for stage in (1, 2, 3):
        name = f"ZeRO stage {stage} on {SHARDS} devices{instead}"
        changes_of_stage = {"workers": SHARDS, "strategy": f"zero-{stage}", **further_changes}
        yield CandidateRemedy(name, changes_of_stage, sharded, stage)


def _accumulate(number: int) -> dict[str, Any]:
    """Return the options of a batch that is divided into a number of micro-batches."""
    return {"accumulation": number, "micro_batch": None}


_RECOMPUTATION = {"block": "full", "all": "all"}
"""Values of `--recompute` for the checkpointing of every block."""


def _fine_tuning_remedies(
    workload: Workload, narrow: str | None, stated: Mapping[str, Any]
) -> Iterator[CandidateRemedy]:
    """Yield LoRA and QLoRA for a language model, alone, and with what saves more memory of activations.

    The latter are checkpointing with micro-batches of one sample, and cut cross-entropy beside both.

    Of another network with adapters, yield narrower formats of its frozen weights.

    A precision that is wider than 16 bits gives way to a narrow one. `stated` are options of the batch that the number
    of its micro-batches needs.
    """
    options = workload.options
    if workload.weights is not None:
        return
    if workload.network.lengths is None:
        if options.lora_rank:
            yield from _narrower_weights(workload, "frozen weights")
        return
    checkpointing = _block_checkpointing(workload)
    smallest = {"checkpointing": checkpointing, "accumulation": workload.batch_size}
    changes_of_smallest: dict[str, Any] = {"recompute": _RECOMPUTATION[checkpointing]}
    if workload.batch_size > 1:
        changes_of_smallest |= {**stated, **_accumulate(workload.batch_size)}
    variants: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("", {}, {}),
        (", checkpointing, micro-batches of 1", smallest, changes_of_smallest),
    ]
    if options.loss_chunks == 1:
        cut = changes_of_smallest | {"training_settings": {"loss": "cut"}}
        variants.append((", checkpointing, micro-batches of 1, cut cross-entropy", smallest | CUT_LOSS, cut))
    for name, weights in (("LoRA", None), ("QLoRA", "int4")):
        if options.lora_rank and weights is None:
            continue
        rank = options.lora_rank or LORA_RANK
        changes_of_tuning: dict[str, Any] = {"lora": rank}
        if weights is not None:
            changes_of_tuning["weights"] = weights
        if narrow is not None:
            changes_of_tuning["precision"] = narrow
        if workload.execution != "eager":
            changes_of_tuning["execution"] = "eager"
        try:
            for suffix, changes, further_changes in variants:
                tuned = msgspec.structs.replace(options, lora_rank=rank, **changes)
                changed = workload.with_changes(
                    phase="training",
                    training=tuned,
                    precision=narrow or workload.precision,
                    weights=weights,
                    execution="eager",
                )
                assert changed.trained_layers
                yield CandidateRemedy(
                    f"{name} of rank {rank}{suffix}", {**changes_of_tuning, **further_changes}, changed
                )
        except BadValue:  # no layer takes an adapter
            return


def _narrower_weights(workload: Workload, name: str) -> Iterator[CandidateRemedy]:
    """Yield narrower formats of the weights, which no gradient changes."""
    for weights in NARROWER_FORMATS:
        try:
            changed = workload.with_changes(weights=weights)
        except (BadValue, UnsupportedPhase):  # a network or a phase without this format
            continue
        yield CandidateRemedy(f"{name} in {weights}", {"weights": weights}, changed)


def _block_checkpointing(workload: Workload) -> str:
    """Return the checkpointing of every block: numbered modules of language models, all cuts of other networks."""
    return "all" if workload.network.lengths is None else "block"


def _with_options(workload: Workload, **changes: Any) -> Workload:
    """Return the workload as a training step with changed training options."""
    return workload.with_changes(phase="training", training=msgspec.structs.replace(workload.options, **changes))


def _narrower_precision(device: Device, precision: str) -> str | None:
    """Return a 16-bit precision that the device supports, if the given precision is wider; otherwise None."""
    if precision not in ("fp64", "fp32", "tf32"):
        return None
    for name in ("bf16", "fp16"):
        try:
            device.find_peak(name)
        except UnknownPrecision:
            continue
        return name
    return None
