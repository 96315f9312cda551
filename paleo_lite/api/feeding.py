"""Evaluation of `feeding`: the throughput of an input pipeline, and the changes that would help."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ..architectures import Network
from ..architectures.network import SequenceOptions
from ..errors import BadValue, UnknownPrecision
from ..input_pipeline.feeding import (
    DECODE_PER_WORKER_S,
    DEFAULT_SAMPLE_BYTES,
    SEPARATE_NODES,
    InputPipeline,
    describe_sources,
    find_host_link,
    find_link,
    find_store,
    predict_throughput,
)
from ..input_pipeline.remedies import Upgrades, check_rules, evaluate_remedies, plan_remedies
from ..machines import Device
from ..questions.compare import find_asked_device
from ..questions.feeding import Feeding
from ..questions.kind import make_function
from ..questions.records import PPP_OVERLAP, model_name
from ..reporting.document import StaticResult
from ..reporting.feeding import feeding_dict, feeding_page
from ..timing import Prediction
from ..units import element_bytes, parse_quantity
from .prediction import predict_pass
from .question import Question
from .resolve import resolve_network, square_size


def answer(question: Feeding) -> StaticResult:
    """Return the throughput of the input pipeline of a device, its stages, and what would help.

    Raise PaleoError for an unknown name or an invalid value.
    """
    if question.decoded and question.decode_rate is not None:
        raise BadValue("`--decode-rate` cannot be combined with `--decoded`: decoded samples need no decoding")
    device = find_asked_device(question)
    image_size = square_size(question.image_size, question.network)
    length: Any = question.sequence_length  # a single one
    network = resolve_network(question.network, image_size, question.inputs, SequenceOptions(length))
    prediction = predict_pass(_ask(question, network, device))
    if question.host_link is None:
        link, link_bytes_per_s = find_host_link(device)
    else:
        link, link_bytes_per_s = find_link(question.host_link)
    if question.decoded_bytes is None:
        copied_bytes: float = network.input_elements * element_bytes(question.precision)
    else:
        copied_bytes = parse_quantity(question.decoded_bytes, "B")
    random_reads_per_s = None if question.random_reads is None else parse_quantity(question.random_reads, "IOPS")
    pipeline = InputPipeline(
        device_per_s=_throughput(prediction),
        batch_size=question.batch_size,
        sample_bytes=parse_quantity(question.sample_bytes, "B"),
        decoded_bytes=copied_bytes,
        store=find_store(question.storage, random_reads_per_s),
        access=question.access,
        workers=question.workers,
        decode_per_worker_s=None if question.decoded else question.decode_rate or DECODE_PER_WORKER_S,
        link=link,
        link_bytes_per_s=link_bytes_per_s,
        pinned=not question.no_pinned,
        prefetch=not question.no_prefetch,
        devices=question.devices,
    )
    result = predict_throughput(pipeline)
    nvme = find_store("nvme")
    assert nvme is not None
    separate_links = tuple(find_link(name) for name in SEPARATE_NODES)
    upgrades = Upgrades(
        nvme,
        (separate_links[0], separate_links[1]),
        float(network.input_elements),
        _rate_and_bytes_in_fp16(question, network, device),
    )
    subject = {
        "network": network.name,
        "gpu": device.id,
        "precision": question.precision,
        "phase": question.phase,
        "storage": question.storage,
        "host_link": link,
        "time_model": prediction.model.name,
    }
    rules = check_rules(result)
    remedies = evaluate_remedies(result, upgrades)
    plan = plan_remedies(result, upgrades)
    notes = (*describe_sources(pipeline, question.decode_rate is not None), *prediction.notes)
    if network.tokens is not None and pipeline.sample_bytes == parse_quantity(DEFAULT_SAMPLE_BYTES, "B"):
        notes = (
            f"a sample is stored as an image of {DEFAULT_SAMPLE_BYTES}B that has to be decoded: for {network.name}, "
            "which reads tokens, give `--sample-bytes` and `--decode-rate`",
            *notes,
        )
    number = f"{question.devices} x " if question.devices > 1 else ""
    description = f"{network.name} on {number}{device.name}, {question.precision} {question.phase}"
    data = feeding_dict(result, subject, prediction, rules, remedies, plan)
    page = feeding_page(result, description, prediction, rules, remedies, plan, notes)
    return StaticResult({**data, "notes": list(notes)}, page)


feeding = make_function("feeding", Feeding, answer)


def _throughput(prediction: Prediction) -> float:
    """Return the samples per second of the device."""
    if prediction.throughput_per_s is None:
        raise BadValue(f"the predicted time of {prediction.network} is 0, so there is nothing to feed")
    return prediction.throughput_per_s


def _ask(question: Feeding, network: Network, device: Device) -> Question:
    """Return the question of the step that is fed."""
    calibration: Any = question.calibration
    return Question(
        network,
        gpu=device,
        power_limit=question.power_limit,
        clock=question.clock,
        unit=question.unit,
        precision=question.precision,
        batch_size=question.batch_size,
        phase=question.phase,
        time_model=model_name(question.time_model),
        ppp=question.ppp,
        concurrent=question.time_model == PPP_OVERLAP,
        calibration=calibration,
    )


def _rate_and_bytes_in_fp16(question: Feeding, network: Network, device: Device) -> tuple[float, float] | None:
    """Return samples per second and bytes per sample in fp16, or None if that is no improvement or not supported."""
    if question.precision not in ("fp32", "tf32", "fp64"):
        return None
    asked = structs.replace(_ask(question, network, device), precision="fp16", calibration=None)
    try:
        prediction = predict_pass(asked)
    except UnknownPrecision:
        return None
    return _throughput(prediction), network.input_elements * element_bytes("fp16")
