"""`predict` and `predict_several`: the time of a network on one device."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import product
from typing import TYPE_CHECKING, Any

# Import numpy before msgspec: with typing_extensions installed, the other order makes the import of numpy 60 ms slower.
import numpy  # noqa: F401
from msgspec import structs

from ..architectures import Network, find_network, trace_factory
from ..architectures.catalog import HUGGING_FACE, networks_with_macs
from ..architectures.network import SequenceOptions
from ..architectures.pipelines.sampling import find_pipeline, parse_image_size
from ..calibration.choose import choose_model
from ..counting import GENERATION_PHASES
from ..counting.work import ENGINE, PHASES_WITH_GRADIENTS
from ..errors import BadValue, PaleoError
from ..machines import Device, Machine, find_device
from ..machines.registry import limit_power
from ..timing import Prediction, TimeModel, Workload, find_model
from ..timing import predict as predict_workload
from ..timing.diffusion import pipeline_model
from ..timing.facility import make_facility
from ..timing.models import CALIBRATED
from ..timing.pipelines import predict_pipeline
from ..timing.training_recipes import check_recipe, find_recipe
from ..units import PRECISION_BYTES, element_bytes, parse_quantity
from .arguments import InputShapes, Paths, to_paths
from .pipelines import PictureOptions, check_others, denoiser_network, pipeline_question

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.side_by_side import AnyPrediction, Predictions
    from ..calibration.store import Calibration
    from ..timing.pipeline_prediction import PipelinePrediction
    from ..timing.workload import TrainingOptions


def predict(
    network: str | Network | nn.Module | None = None,
    *,
    gpu: str | Device,
    precision: str = "fp32",
    batch_size: int = 1,
    phase: str = "inference",
    time_model: str | None = None,
    ppp: float | None = None,
    concurrent: bool = False,
    convention: str = "flops",
    clock: str | None = None,
    power_limit: float | str | None = None,
    unit: str | None = None,
    image_size: int | str | None = None,
    steps: int | None = None,
    guidance: float | None = None,
    frames: int | None = None,
    images: int | None = None,
    offload: str | None = None,
    ulysses: int | None = None,
    ring: int | None = None,
    guidance_parallel: bool = False,
    tiled: bool = False,
    step_caching: float | None = None,
    sequence_length: int | None = None,
    context: int | None = None,
    inputs: InputShapes = (),
    flops: float | str | None = None,
    macs: float | str | None = None,
    hardware_files: Paths = (),
    calibration: str | Calibration | None = None,
    training: TrainingOptions | None = None,
    fit_batch: bool = False,
    memory: bool = False,
    execution: str | None = None,
    attention: str | None = None,
    weights: str | None = None,
    samples: float | str | None = None,
    tokens: float | str | None = None,
    epochs: float | None = None,
    packing: bool = False,
    mean_length: float | None = None,
    price: float | str | None = None,
    price_of: str | None = None,
    electricity: float | str | None = None,
    carbon_intensity: float | str | None = None,
    pue: float | None = None,
    host_watts: float | str | None = None,
) -> Prediction | PipelinePrediction:
    """Predict how long a network, or a pipeline for pictures or videos, takes on a device.

    Parameters
    ----------
    network : str, Network or nn.Module
        Name of a shipped network, path of a descriptor, ``package.module:factory`` (imported and called, which runs the
        code of that module), a traced network, or a module.
    gpu : str or Device
        Device, by name or alias, such as ``"k80"`` or ``"v100-sxm2"``.
    precision : {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4"}
        Precision of the arithmetic.
    batch_size : int
        Samples per pass.
    phase : {"inference", "forward", "backward", "forward+backward", "training", "prefill", "decode"}
        ``training`` is forward, backward and update; ``forward`` alone is the forward pass of a training step.
        ``prefill`` and ``decode`` are the phases of text generation: the prompt at once, then one token per sequence.
    time_model : {"peak", "ppp", "roofline", "calibrated"}, optional
        Time model. By default ``ppp`` if `ppp` is given, ``peak`` for a FLOP count, otherwise ``calibrated``, with fits
        for this device or for others; ``roofline`` if no fit covers the device.
    ppp : float, optional
        Platform percent of peak as a fraction, for the time model ``ppp``; may exceed 1.
    concurrent : bool
        With `ppp`: take the larger of arithmetic and memory time instead of their sum.
    convention : {"flops", "macs", "pthflops", "lu2017", "paleo"}
        Convention of the FLOP count.
    clock : {"base", "boost"} or str, optional
        Clock of the device, or a locked clock such as ``"1.2 GHz"``; by default the one in its data file.
    power_limit : float or str, optional
        Power limit in watts, or such as ``"300 W"``, in place of the device's.
    unit : {"vector", "tensor"}, optional
        Arithmetic units; by default the faster ones.
    image_size : int or str, optional
        Image size in pixels, if it differs from the network's own; needs torch once. Of a pipeline also width x height,
        such as ``"1024x768"``.
    steps : int, optional
        Denoising steps of a pipeline; by default as its publisher states, like the following.
    guidance : float, optional
        Scale of a pipeline's classifier-free guidance; there is none at 1 and below.
    frames : int, optional
        Frames of each video.
    images : int, optional
        Pictures or videos of a pipeline in one batch.
    offload : {"none", "model", "sequential"}, optional
        Which parameters of a pipeline are on the device: all, those of the part that runs, or of the layer that runs.
    ulysses, ring : int, optional
        Devices that share the sequence of a pipeline's denoiser, by exchanging tokens for heads, and around a ring.
    guidance_parallel : bool
        Whether two groups of devices compute the two predictions of a pipeline's classifier-free guidance.
    tiled : bool
        Whether a pipeline's decoder computes tiles that overlap, which takes less memory and more time.
    step_caching : float, optional
        Steps per step that a pipeline's denoiser computes, where caching reuses its results in the others.
    sequence_length : int, optional
        Tokens per sequence of a language model, in ``prefill`` the length of the prompt. By default the maximum of the
        model, but at most 2048.
    context : int, optional
        Tokens in the KV cache, for the phase ``decode``.
    inputs : sequence of shapes or str
        For a factory or module: the shape of one sample for each input, without the batch dimension; as text with a
        data type (``"int64:128"``) and the name of the argument (``"input_ids=int64:128"``).
    flops : float or str, optional
        FLOPs per sample instead of a network, such as ``"30.97G"``; a multiply-accumulate counts as 2.
    macs : float or str, optional
        Multiply-accumulates per sample instead of a network, such as ``"15503M"``; each is 2 FLOPs.
    hardware_files : path, or sequence of paths
        TOML files of further devices.
    calibration : str or Calibration, optional
        Name of a shipped calibration, or path of a file. By default the shipped calibrations under PyTorch are used.
    training : TrainingOptions, optional
        Optimizer, mixed precision, activation checkpointing, gradient accumulation, LoRA, frozen layers and offloading,
        for the phase ``training``. By default plain SGD.
    fit_batch : bool
        Use the largest batch size that fits into the device memory.
    memory : bool
        Estimate the peak memory at inference, too; for training it is always estimated.
    execution : {"eager", "autocast", "channels-last", "megatron", "compiled", "folded", "engine"}, optional
        Kernel fusion and casts: ``eager`` has none; ``autocast`` casts for mixed precision; ``channels-last`` stores
        images as NHWC; ``megatron`` fuses softmax and residuals as Megatron-LM; ``compiled`` fuses pointwise chains;
        ``folded`` also folds batch norms into convolutions; ``engine`` is an inference engine. By default ``engine``
        for prefill and decode, otherwise ``eager``.
    attention : {"eager", "sdpa", "flash2", "flash3", "cudnn"}, optional
        Implementation of attention of a network from a config: ``eager`` writes the scores to memory, the others are
        one kernel; by default that of the config, at the rate of the device's usual implementation.
    weights : {"bf16", "fp8", "nvfp4", "int4", ...}, optional
        Format in which matrices are stored at inference, or frozen matrices in training (QLoRA, with
        ``TrainingOptions(lora_rank=16)``), one of `paleo_lite.formats.FORMATS`; by default the precision.
    samples, tokens : float or str, optional
        Amount of training per epoch, ``"52k"`` samples or ``"15B"`` tokens, for hours, cost and energy in ``run``.
    epochs : float, optional
        Number of epochs, 1 by default.
    packing : bool
        Whether several samples of a language model share a sequence; otherwise each is padded to a sequence.
    mean_length : float, optional
        Mean tokens per sample, with `packing`.
    price : float or str, optional
        US dollars per hour of the device; by default its rental price on record.
    price_of : str, optional
        Cloud whose price of the device is used, ``"AWS"`` or ``"cheapest"``, instead of `price`.
    electricity, carbon_intensity : float or str, optional
        Price and grams of CO2 per kWh, ``"0.12 USD/kWh"`` and ``"400 g/kWh"``, for the cost of the energy in ``site``.
    pue : float, optional
        Power usage effectiveness of the facility: energy at the meter over that of the machines.
    host_watts : float or str, optional
        Watts of hosts, fans and power supplies, per device.

    Returns
    -------
    Prediction or PipelinePrediction
        With ``time_s``, ``throughput_per_s``, ``to_dict()``, ``to_frame()``; of a pipeline for the whole batch.

    Raises
    ------
    PaleoError
        For an unknown name, an invalid value, a precision that the device lacks, or a malformed file.

    Examples
    --------
    >>> import paleo_lite as pl
    >>> pl.predict("vgg16", gpu="k80", precision="fp64").time_s  # doctest: +SKIP
    """
    facility = make_facility(electricity, carbon_intensity, pue, host_watts)
    if power_limit is not None:
        gpu = limit_power(find_device(gpu, to_paths(hardware_files)), power_limit)
    if (network, flops, macs).count(None) != 2:
        raise BadValue("give a network, `flops` or `macs`: exactly one of the three")
    has_amount = packing or not (samples is None and tokens is None and epochs is None and mean_length is None)
    if has_amount and (network is None or phase != "training"):
        raise BadValue("`--samples`, `--tokens`, `--epochs` and `--packing` need a network and `--phase training`")
    if network is None:
        if calibration is not None or fit_batch or memory:
            raise BadValue(
                "`--calibration`, `--fit-batch` and `--memory` require a network; "
                "they cannot be used with `--flops` or `--macs`"
            )
        counted = _predict_count(
            flops=flops,
            macs=macs,
            gpu=gpu,
            precision=precision,
            batch_size=batch_size,
            phase=phase,
            time_model=time_model,
            ppp=ppp,
            concurrent=concurrent,
            convention=convention,
            clock=clock,
            unit=unit,
            image_size=square_size(image_size, network),
            sequence_length=sequence_length,
            context=context,
            inputs=inputs,
            hardware_files=hardware_files,
            training=training,
            execution=execution,
            weights=weights,
        )
        return structs.replace(counted, facility=facility)
    options = PictureOptions(
        steps, guidance, frames, images, offload, ulysses, ring, guidance_parallel, tiled, step_caching
    )
    pipeline = find_pipeline(network) if isinstance(network, str) else None
    is_trained = pipeline is not None and phase in PHASES_WITH_GRADIENTS
    if pipeline is not None and is_trained:
        structs.replace(options, frames=None, offload=None).check_absent_in_training(pipeline)
        network, image_size = denoiser_network(pipeline, image_size, frames), None
        options = PictureOptions()
    elif pipeline is not None:
        check_others(
            pipeline,
            {
                "--phase": (phase, "inference"),
                "--convention": (convention, "flops"),
                "--sequence-length": (sequence_length, None),
                "--context": (context, None),
                "--input": (tuple(inputs), ()),
                "--fit-batch": (fit_batch, False),
                "training": (training, None),
            },
        )
        run, pipeline_machine, model_in = pipeline_question(
            pipeline,
            options,
            gpu,
            clock=clock,
            unit=unit,
            hardware_files=hardware_files,
            time_model=time_model,
            ppp=ppp,
            concurrent=concurrent,
            calibration=calibration,
            precision=precision,
            image_size=image_size,
            batch_size=batch_size,
            execution=execution,
            attention=attention,
            weights=weights,
        )
        return structs.replace(predict_pipeline(run, pipeline_machine, model_in), facility=facility)
    options.check_absent(network)
    image_size = square_size(image_size, network)
    if fit_batch and batch_size != 1:
        raise BadValue("`--fit-batch` chooses the batch size: leave `--batch-size` out")
    # The time models that need only the data sheet describe the whole board, the calibrated model one of its devices.
    whole_board = ppp is not None or time_model not in (None, CALIBRATED)
    workload, machine, model = resolve_question(
        network,
        gpu,
        precision=precision,
        batch_size=batch_size,
        phase=phase,
        time_model=time_model,
        ppp=ppp,
        concurrent=concurrent,
        convention=convention,
        clock=clock,
        unit=unit,
        image_size=image_size,
        sequence_length=sequence_length,
        context=context,
        inputs=inputs,
        hardware_files=hardware_files,
        calibration=calibration,
        training=training,
        execution=execution,
        attention=attention,
        weights=weights,
        whole_board=whole_board,
    )
    if is_trained:
        model = pipeline_model(model, machine.device, is_inference=False)
    is_forward_only = workload.phase in ("inference", "forward", "prefill")
    if is_forward_only and workload.training is None and not fit_batch and not memory:
        return structs.replace(predict_workload(workload, machine, model), facility=facility)
    from ..timing.capacity import predict_with_memory

    prediction = predict_with_memory(workload, machine, model, fit_batch=fit_batch)
    prediction = structs.replace(prediction, facility=facility)
    if not has_amount:
        return prediction
    from ..timing.budget import Amount, make_budget

    amount = Amount(None, samples, tokens, epochs, packing, mean_length)
    budget = make_budget(machine.device, amount, price, price_of=price_of, sequence_tokens=workload.network.tokens)
    notes = (*prediction.notes, *budget.price_notes(date.today()))
    return structs.replace(prediction, budget=budget, notes=notes)


def predict_network(network: Any, **arguments: Any) -> Prediction:
    """Predict how long a network takes that is no pipeline; see `predict`.

    Raises
    ------
    BadValue
        If the network is a pipeline.
    """
    prediction = predict(network, **arguments)
    if isinstance(prediction, Prediction):
        return prediction
    raise BadValue(f"{network} is a pipeline for pictures or videos: this needs a single network")


def square_size(image_size: int | str | None, network: object) -> int | None:
    """Return the size of the square images of a network that is no pipeline."""
    if not isinstance(image_size, str):
        return image_size
    width, height = parse_image_size(image_size)
    if width != height:
        name = network if isinstance(network, str) else "the network"
        raise BadValue(
            f"{name} is no pipeline: only pipelines take width x height, other networks read square images "
            f"(got {image_size})"
        )
    return width


def resolve_question(
    network: str | Network | nn.Module,
    gpu: str | Device,
    *,
    precision: str = "fp32",
    batch_size: int = 1,
    phase: str = "inference",
    time_model: str | None = None,
    ppp: float | None = None,
    concurrent: bool = False,
    convention: str = "flops",
    clock: str | None = None,
    unit: str | None = None,
    image_size: int | None = None,
    sequence_length: int | None = None,
    context: int | None = None,
    inputs: InputShapes = (),
    hardware_files: Paths = (),
    calibration: str | Calibration | None = None,
    training: TrainingOptions | None = None,
    execution: str | None = None,
    attention: str | None = None,
    weights: str | None = None,
    whole_board: bool = False,
) -> tuple[Workload, Machine, TimeModel]:
    """Build the workload, the machine and the time model from the arguments of `predict`.

    Parameters
    ----------
    network, gpu, precision, ...
        Arguments of `predict`.
    whole_board : bool
        Whether a board with several devices counts as one machine; otherwise the machine is one of its devices.
    """
    device = find_device(gpu, to_paths(hardware_files))
    machine = Machine(device, clock, unit) if whole_board else Machine.single_device(device, clock, unit)
    if not execution:
        execution = _default_execution(phase)
    multiplied_in = None
    if training is not None:
        precision, training = training.split_precision(precision)
        multiplied_in = training.products
        if training.recipe is not None:
            check_recipe(training.recipe, device)
    elif find_recipe(precision) and precision not in PRECISION_BYTES:
        raise BadValue(
            f"`--precision {precision}` is for training: add `--phase training --mixed-precision`; at inference "
            f"`--weights {precision}` stores such weights"
        )
    element_bytes(precision)
    sequence = SequenceOptions(sequence_length, context, phase)
    if attention is not None:
        from ..timing.attention import is_fused_attention, resolve_attention

        resolve_attention(attention, machine.device)
        sequence = sequence._replace(fused_attention=is_fused_attention(attention))
    resolved = resolve_network(network, image_size, inputs, sequence)
    model = choose_model(
        machine.device,
        precision,
        time_model=time_model,
        execution=execution,
        ppp=ppp,
        concurrent=concurrent,
        calibration=calibration,
        products=multiplied_in,
        is_language_model=resolved.is_language_model,
        is_text_encoder=resolved.is_text_encoder,
    )
    workload = Workload(
        resolved,
        precision=precision,
        batch_size=batch_size,
        phase=phase,
        execution=execution,
        convention=convention,
        training=training,
        weights=weights,
        attention=attention,
    )
    return workload, machine, model


def _default_execution(phase: str) -> str:
    return ENGINE if phase in GENERATION_PHASES else "eager"


def resolve_network(
    network: str | Network | nn.Module,
    image_size: int | None,
    inputs: InputShapes,
    sequence: SequenceOptions | None = None,
) -> Network:
    """Return the network for a name, a path, a factory or a module."""
    shapes = list(inputs)
    sequence = sequence or SequenceOptions()
    pipeline = find_pipeline(network) if isinstance(network, str) else None
    if pipeline is not None and sequence.phase in PHASES_WITH_GRADIENTS:
        return denoiser_network(pipeline, image_size, None)
    if isinstance(network, str) and ":" not in network and not shapes:
        return find_network(network, image_size, sequence)
    if isinstance(network, Network) and network.rebuild is not None:
        return network if _matches_sequence(network, sequence) else network.rebuild(sequence)
    is_hugging_face = isinstance(network, str) and network.startswith(HUGGING_FACE)
    if (sequence.context and not is_hugging_face) or (sequence.length and isinstance(network, Network)):
        raise BadValue(
            "`--sequence-length` and `--context` are for networks given by name or config; "
            "the length of any other network is that of its inputs"
        )
    if isinstance(network, Network):
        return network
    if not isinstance(network, str):
        from ..architectures.inputs import read_input
        from ..architectures.sequence_lengths import trace_inputs

        if not shapes:
            raise BadValue("a module needs the shape of its inputs: inputs=[(3, 224, 224)]")
        return trace_inputs(network, [read_input(shape) for shape in shapes], sequence.length)
    if ":" in network:
        return trace_factory(network, shapes, image_size, sequence)
    raise BadValue("`--input` is for package.module:factory; a shipped network takes `--image-size`")


def _matches_sequence(network: Network, sequence: SequenceOptions) -> bool:
    """Return whether a network from a config already has the layers for this phase and sequence length."""
    if network.lengths is None or sequence.length or sequence.context or sequence.fused_attention is not None:
        return False
    has_cached_tokens = network.lengths.keys > network.lengths.queries
    is_generating = sequence.phase in GENERATION_PHASES
    is_decode = sequence.phase == "decode"
    return network.lengths.uses_cache == is_generating and has_cached_tokens == is_decode


def _predict_count(
    *,
    flops: float | str | None,
    macs: float | str | None,
    gpu: str | Device,
    precision: str,
    batch_size: int,
    phase: str,
    time_model: str | None,
    ppp: float | None,
    concurrent: bool,
    convention: str,
    clock: str | None,
    unit: str | None,
    image_size: int | None,
    sequence_length: int | None,
    context: int | None,
    inputs: InputShapes,
    hardware_files: Paths,
    training: TrainingOptions | None,
    execution: str | None,
    weights: str | None,
) -> Prediction:
    """Predict the time of a FLOP or MAC count on the whole board.

    A FLOP count equal to the MAC count of a shipped network gets a note, as it probably is a MAC count.
    """
    machine = Machine(find_device(gpu, to_paths(hardware_files)), clock, unit)
    if ppp is None and not concurrent:
        time_model = time_model or "peak"
    model = find_model(time_model, ppp=ppp, concurrent=concurrent)
    if macs is not None:
        count = 2 * parse_quantity(macs, "MAC")
        notes: tuple[str, ...] = ()
    else:
        count = parse_quantity(flops or 0, "FLOP")
        notes = tuple(
            f"{name} has about this number of multiply-accumulates, of 2 FLOPs each: "
            f"if this is a MAC count, use `--macs {flops}`"
            for name in networks_with_macs(count)[:1]
        )
    workload = Workload.from_flops(
        count,
        precision=precision,
        batch_size=batch_size,
        notes=notes,
        # The remaining arguments need layers: `of_flops` rejects everything but their defaults.
        phase=phase,
        execution=execution or _default_execution(phase),
        convention=convention,
        training=training,
        image_size=image_size,
        inputs=inputs,
        sequence_length=sequence_length,
        context=context,
        weights=weights,
    )
    return predict_workload(workload, machine, model)


def predict_several(
    networks: Sequence[str | Network | nn.Module | None],
    *,
    gpus: Sequence[str | Device],
    precisions: Sequence[str] = ("fp32",),
    phases: Sequence[str] = ("inference",),
    batch_sizes: Sequence[int] = (1,),
    time_model: str | None = None,
    ppp: float | None = None,
    concurrent: bool = False,
    convention: str = "flops",
    clock: str | None = None,
    power_limit: float | str | None = None,
    unit: str | None = None,
    image_size: int | str | None = None,
    sequence_length: int | None = None,
    context: int | None = None,
    inputs: InputShapes = (),
    pictures: PictureOptions | None = None,
    flops: float | str | None = None,
    macs: float | str | None = None,
    hardware_files: Paths = (),
    calibration: str | Calibration | None = None,
    training: TrainingOptions | None = None,
    fit_batch: bool = False,
    memory: bool = True,
    execution: str | None = None,
    attention: str | None = None,
    weights: str | None = None,
    samples: float | str | None = None,
    tokens: float | str | None = None,
    epochs: float | None = None,
    packing: bool = False,
    mean_length: float | None = None,
    price: float | str | None = None,
    price_of: str | None = None,
    electricity: float | str | None = None,
    carbon_intensity: float | str | None = None,
    pue: float | None = None,
    host_watts: float | str | None = None,
) -> Predictions:
    """Predict every combination of networks, devices, precisions, phases and batch sizes.

    The order is that of nested loops over networks, devices, precisions, phases and batch sizes.

    Parameters
    ----------
    networks, gpus, precisions, phases, batch_sizes : sequence
        Values of the arguments of `predict` with the corresponding singular names.
    time_model, ppp, concurrent, convention, clock, power_limit, unit, image_size, sequence_length, context, inputs
        As for `predict`, the same for all combinations.
    pictures : PictureOptions, optional
        What is asked of pipelines for pictures and videos.
    flops, macs
        As for `predict`, the same for all combinations.
    hardware_files, calibration, training, fit_batch, execution, attention, weights
        As for `predict`, the same for all combinations.
    samples, tokens, epochs, packing, mean_length, price, price_of, electricity, carbon_intensity, pue, host_watts
        As for `predict`, the same for all combinations.
    memory : bool
        Whether the peak memory of networks is estimated at inference, too.

    Returns
    -------
    Predictions
        With ``rows()``, ``speedup(prediction)``, ``to_dict()``, ``to_frame()``.

    Raises
    ------
    PaleoError
        For an unknown name, or if no combination can be predicted.
    """
    from ..calibration.side_by_side import Predictions

    devices = [find_device(gpu, to_paths(hardware_files)) for gpu in gpus]
    if power_limit is not None:
        devices = [limit_power(device, power_limit) for device in devices]
    resolved_networks: dict[tuple[int, str], str | Network | None] = {}
    for index, network in enumerate(networks):
        is_pipeline = isinstance(network, str) and find_pipeline(network) is not None
        for phase in phases:
            if network is None or is_pipeline:
                resolved_networks[index, phase] = network
            else:
                sequence = SequenceOptions(sequence_length, context, phase)
                size = square_size(image_size, network)
                resolved_networks[index, phase] = resolve_network(network, size, inputs, sequence)
    predictions: list[AnyPrediction] = []
    failures: dict[str, PaleoError] = {}
    indices = range(len(networks))
    for index, device, precision, phase, batch_size in product(indices, devices, precisions, phases, batch_sizes):
        resolved = resolved_networks[index, phase]
        of_pipelines: dict[str, Any] = {} if pictures is None else structs.asdict(pictures)
        if isinstance(resolved, str):
            of_pipelines |= {"image_size": image_size, "sequence_length": sequence_length, "context": context}
        try:
            prediction = predict(
                resolved,
                gpu=device,
                precision=precision,
                batch_size=batch_size,
                phase=phase,
                time_model=time_model,
                ppp=ppp,
                concurrent=concurrent,
                convention=convention,
                clock=clock,
                unit=unit,
                flops=flops,
                macs=macs,
                calibration=calibration,
                training=training,
                fit_batch=fit_batch,
                memory=memory and resolved is not None,
                execution=execution,
                attention=attention,
                weights=weights,
                samples=samples,
                tokens=tokens,
                epochs=epochs,
                packing=packing,
                mean_length=mean_length,
                price=price,
                price_of=price_of,
                electricity=electricity,
                carbon_intensity=carbon_intensity,
                pue=pue,
                host_watts=host_watts,
                **of_pipelines,
            )
        except PaleoError as error:
            name = resolved.name if isinstance(resolved, Network) else resolved or "the FLOP count"
            failures[f"{name} on {device.id} in {precision}: {error}"] = error
        else:
            predictions.append(prediction)
    if not predictions:
        if failures:
            raise next(iter(failures.values()))
        raise BadValue("give at least one network, device, precision, phase and batch size")
    return Predictions(predictions, tuple(failures))
