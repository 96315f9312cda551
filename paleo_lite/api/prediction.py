"""`predict`: the time of a network on one device."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

# Import numpy before msgspec: with typing_extensions installed, the other order makes the import of numpy 60 ms slower.
import numpy  # noqa: F401
from msgspec import structs

from ..architectures import Network
from ..architectures.catalog import networks_with_macs
from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import find_pipeline
from ..counting.work import PHASES_WITH_GRADIENTS
from ..errors import BadValue
from ..machines import Device, find_device
from ..timing import Prediction, Workload, find_model
from ..timing import predict as predict_workload
from ..timing.diffusion import pipeline_model
from ..timing.energy import with_power_limit
from ..timing.facility import make_facility
from ..timing.pipelines import predict_pipeline
from ..units import parse_quantity
from .arguments import InputShapes, Paths, to_paths
from .pipelines import check_others, denoiser_network, resolve_pipeline
from .question import PictureOptions, Question
from .resolve import default_execution, resolve_question, square_size

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.store import Calibration
    from ..timing.budget import Amount
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
    kv_cache: str | None = None,
    expert_parallel: int | None = None,
    attention_data_parallel: int | None = None,
    samples: float | str | None = None,
    tokens: float | str | None = None,
    epochs: float | None = None,
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
    execution : {"eager", "autocast", "channels-last", "megatron", "compiled", "folded", "engine"} or str, optional
        Kernel fusion and casts: ``eager`` has none; ``autocast`` casts for mixed precision; ``channels-last`` stores
        images as NHWC; ``megatron`` fuses softmax and residuals as Megatron-LM; ``compiled`` fuses pointwise chains;
        ``folded`` also folds batch norms into convolutions; ``engine`` fuses layers as an inference engine. In prefill
        and decode also an engine, ``vllm``, ``sglang`` or ``tensorrt-llm``, whose kernels are timed as in `scale` and
        `serve`. By default ``eager``, in prefill and decode ``vllm`` where its kernels are known, otherwise ``engine``.
    attention : {"eager", "sdpa", "flash2", "flash3", "cudnn"}, optional
        Implementation of attention of a network from a config: ``eager`` writes the scores to memory, the others are
        one kernel; by default that of the config, at the rate of the device's usual implementation.
    weights : {"bf16", "fp8", "nvfp4", "int4", ...}, optional
        Format in which matrices are stored at inference, or frozen matrices in training (QLoRA, with
        ``TrainingOptions(lora_rank=16)``), one of `paleo_lite.formats.FORMATS`; by default the precision.
    kv_cache : str, optional
        Format of the KV cache under an engine, one of `paleo_lite.formats.FORMATS`; by default the precision, but at
        least 16 bits.
    expert_parallel, attention_data_parallel : int, optional
        Groups of devices that divide the experts of a mixture, and that compute attention for sequences of their own: 1
        on a single device; `scale` predicts several.
    samples, tokens : float or str, optional
        Amount of training per epoch, ``"52k"`` samples or ``"15B"`` tokens, for hours, cost and energy in ``run``.
    epochs : float, optional
        Number of epochs, 1 by default.
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
    check_single_device(expert_parallel, attention_data_parallel)
    if power_limit is not None:
        gpu = with_power_limit(find_device(gpu, to_paths(hardware_files)), power_limit)
    return answer(
        Question(
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
            pictures=PictureOptions(
                steps, guidance, frames, images, offload, ulysses, ring, guidance_parallel, tiled, step_caching
            ),
            sequence_length=sequence_length,
            context=context,
            inputs=inputs,
            flops=flops,
            macs=macs,
            hardware_files=hardware_files,
            calibration=calibration,
            training=training,
            fit_batch=fit_batch,
            memory=memory,
            execution=execution,
            attention=attention,
            weights=weights,
            kv_cache=kv_cache,
            amount=_make_amount(samples, tokens, epochs),
            price=price,
            price_of=price_of,
            facility=make_facility(electricity, carbon_intensity, pue, host_watts),
        )
    )


def _make_amount(samples: float | str | None, tokens: float | str | None, epochs: float | None) -> Amount | None:
    """Return the amount of training; None if none is given."""
    if samples is None and tokens is None and epochs is None:
        return None
    from ..timing.budget import Amount

    return Amount(None, samples, tokens, epochs)


def answer(question: Question) -> Prediction | PipelinePrediction:
    """Return the prediction that a question asks for; see `predict`.

    Raises
    ------
    PaleoError
        As `predict`.
    """
    network = question.network
    if (network, question.flops, question.macs).count(None) != 2:
        raise BadValue("give a network, `flops` or `macs`: exactly one of the three")
    if question.amount is not None and (network is None or question.phase != "training"):
        raise BadValue("`--samples`, `--tokens` and `--epochs` need a network and `--phase training`")
    if question.amount is None and (question.price is not None or question.price_of is not None):
        raise BadValue("`price` is for the cost of a training run: give `samples` or `tokens`")
    pipeline = find_pipeline(network) if isinstance(network, str) else None
    if network is None:
        prediction = _predict_count(question)
    elif pipeline is None:
        question.pictures.check_absent(network)
        prediction = _predict_layers(question)
    elif question.phase in PHASES_WITH_GRADIENTS:
        prediction = _predict_denoiser(pipeline, question)
    else:
        return structs.replace(_predict_pipeline(pipeline, question), facility=question.facility)
    prediction = structs.replace(prediction, facility=question.facility)
    if question.amount is None:
        return prediction
    from ..timing.budget import make_budget

    budget = make_budget(
        prediction.device,
        question.amount,
        question.price,
        price_of=question.price_of,
        sequence_tokens=prediction.workload.network.tokens,
    )
    notes = (*prediction.notes, *budget.price_notes(date.today()))
    return structs.replace(prediction, budget=budget, notes=notes)


def _predict_count(question: Question) -> Prediction:
    """Predict the time of a FLOP or MAC count on the whole board.

    A FLOP count equal to the MAC count of a shipped network gets a note, as it probably is a MAC count.
    """
    if question.calibration is not None or question.fit_batch or question.memory:
        raise BadValue(
            "`--calibration`, `--batch-size fit` and `--memory` require a network; "
            "they cannot be used with `--flops` or `--macs`"
        )
    time_model = question.time_model
    if question.ppp is None and not question.concurrent:
        time_model = time_model or "peak"
    model = find_model(time_model, ppp=question.ppp, concurrent=question.concurrent)
    if question.macs is not None:
        count = 2 * parse_quantity(question.macs, "MAC")
        notes: tuple[str, ...] = ()
    else:
        count = parse_quantity(question.flops or 0, "FLOP")
        notes = tuple(
            f"{name} has about this number of multiply-accumulates, of 2 FLOPs each: "
            f"if this is a MAC count, use `--macs {question.flops}`"
            for name in networks_with_macs(count)[:1]
        )
    workload = Workload.from_flops(
        count,
        precision=question.precision,
        batch_size=question.batch_size,
        notes=notes,
        # The remaining arguments need layers: `from_flops` rejects everything but their defaults.
        phase=question.phase,
        execution=question.execution or default_execution(question.phase),
        convention=question.convention,
        training=question.training,
        image_size=square_size(question.image_size, None),
        inputs=question.inputs,
        sequence_length=question.sequence_length,
        context=question.context,
        weights=question.weights,
    )
    return predict_workload(workload, question.machine(whole_board=True), model)


def _predict_pipeline(pipeline: Pipeline, question: Question) -> PipelinePrediction:
    """Predict pictures or videos."""
    check_others(
        pipeline,
        {
            "--phase": (question.phase, "inference"),
            "--convention": (question.convention, "flops"),
            "--sequence-length": (question.sequence_length, None),
            "--context": (question.context, None),
            "--input": (tuple(question.inputs), ()),
            "--batch-size fit": (question.fit_batch, False),
            "training": (question.training, None),
        },
    )
    return predict_pipeline(*resolve_pipeline(pipeline, question))


def _predict_denoiser(pipeline: Pipeline, question: Question) -> Prediction:
    """Predict a training step of a pipeline's denoiser."""
    structs.replace(question.pictures, frames=None, offload=None).check_absent_in_training(pipeline)
    network = denoiser_network(pipeline, question.image_size, question.pictures.frames)
    return _predict_layers(structs.replace(question, network=network, image_size=None), is_denoiser=True)


def _predict_layers(question: Question, *, is_denoiser: bool = False) -> Prediction:
    """Predict a network, with its memory if it is asked for or belongs to the phase."""
    if question.fit_batch and question.batch_size != 1:
        raise BadValue("the largest batch that fits takes the place of a number of samples")
    workload, machine, model = resolve_question(question, whole_board=question.asks_for_board)
    if is_denoiser:
        model = pipeline_model(model, machine.device, is_measured=False)
    is_forward_only = workload.phase in ("inference", "forward", "prefill")
    if is_forward_only and workload.training is None and not question.fit_batch and not question.memory:
        return predict_workload(workload, machine, model)
    from ..timing.capacity import predict_with_memory

    return predict_with_memory(workload, machine, model, fit_batch=question.fit_batch)


def check_single_device(expert_parallel: int | None, attention_data_parallel: int | None) -> None:
    """Raise BadValue if experts or attention are to be divided, which needs several devices."""
    for option, degree in (
        ("--expert-parallel", expert_parallel),
        ("--attention-data-parallel", attention_data_parallel),
    ):
        if degree not in (None, 1):
            raise BadValue(
                f"`{option} {degree}` needs several devices: give `--phase decode --tensor {degree} {option} {degree}`"
            )


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
