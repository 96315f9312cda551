"""`feeding`: whether the input pipeline keeps a device busy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from msgspec import structs

from ..api.prediction import predict_pass
from ..api.question import Question, resolve_network, square_size
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
from ..reporting.document import StaticResult
from ..reporting.feeding import feeding_dict, feeding_page
from ..timing import Prediction
from ..units import element_bytes, parse_quantity
from .compare import find_asked_device
from .completion import LINK
from .kind import make_function
from .names import Names, PrecisionNames
from .option import option
from .records import (
    DEVICE_GROUP,
    NETWORK_GROUP,
    DeviceOptions,
    NetworkAsked,
    PppOptions,
    SizeOptions,
)
from .values import INTEGER, Number, Quantity

STORAGE_GROUP = "Storage"
HOST_GROUP = "Host"


@dataclass(frozen=True)
class Feeding(PppOptions, DeviceOptions, SizeOptions, NetworkAsked):
    """Predict whether storage, decoding and the host link can keep a device busy, and which change would help most."""

    compares: ClassVar[bool] = False

    storage: str = option(
        "nvme", group=STORAGE_GROUP, type=LINK, metavar="LINK|RATE",
        help="hdd, ssd, nvme, any other link, a rate such as '500 MB/s', or memory.",
    )  # fmt: skip
    random_reads: float | str | None = option(
        group=STORAGE_GROUP, type=Quantity("IOPS"), metavar="COUNT",
        help="Small random reads per second of the storage, such as 90k.",
    )  # fmt: skip
    access: str = option(
        "sequential", group=STORAGE_GROUP, type=Names("access", ".input_pipeline.feeding:ACCESSES"),
        help="Access pattern of the samples: sequential or random.",
    )  # fmt: skip
    sample_bytes: float | str = option(
        "110k", group=STORAGE_GROUP, type=Quantity("B"), metavar="SIZE", help="Size of one sample in storage."
    )
    workers: int = option(8, group=HOST_GROUP, type=INTEGER, help="Decoding workers, one CPU core each.")
    decode_rate: float | None = option(
        group=HOST_GROUP, type=Number(), metavar="RATE", help="Samples per second and worker. [default: 100]"
    )
    decoded: bool = option(False, group=STORAGE_GROUP, help="Samples are stored decoded and augmented.")
    decoded_bytes: float | str | None = option(
        group=HOST_GROUP, type=Quantity("B"), metavar="SIZE",
        help="Size of one decoded sample. [default: the elements of the network input in the precision]",
    )  # fmt: skip
    host_link: str | None = option(
        group=HOST_GROUP, type=LINK, metavar="LINK|RATE",
        help="Link or rate of host-to-device copies. [default: the device's own link]",
    )  # fmt: skip
    no_pinned: bool = option(False, group=HOST_GROUP, help="Copy from pageable memory.")
    no_prefetch: bool = option(
        False, group=HOST_GROUP, help="Load, copy and compute one after the other, without prefetching."
    )
    precision: str = option(
        "fp32", group=NETWORK_GROUP, type=PrecisionNames("precision", ".units:PRECISION_BYTES"),
        help="Precision of the arithmetic.",
    )  # fmt: skip
    batch_size: int = option(32, group=NETWORK_GROUP, type=INTEGER, help="Samples per step.")
    phase: str = option(
        "training", group=NETWORK_GROUP, type=Names("phase", ".counting:PHASES"),
        help="training is forward, backward and update; forward is the forward pass of a training step.",
    )  # fmt: skip
    devices: int = option(
        1, group=DEVICE_GROUP, type=INTEGER,
        help="Number of devices of this kind that share the storage and the workers.",
    )  # fmt: skip


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
    # The network has its sizes, and the device comes from the hardware files.
    return Question.from_options(
        question, network, gpu=device, hardware_files=(), image_size=None, sequence_length=None, inputs=()
    )


def _rate_and_bytes_in_fp16(question: Feeding, network: Network, device: Device) -> tuple[float, float] | None:
    """Return samples per second and bytes per sample in fp16, or None if that is no improvement or not supported."""
    if question.precision not in ("fp32", "tf32", "fp64"):
        return None
    fp16_question = structs.replace(_ask(question, network, device), precision="fp16", calibration=None)
    try:
        prediction = predict_pass(fp16_question)
    except UnknownPrecision:
        return None
    return _throughput(prediction), network.input_elements * element_bytes("fp16")
