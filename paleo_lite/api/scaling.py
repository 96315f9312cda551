"""Predictions of many devices: from what is asked of a network, and of a cluster, to tables over numbers of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from ..architectures.pipelines.sampling import find_pipeline
from ..counting import GENERATION_PHASES
from ..errors import BadQuantity, BadValue
from ..files import to_paths
from ..machines import Device, Machine, find_device
from ..timing import TimeModel, Workload
from ..timing.budget import make_budget
from ..units import check_positive, parse_quantity, parse_range
from .pipelines import check_evidence_of_denoiser, notes_on_pictures, of_denoiser, resolve_pipeline
from .question import Question, resolve_question

if TYPE_CHECKING:
    from ..distributed.links import Topology
    from ..distributed.pictures import PictureScaling
    from ..distributed.request import ClusterRequest, Feed
    from ..distributed.settings import InputSettings, Settings
    from ..distributed.table import ScaleTable

PARALLEL_3D = "3d"
"""Strategy that combines tensor, pipeline and data parallelism."""


class ClusterCase(NamedTuple):
    """A question about many devices in its nouns."""

    request: ClusterRequest
    topology: Topology
    workload: Workload
    machine: Machine
    model: TimeModel
    settings: Settings


def predict_cluster(question: Question, request: ClusterRequest, settings: Settings | None = None) -> ScaleTable:
    """Return the predictions of training, or of prefill or decode, on several numbers of devices.

    The device may be left to the topology. Raise PaleoError for an unknown name, an invalid value, or a division that
    is not supported.
    """
    from ..distributed.run import predict_scaling

    evidence = question.find_evidence()
    if evidence is None:
        return predict_scaling(*resolve_cluster(question, request, settings))
    from ..calibration.evidence_notes import notes_on_calibration
    from ..calibration.power_causes import KIND as POWER
    from ..distributed.link_causes import KIND as LINKS
    from ..distributed.link_causes import learned_topology
    from ..distributed.step_causes import KIND as TRAINING
    from ..serving.learned import KIND as SERVER

    is_generation = question.phase in GENERATION_PHASES  # of which resolve_question calibrates the kernels
    if not is_generation:
        pipeline = find_pipeline(question.network) if isinstance(question.network, str) else None
        if pipeline is None:
            evidence.check_kinds((TRAINING, LINKS, POWER), "train")
        else:
            check_evidence_of_denoiser(pipeline, evidence, (TRAINING, LINKS, POWER))
        question = structs.replace(question, calibration=None, evidence=evidence)
    case = resolve_cluster(question, request, settings)
    topology = learned_topology(case.topology, case.machine.device, evidence, SERVER if is_generation else TRAINING)
    of_steps = None if is_generation or TRAINING not in evidence.kinds else evidence
    table = predict_scaling(*case._replace(topology=topology), of_steps)
    largest = topology.with_workers(max(request.worker_counts() or [topology.workers]))
    notes = notes_on_calibration(
        evidence,
        f"predict --phase {question.phase}" if is_generation else "train",
        case.machine.device,
        case.workload.network.name,
        {SERVER} if is_generation else {TRAINING},
        largest,
    )
    return structs.replace(table, notes=(*table.notes, *notes))


def resolve_cluster(question: Question, request: ClusterRequest, settings: Settings | None = None) -> ClusterCase:
    """Return the nouns of a question about many devices; raise PaleoError as `predict_cluster` does."""
    from ..distributed.parallel_layout import check_workers
    from ..distributed.settings import Settings
    from ..timing.training_options import TrainingOptions

    pipeline = find_pipeline(question.network) if isinstance(question.network, str) else None
    if pipeline is not None:
        question = of_denoiser(pipeline, question)
    is_generation = question.phase in GENERATION_PHASES
    settings = settings or Settings()
    request = structs.replace(request, strategy=_choose_strategy(request.strategy, settings))
    if not is_generation:
        if request.strategy == PARALLEL_3D:
            settings = _with_stack(settings, question.execution, question.attention)
            question = structs.replace(question, execution=None)
        question = structs.replace(question, training=question.training or TrainingOptions("sgd"))
    files = to_paths(question.hardware_files)
    device = None if question.gpu is None else find_device(question.gpu, files)
    topology = request.build_topology(files, device, uses_suggested_link=is_generation)
    if device is None and topology.device is None:
        raise BadValue(
            "several devices need their kind: give `--gpu`, or a topology that names it, such as "
            "'2x k40m @ pcie3, 16 nodes @ infiniband'"
        )
    if settings.parallel is not None:
        for workers in request.worker_counts():
            check_workers(workers, topology, settings.parallel)
    question = structs.replace(question, gpu=device or topology.device)
    workload, machine, model = resolve_question(question, is_by_layers=request.ppp_comm is not None)
    if pipeline is not None:
        from ..timing.diffusion import pipeline_model

        model = pipeline_model(model, machine.device, is_measured=False)
    if request.feed is not None:
        settings = structs.replace(settings, inputs=_make_inputs(machine.device, request.feed))
    return ClusterCase(request, topology, workload, machine, model, settings)


def scale_pictures(question: Question, workers: int | str | Sequence[int]) -> PictureScaling:
    """Return the predictions of pictures or videos on several numbers of devices; the network is a pipeline."""
    from ..distributed.pictures import scale_pipeline

    pipeline = find_pipeline(question.network) if isinstance(question.network, str) else None
    if pipeline is None:
        raise BadValue(f"pictures and videos need a pipeline such as flux.1-dev; {question.network} is not one")
    if question.gpu is None:
        raise BadValue(f"{pipeline.name} on several devices needs a device: give `--gpu`")
    run, machine, model_in = resolve_pipeline(pipeline, question)
    scaling = scale_pipeline(run, machine, model_in, parse_range(workers, "workers"))
    notes = (*scaling.one.notes, *notes_on_pictures(question, machine.device, pipeline.name))
    scaling = structs.replace(scaling, one=structs.replace(scaling.one, notes=notes))
    if question.amount is None:
        return scaling
    return scaling.with_budget(make_budget(machine.device, question.amount))


def _choose_strategy(name: str, settings: Settings) -> str:
    """Return the strategy of a name or alias, or the one that a parallel configuration means."""
    from ..distributed.strategies import resolve_strategy

    strategy = resolve_strategy(name)
    if settings.parallel is None:
        return strategy
    if strategy not in ("data", PARALLEL_3D):
        raise BadValue(
            f"`--tensor`, `--pipeline` and related options are for `--strategy {PARALLEL_3D}`, not for {strategy}"
        )
    return PARALLEL_3D


def _with_stack(settings: Settings, execution: str | None, attention: str | None) -> Settings:
    """Return the settings with the software stack of training in blocks."""
    from ..distributed.parallel_config import ParallelConfig

    changes = {"attention": attention}
    if execution is not None:
        changes["execution"] = execution
    parallel = structs.replace(settings.parallel or ParallelConfig(), **changes)
    return structs.replace(settings, parallel=parallel)


def _make_inputs(device: Device, feed: Feed) -> InputSettings:
    """Return the input pipeline of a node."""
    from ..distributed.settings import InputSettings
    from ..input_pipeline.feeding import find_host_link, find_store

    decoded_per_s = None if feed.decode is None else _parse_decode_rate(feed.decode)
    link, link_bytes_per_s = find_host_link(device)
    return InputSettings(find_store(feed.storage), decoded_per_s, feed.pageable, link, link_bytes_per_s)


def _parse_decode_rate(decode: float | str) -> float:
    """Return the samples per second of a rate such as ``"3,000/s"``."""
    text = str(decode).replace(",", "").removesuffix("/s")
    try:
        rate_per_s = parse_quantity(text, "")
    except BadQuantity:
        rate_per_s = 0.0
    expected = "a number of samples per second > 0, such as '3,000/s'"
    check_positive("`--feed decode`", rate_per_s, repr(decode), expected)
    return rate_per_s
