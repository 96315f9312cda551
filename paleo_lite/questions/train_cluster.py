"""Training on many devices: from the record of `train` to what is asked of a network, of a cluster, and of PALEO."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import BadValue
from .compare import FULL_PRECISION, check_network_options, default_optimizer, with_usual_precision
from .option import command_words, documented_spelling, options_of
from .records import settings_of
from .training_options import (
    IN_BLOCKS,
    compares_divisions,
    default_batch_size,
    division_of,
    offload_of,
    pictures_of,
    replica_of,
    splits_layers,
    stated_division,
    training_options,
)
from .values import FIT

if TYPE_CHECKING:
    from ..api.question import Question
    from ..distributed.parallel_config import ParallelConfig
    from ..distributed.request import ClusterRequest
    from ..distributed.settings import Settings
    from ..distributed.table import ScaleRow, ScaleTable


def answer_for_devices(
    question: Any,
    *,
    names_micro_batch: bool = False,  # whether a note names a larger micro-batch that is faster
    states_micro_batch: bool = False,  # whether the size of micro-batches was asked for
    names_remedies: bool = True,  # whether a note says what makes a run fit that does not
) -> ScaleTable:
    """Return the table over numbers of devices."""
    from ..api.scaling import predict_cluster

    if question.batch_size == FIT:
        raise BadValue("`--batch-size fit` is for one device: give a number, or leave the number of devices out")
    check_network_options(question, "training")
    revision = replica_of(question)
    if revision is not None:
        return _reproduce_paleo(question, revision)
    network_question, request, settings = asked_of_cluster(question)
    request = msgspec.structs.replace(
        request,
        names_micro_batch=names_micro_batch,
        states_micro_batch=states_micro_batch,
        names_remedies=names_remedies,
    )
    table = predict_cluster(network_question, request, settings)
    best = table.answering_row
    if not table.why or best is None or best.workers == 1:
        return table
    return msgspec.structs.replace(table, command=_advised_command(question, best))


def advised_question(question: Any, best: ScaleRow) -> Any:
    """Return the question of the division that advice recommends alone."""
    from ..distributed.parallel_config import SHARDING_OF_STAGE
    from ..distributed.strategies import STRATEGIES

    alone = replace(question, advise=None)
    communication = settings_of(question.communication)
    config = best.parallel
    if config is None:
        if STRATEGIES[best.strategy].collectives:  # of which the advice chose one
            communication["collective"] = best.collective
        return replace(alone, strategy=best.strategy, communication=communication or None)
    schedule = settings_of(question.schedule)
    if config.virtual_stages > 1 and not config.layout:
        schedule["interleaved"] = config.virtual_stages
    if config.sequence_parallel:
        communication["sequence-parallel"] = True
    strategy = config.sharding
    if not strategy:  # stage 1 is the default of networks in blocks, also of those that read no tokens
        strategy = IN_BLOCKS if config.zero_stage == 1 else SHARDING_OF_STAGE[config.zero_stage]
    return replace(
        alone,
        strategy=strategy,
        tensor=config.tensor,
        pipeline=config.pipeline,
        context_parallel=config.context,
        expert_parallel=config.expert,
        micro_batch=None if config.micro_batches else config.micro_batch_size,
        recompute=_recomputation_of(config) or question.recompute,
        execution=config.execution,
        schedule=schedule or None,
        communication=communication or None,
    )


def _recomputation_of(config: ParallelConfig) -> str | None:
    """Return the value of ``--recompute`` of a configuration; None for the default of its stack."""
    if config.recompute_modules:
        return f"{config.recompute}:{'+'.join(config.recompute_modules)}"
    every = f":{config.recompute_every}" if config.recompute_every > 1 else ""
    return f"{config.recompute}{every}" if config.recompute else None


def _advised_command(question: Any, best: ScaleRow) -> str:
    """Return the command line that asks for the recommended division alone."""
    return shlex.join(command_words("train", advised_question(question, best)))


def asked_of_cluster(question: Any) -> tuple[Question, ClusterRequest, Settings]:
    """Return what is asked of the network, of the devices, and of how they exchange data."""
    from ..api.question import Question

    question = with_usual_precision(question, _device_of_topology(question))
    if compares_divisions(question):
        return _asked_of_divisions(question)
    strategy, parallel = division_of(question)
    if parallel is not None and parallel.micro_batches:
        question = replace(question, accumulation=None)
    is_in_blocks = parallel is not None or strategy == IN_BLOCKS
    training = training_options(
        question, offload_of(question)[0], is_in_blocks=is_in_blocks, optimizer=default_optimizer(question)
    )
    if training is not None and training.gradient_release:
        raise BadValue(_refusal_of_release(question))
    network_question = Question.from_options(
        question, question.network, batch_size=1, phase="training", training=training, pictures=pictures_of(question)
    )
    return network_question, _request(question, strategy), _settings(question, parallel)


def _asked_of_divisions(question: Any) -> tuple[Question, ClusterRequest, Settings]:
    """Return what is asked where advice compares divisions of blocks, which have what the options state of them."""
    from ..api.question import Question

    stated = stated_division(question)
    training = training_options(
        replace(question, accumulation=None),
        offload_of(question)[0],
        is_in_blocks=True,
        optimizer=default_optimizer(question),
    )
    if training is not None and training.gradient_release:
        raise BadValue(_refusal_of_release(question))
    network_question = Question.from_options(
        replace(question, execution=None), question.network, batch_size=1, phase="training", training=training
    )
    settings = msgspec.structs.replace(_settings(question, None), stated=tuple(stated.items()))
    return network_question, _request(question, "data"), settings


def _refusal_of_release(question: Any) -> str:
    """Return why gradients that are released at once exclude what is asked of devices."""
    released = "`--training-settings gradients=released`"
    if question.workers not in (None, 1):
        return f"{released} is for one device alone: several exchange gradients before the update"
    declared = options_of(type(question))
    names = [f"`{documented_spelling(name, declared[name])}`" for name in question.given() if name in _OF_A_DIVISION]
    return (
        f"{released} updates in the backward pass, which keeps no gradients for micro-batches or other devices: "
        f"leave out {' and '.join(names)}, and give the batch of the device with `--batch-size`"
    )


_OF_A_DIVISION = ("workers", "global_batch_size", "micro_batch", "accumulation", "strategy", "tensor", "pipeline")
"""Options of a step that is divided, by which a question of one device becomes one of several."""


def _reproduce_paleo(question: Any, revision: str) -> ScaleTable:
    """Return the table of a revision of the released PALEO; raise BadValue for an option that it does not have."""
    from ..paleo.scale import paleo_table

    declared, communication = options_of(type(question)), settings_of(question.communication)
    unknown = [documented_spelling(name, declared[name]) for name in question.given() if name not in _OF_PALEO]
    unknown += [f"--communication {key}" for key in communication if key not in ("collective", "ppp")]
    if question.precision not in (None, FULL_PRECISION):
        unknown.append("--precision")
    if unknown:
        raise BadValue(f"PALEO has no `{unknown[0]}`: leave it out, or leave `--time-model paleo` out")
    strategy, _ = division_of(question)
    return paleo_table(
        _request(question, strategy),
        question.network,
        question.gpu,
        collective=communication.get("collective") or "tree",
        revision=revision,
        ppp=1.0 if question.ppp is None else question.ppp,
    )


_OF_PALEO = {
    "gpu", "workers", "link", "batch_size", "global_batch_size", "strategy", "communication", "precision",
    "time_model", "ppp", "samples", "tokens", "epochs", "price", "within",
}  # fmt: skip
"""Options that the released PALEO has, or that speak of the amount of training."""


def _request(question: Any, strategy: str) -> ClusterRequest:
    """Return what is asked of the devices."""
    from ..distributed.request import ClusterRequest, Feed
    from ..timing.budget import Amount

    batch_size: Any = question.global_batch_size or question.batch_size
    if batch_size is None and replica_of(question) is None:
        batch_size = default_batch_size(question)
    feed = settings_of(question.feed)
    return ClusterRequest(
        question.workers,
        link=question.link,
        **_places(question),
        batch_size=batch_size,
        scaling="weak" if question.global_batch_size is None else "strong",
        strategy=strategy,
        advise=question.advise,
        ppp_comm=settings_of(question.communication).get("ppp"),
        feed=Feed(**feed) if any(feed.values()) else None,
        measured=question.measured,
        amount=Amount(None, question.samples, question.tokens, question.epochs),
        price=question.price_usd_per_h,
        price_of=question.price_of,
        facility=question.facility,
    )


def _device_of_topology(question: Any) -> str | None:
    """Return the device that a topology or a platform names; None if it names none."""
    if question.platform is None:
        return None
    from ..distributed.request import ClusterRequest
    from ..files import to_paths

    request = ClusterRequest(question.workers, link=question.link, **_places(question))
    return request.build_topology(to_paths(question.hardware_files)).device


def _places(question: Any) -> dict[str, Any]:
    """Return the topology or the platform that ``--platform`` describes."""
    if question.platform is None:
        return {}
    from ..distributed.platforms import is_topology

    return {"topology" if is_topology(question.platform) else "platform": question.platform}


def _settings(question: Any, parallel: ParallelConfig | None) -> Settings:
    """Return the settings of the exchange of gradients and of the schedule."""
    from ..distributed.settings import Settings

    communication = settings_of(question.communication)
    fields: dict[str, Any] = {
        "collective": communication.get("collective"),
        "gradient_precision": communication.get("precision"),
        "overlap": communication.get("overlap"),
        "bucket_bytes": communication.get("bucket"),
        "slowdown": communication.get("slowdown"),
        "interference": communication.get("interference"),
        "micro_batches": settings_of(question.schedule).get("micro-batches"),
        "parallel": parallel,
        "tensor": question.tensor if splits_layers(question) else None,
    }
    return Settings(**{name: value for name, value in fields.items() if value is not None})
