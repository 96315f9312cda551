"""`scale`: the time of a network on many devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ..architectures import Network
from ..architectures.pipelines.sampling import find_pipeline
from ..counting import GENERATION_PHASES
from ..errors import BadQuantity, BadValue, UnknownName
from ..machines import Device, find_device
from ..timing.energy import with_power_limit
from ..units import parse_quantity, parse_range
from .arguments import InputShapes, Paths, option_name, to_paths
from .pipelines import check_others, resolve_pipeline
from .question import PictureOptions, Question
from .resolve import resolve_question

if TYPE_CHECKING:
    from torch import nn

    from ..architectures.pipelines.records import Pipeline
    from ..calibration.store import Calibration
    from ..distributed.pictures import PictureScaling
    from ..distributed.settings import InputSettings, Settings
    from ..distributed.table import ScaleTable
    from ..timing.workload import TrainingOptions

PARALLEL_3D = "3d"
"""Strategy that combines tensor, pipeline and data parallelism."""


def scale(
    network: str | Network | nn.Module,
    *,
    gpu: str | Device | None = None,
    workers: int | str | Sequence[int] | None = None,
    link: str | None = None,
    topology: str | None = None,
    platform: str | None = None,
    measured: Sequence[str] = (),
    batch_size: int | None = None,
    scaling: str | None = None,
    strategy: str = "data",
    advise: bool = False,
    settings: Settings | None = None,
    precision: str = "fp32",
    phase: str = "training",
    training: TrainingOptions | None = None,
    context: int | None = None,
    weights: str | None = None,
    policy: str | None = None,
    kv_cache: str | None = None,
    expert_load: str | None = None,
    execution: str | None = None,
    attention: str | None = None,
    time_model: str | None = None,
    ppp: float | None = None,
    concurrent: bool = False,
    ppp_comm: float | None = None,
    calibration: str | Calibration | None = None,
    clock: str | None = None,
    power_limit: float | str | None = None,
    unit: str | None = None,
    images: float | str | None = None,
    samples: float | str | None = None,
    tokens: float | str | None = None,
    epochs: float | None = None,
    price: float | str | None = None,
    price_of: str | None = None,
    electricity: float | str | None = None,
    carbon_intensity: float | str | None = None,
    pue: float | None = None,
    host_watts: float | str | None = None,
    by: str = "time",
    cost: bool = False,
    storage: str | None = None,
    decode: float | str | None = None,
    pageable: bool = False,
    image_size: int | str | None = None,
    pictures: PictureOptions | None = None,
    sequence_length: int | None = None,
    inputs: InputShapes = (),
    hardware_files: Paths = (),
    compat: str | None = None,
    revision: str = "first",
) -> ScaleTable | PictureScaling:
    """Predict training, text generation, or a pipeline for pictures or videos on many devices.

    Parameters
    ----------
    network, precision, time_model, ppp, calibration, clock, power_limit, unit
        As for `predict`.
    image_size, sequence_length, inputs, hardware_files
        As for `predict`.
    pictures : PictureOptions, optional
        Options of a pipeline for pictures or videos, for the phase ``inference``.
    gpu : str or Device, optional
        Device; may be omitted if the topology or platform names it.
    workers : int, str or sequence of int, optional
        Numbers of devices: ``8``, ``[1, 2, 4]`` or a range: ``"1,2,4,...,128"``, ``"1:128:x2"``. By default all devices
        of the topology.
    link : str, optional
        Link between all workers: ``"ethernet20"``, ``"infiniband-fdr"``, ``"25 GB/s"``. Without a link, topology or
        platform, the computer into which the device is usually built, if one is on record.
    topology : str, optional
        Hierarchical topology instead of `link`: ``"2x k40m @ pcie3, 16 nodes @ infiniband"``, or the path of a TOML.
    platform : str, optional
        Computer instead of `link` or `topology`: by name, ``"p4d.24xlarge"`` or ``"dgx-h100"``, or one with measured
        scaling, ``"ec2-p2-k80"`` or ``"dgx1-p100"``.
    measured : sequence of str
        Your own measurements of this network, batch size and strategy on this cluster:
        ``["16 workers: 5,900 samples/s"]``.
    batch_size : int, optional
        Samples per worker for weak scaling (default 32), global batch size for strong scaling (default 32 per worker at
        the largest number of workers); number of sequences in prefill and decode (default 1).
    scaling : {"weak", "strong"}
        ``weak`` keeps the batch size per worker, ``strong`` the global batch size. By default ``weak`` for training and
        ``strong`` for prefill and decode.
    strategy : str
        Parallelism, one of `paleo_lite.distributed.strategies.STRATEGIES`.
    advise : bool
        Rank all strategies and collectives for one number of workers.
    settings : Settings, optional
        Collective, gradient buckets, gradient precision, parallel configuration:
        `paleo_lite.distributed.settings.Settings`.
    phase : {"training", "prefill", "decode", "inference"}
        Inference is for pipelines for pictures or videos. In prefill and decode a replica has all devices, or as many
        as the parallel configuration in `settings` gives, which also divides experts and attention.
    training : TrainingOptions, optional
        Optimizer, mixed precision, activation checkpointing, gradient accumulation.
    context : int, optional
        For decode, as for `predict`.
    weights : str, optional
        Storage format of matrices in prefill and decode, or of frozen matrices in training with LoRA (QLoRA).
    policy : str, optional
        Engine whose kernels prefill and decode launch, as for `serve` (default vllm), where they are known: on NVIDIA's
        GPUs from Ampere on, with the calibrated time model. Its host takes part in every step.
    kv_cache, expert_load : str, optional
        Format of the KV cache, and distribution of tokens over experts, as for `serve`; with the kernels of an engine.
    execution : str, optional
        Software stack. In training ``megatron`` (the default for networks in blocks), ``compiled`` or ``eager``;
        otherwise as for `predict`: the layers are then timed one by one, instead of the kernels of an engine.
    attention : str, optional
        Implementation of attention, as for `predict`.
    concurrent : bool
        With `ppp` or `compat`: take the larger of arithmetic and memory time instead of their sum.
    ppp_comm : float, optional
        Fraction of the link bandwidth that is reached, instead of the calibrated one (or 1).
    images, samples, tokens, epochs, price
        For hours, cost and energy: samples per epoch (``"52k"``) or tokens per epoch (``"15B"``); number of epochs; US
        dollars per hour of one device (by default its rental price on record).
    price_of : str, optional
        Cloud whose price of the device is used, ``"AWS"`` or ``"cheapest"``, instead of `price`.
    electricity, carbon_intensity, pue, host_watts
        As for `predict`, for the energy of a step at the meter, its cost and its CO2.
    by : {"time", "joules"}
        What `advise` ranks by: the time of a step, or the energy of a sample.
    cost : bool
        Raise an error if no price is known.
    storage, decode, pageable
        Input pipeline of each node: storage as in `feeding`; samples per second that a node decodes; whether one
        process copies the samples from pageable memory.
    compat : {"paleo"}, optional
        Reproduce the released PALEO, including its defects.
    revision : {"first", "last"}
        Revision of PALEO, with `compat`.

    Returns
    -------
    ScaleTable or PictureScaling
        Rows with ``time_s``, ``speedup``, ``efficiency``; ``to_dict()``, ``to_frame()``.

    Raises
    ------
    PaleoError
        For an unknown name, an invalid value, or a combination of arguments that is not supported.

    Examples
    --------
    >>> import paleo_lite as pl
    >>> pl.scale("resnet50", gpu="k80-die", link="ethernet20", workers="1,2,4,...,128")[-1].speedup  # doctest: +SKIP
    """
    from ..distributed.run import ClusterRequest, predict_scaling
    from ..distributed.settings import Settings
    from ..timing.budget import Amount
    from ..timing.facility import make_facility
    from ..timing.workload import TrainingOptions

    amount = Amount(images, samples, tokens, epochs)
    facility = make_facility(electricity, carbon_intensity, pue, host_watts)
    _check_ranking(by, advise)
    if compat is not None:
        unsupported = {
            "topology": topology,
            "platform": platform,
            "measured": measured,
            "advise": advise,
            "precision": precision,
            "phase": phase,
            "training": training,
            "context": context,
            "weights": weights,
            "policy": policy,
            "kv_cache": kv_cache,
            "expert_load": expert_load,
            "execution": execution,
            "attention": attention,
            "time_model": time_model,
            "calibration": calibration,
            "clock": clock,
            "unit": unit,
            "storage": storage,
            "decode": decode,
            "pageable": pageable,
            "image_size": image_size,
            "sequence_length": sequence_length,
            "inputs": inputs,
            "hardware_files": hardware_files,
            "electricity": electricity,
            "carbon_intensity": carbon_intensity,
            "pue": pue,
            "host_watts": host_watts,
        }
        _refuse_unknown_to_paleo(unsupported, settings)
        request = ClusterRequest(
            workers=workers,
            link=link,
            batch_size=batch_size,
            scaling=scaling or "weak",
            strategy=strategy,
            ppp_comm=ppp_comm,
            amount=amount,
            price=price,
            price_of=price_of,
            require_cost=cost,
        )
        return _reproduce_paleo(request, network, gpu, settings, revision, ppp=ppp, concurrent=concurrent)
    question = Question(
        network,
        gpu,
        precision=precision,
        phase=phase,
        time_model=time_model,
        ppp=ppp,
        concurrent=concurrent,
        clock=clock,
        unit=unit,
        image_size=image_size,
        pictures=pictures or PictureOptions(),
        sequence_length=sequence_length,
        context=context,
        inputs=inputs,
        hardware_files=hardware_files,
        calibration=calibration,
        training=training,
        execution=execution,
        attention=attention,
        weights=weights,
    )
    pipeline = find_pipeline(network) if isinstance(network, str) else None
    if phase == "inference":
        others = {
            "--link": (link, None),
            "--topology": (topology, None),
            "--platform": (platform, None),
            "--scaling": (scaling, None),
            "--strategy": (strategy, "data"),
            "--advise": (advise, False),
            "--context": (context, None),
            "training": (training, None),
        }
        if power_limit is not None:
            gpu = _find_gpu(gpu, power_limit, to_paths(hardware_files))
        question = structs.replace(question, gpu=gpu, batch_size=1 if batch_size is None else batch_size)
        return _scale_pipeline(pipeline, question, workers, others)
    _check_no_pictures(pictures, pipeline, network)
    strategy = _choose_strategy(strategy, settings)
    if phase in GENERATION_PHASES:
        _check_generation(phase, training, strategy)
        strategy = PARALLEL_3D
        scaling = scaling or "strong"
        batch_size = 1 if batch_size is None else batch_size
    elif phase == "training":
        if context is not None:
            raise BadValue("`--context` is for `--phase prefill` and `decode`, not for training")
        if strategy == PARALLEL_3D:
            settings = _with_stack(settings or Settings(), execution, attention)
            execution = None
        scaling = scaling or "weak"
        training = training or TrainingOptions("sgd")
    else:
        raise UnknownName("phase of several devices", phase, ("training", *GENERATION_PHASES, "inference"))
    request = ClusterRequest(
        workers=workers,
        link=link,
        topology=topology,
        batch_size=batch_size,
        scaling=scaling,
        strategy=strategy,
        ppp_comm=ppp_comm,
        amount=amount,
        price=price,
        price_of=price_of,
        require_cost=cost,
        platform=platform,
        measured=measured,
        facility=facility,
        by=by,
    )
    given = None if gpu is None else find_device(gpu, to_paths(hardware_files))
    machines = request.build_topology(to_paths(hardware_files), given, uses_own_link=phase in GENERATION_PHASES)
    gpu = _find_gpu(gpu or machines.device, power_limit, to_paths(hardware_files))
    question = structs.replace(
        question,
        gpu=gpu,
        training=training,
        execution=execution,
        policy=policy,
        kv_cache=kv_cache,
        expert_load=expert_load,
    )
    workload, machine, model = resolve_question(question, is_by_layers=ppp_comm is not None)
    if storage is not None or decode is not None or pageable:
        input_pipeline = _make_inputs(machine.device, storage, decode, pageable)
        settings = structs.replace(settings or Settings(), inputs=input_pipeline)
    return predict_scaling(
        request,
        machines,
        workload,
        machine,
        model,
        settings,
        advise=advise,
    )


def scale_network(network: Any, **arguments: Any) -> ScaleTable:
    """Predict training or text generation on many devices; see `scale`.

    Raises
    ------
    BadValue
        If the answer is that of a pipeline.
    """
    from ..distributed.table import ScaleTable

    table = scale(network, **arguments)
    if isinstance(table, ScaleTable):
        return table
    raise BadValue(f"{network} is a pipeline for pictures or videos: this needs a single network")


def _find_gpu(gpu: str | Device | None, power_limit: float | str | None, hardware_files: Sequence[Path]) -> Device:
    """Return the device, with a power limit if one is given."""
    if gpu is None:
        raise BadValue(
            "several devices need their kind: give `--gpu`, or a topology that names it, such as "
            "'2x k40m @ pcie3, 16 nodes @ infiniband'"
        )
    device = find_device(gpu, hardware_files)
    return device if power_limit is None else with_power_limit(device, power_limit)


def _choose_strategy(name: str, settings: Settings | None) -> str:
    """Return the strategy of a name or alias, or the one that a parallel configuration means."""
    from ..distributed.strategies import resolve_strategy

    strategy = resolve_strategy(name)
    if settings is None or settings.parallel is None:
        return strategy
    if strategy not in ("data", PARALLEL_3D):
        raise BadValue(
            f"`--tensor`, `--pipeline` and related options are for `--strategy {PARALLEL_3D}`, not for {strategy}"
        )
    return PARALLEL_3D


def _check_generation(phase: str, training: TrainingOptions | None, strategy: str) -> None:
    """Check that text generation has neither training options nor a strategy."""
    if training is not None:
        raise BadValue(f"training options are for `--phase training`, not for {phase}")
    if strategy not in ("data", PARALLEL_3D):
        raise BadValue(f"{phase} uses tensor parallelism, set by `--tensor`: leave `--strategy` out")


def _check_no_pictures(pictures: PictureOptions | None, pipeline: Pipeline | None, network: object) -> None:
    """Check that no option of pictures is given for training or text generation."""
    if pictures is None:
        return
    if pipeline is None:
        pictures.check_absent(network)
    else:
        pictures.check_absent_in_training(pipeline)


def _scale_pipeline(
    pipeline: Pipeline | None,
    question: Question,
    workers: int | str | Sequence[int] | None,
    others: Mapping[str, tuple[Any, Any]],
) -> PictureScaling:
    """Predict a pipeline on several numbers of devices."""
    from ..distributed.pictures import scale_pipeline

    if pipeline is None:
        raise BadValue(
            "`--phase inference` on several devices is for pipelines such as flux.1-dev: use prefill and decode for "
            "language models, and `predict` for one of many independent devices"
        )
    check_others(pipeline, others)
    if question.gpu is None:
        raise BadValue(f"{pipeline.name} on several devices needs a device: give `--gpu`")
    run, machine, model_in = resolve_pipeline(pipeline, question)
    numbers = [run.split.devices] if workers is None else parse_range(workers, "workers")
    return scale_pipeline(run, machine, model_in, numbers)


def _with_stack(settings: Settings, execution: str | None, attention: str | None) -> Settings:
    """Return the settings with the software stack of training in blocks."""
    from ..distributed.parallel_config import ParallelConfig

    changes = {"attention": attention}
    if execution is not None:
        changes["execution"] = execution
    parallel = structs.replace(settings.parallel or ParallelConfig(), **changes)
    return structs.replace(settings, parallel=parallel)


def _make_inputs(device: Device, storage: str | None, decode: float | str | None, pageable: bool) -> InputSettings:
    """Return the input pipeline of a node."""
    from ..distributed.settings import InputSettings
    from ..input_pipeline.feeding import find_host_link, find_store

    decoded_per_s = None
    if decode is not None:
        decoded_per_s = _parse_decode_rate(decode)
    link, link_bytes_per_s = find_host_link(device)
    return InputSettings(find_store(storage or "memory"), decoded_per_s, pageable, link, link_bytes_per_s)


def _parse_decode_rate(decode: float | str) -> float:
    """Return the samples per second of a rate such as ``"3,000/s"``."""
    text = str(decode).replace(",", "").removesuffix("/s")
    try:
        rate_per_s = parse_quantity(text, "")
    except BadQuantity:
        rate_per_s = 0.0
    if not 0 < rate_per_s < float("inf"):
        raise BadValue(f"`--decode` must be a number of samples per second > 0, such as '3,000/s' (got {decode!r})")
    return rate_per_s


def _check_ranking(by: str, advise: bool) -> None:
    """Raise an error if there is no such ranking, or nothing to rank."""
    from ..distributed.advise import RANKINGS

    if by not in RANKINGS:
        raise UnknownName("ranking", by, RANKINGS)
    if by != "time" and not advise:
        raise BadValue("`--by` is for `--advise`, which ranks strategies")


def _refuse_unknown_to_paleo(arguments: dict[str, Any], settings: Settings | None) -> None:
    """Raise BadValue if an argument or a setting is used that PALEO does not have."""
    from ..distributed.settings import Settings

    defaults: tuple[Any, ...] = (None, False, (), [], "fp32", "training")
    unsupported = [name for name, value in arguments.items() if value not in defaults]
    if settings is not None:
        default_settings = Settings(collective=settings.collective)
        for name in Settings.__struct_fields__:
            if getattr(settings, name) != getattr(default_settings, name):
                unsupported.append(name)
    if unsupported:
        option = option_name(unsupported[0])
        raise BadValue(f"PALEO has no `{option}`: leave it out, or leave `--time-model paleo` out")


def _reproduce_paleo(
    request: Any,
    network: Any,
    gpu: Any,
    settings: Settings | None,
    revision: str,
    *,
    ppp: float | None,
    concurrent: bool,
) -> ScaleTable:
    """Return the results of the released PALEO as a `ScaleTable`."""
    from ..paleo.scale import paleo_table

    collective = "tree"
    if settings is not None and settings.collective is not None:
        collective = settings.collective
    options: dict[str, Any] = {}
    if ppp is not None:
        options["ppp"] = ppp
    if concurrent:
        options["concurrent"] = concurrent
    return paleo_table(request, network, gpu, collective=collective, revision=revision, **options)
