"""`feeding`: whether the input pipeline keeps a device busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..architectures import Network
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
from ..machines import Device, find_device
from ..reporting.document import StaticResult
from ..reporting.feeding import feeding_dict, feeding_page
from ..timing import Prediction
from ..timing.energy import with_power_limit
from ..units import element_bytes, parse_quantity
from .arguments import InputShapes, Paths, to_paths
from .prediction import predict_pass
from .question import Question
from .resolve import resolve_network

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.store import Calibration


def feeding(
    network: str | Network | nn.Module,
    *,
    gpu: str | Device,
    storage: str = "nvme",
    random_reads: float | str | None = None,
    access: str = "sequential",
    sample_bytes: float | str = DEFAULT_SAMPLE_BYTES,
    workers: int = 8,
    decode_rate: float | None = None,
    decoded: bool = False,
    decoded_bytes: float | str | None = None,
    host_link: str | None = None,
    pinned: bool = True,
    prefetch: bool = True,
    precision: str = "fp32",
    batch_size: int = 32,
    phase: str = "training",
    devices: int = 1,
    time_model: str | None = None,
    ppp: float | None = None,
    calibration: str | Calibration | None = None,
    clock: str | None = None,
    power_limit: float | str | None = None,
    image_size: int | None = None,
    inputs: InputShapes = (),
    hardware_files: Paths = (),
) -> StaticResult:
    """Predict whether storage, decoding and the host link can keep a device busy, and which change would help most.

    Parameters
    ----------
    network, gpu, precision, phase, time_model, ppp, calibration, clock, power_limit, image_size, inputs, hardware_files
        As for `paleo_lite.predict`.
    storage : str
        ``hdd``, ``ssd``, ``nvme``, any other link, a rate such as ``"500 MB/s"``, or ``memory``.
    random_reads : float or str, optional
        Small random reads per second of the storage, such as ``"90k"``.
    access : {"sequential", "random"}
        Access pattern of the samples.
    sample_bytes, decoded_bytes : float or str
        Size of one sample in storage and after decoding. By default a decoded sample has the elements of the network
        input in the precision.
    workers : int
        Decoding workers, one CPU core each.
    decode_rate : float, optional
        Samples per second and worker; by default 100.
    decoded : bool
        Whether samples are stored decoded and augmented.
    host_link : str, optional
        Link or rate of host-to-device copies; by default the device's own link.
    pinned : bool
        Whether copies use pinned memory.
    prefetch : bool
        Whether batches are loaded and copied ahead, while the device computes.
    batch_size : int
        Samples per step.
    devices : int
        Number of devices of this kind that share the storage and the workers.

    Returns
    -------
    StaticResult
        With ``throughput_per_s``, ``utilisation``, ``stages``, ``remedies`` and ``plan`` in its `to_dict`.

    Raises
    ------
    PaleoError
        For an unknown name or an invalid value.
    """
    if decoded and decode_rate is not None:
        raise BadValue("`--decode-rate` cannot be combined with `--decoded`: decoded samples need no decoding")
    device = find_device(gpu, to_paths(hardware_files))
    if power_limit is not None:
        device = with_power_limit(device, power_limit)
    resolved = resolve_network(network, image_size, inputs)
    prediction = predict_pass(
        Question(
            resolved,
            gpu=device,
            precision=precision,
            batch_size=batch_size,
            phase=phase,
            time_model=time_model,
            ppp=ppp,
            calibration=calibration,
            clock=clock,
        )
    )
    if host_link is None:
        link, link_bytes_per_s = find_host_link(device)
    else:
        link, link_bytes_per_s = find_link(host_link)
    if decoded_bytes is None:
        copied_bytes: float = resolved.input_elements * element_bytes(precision)
    else:
        copied_bytes = parse_quantity(decoded_bytes, "B")
    random_reads_per_s = None if random_reads is None else parse_quantity(random_reads, "IOPS")
    pipeline = InputPipeline(
        device_per_s=_throughput(prediction),
        batch_size=batch_size,
        sample_bytes=parse_quantity(sample_bytes, "B"),
        decoded_bytes=copied_bytes,
        store=find_store(storage, random_reads_per_s),
        access=access,
        workers=workers,
        decode_per_worker_s=None if decoded else decode_rate or DECODE_PER_WORKER_S,
        link=link,
        link_bytes_per_s=link_bytes_per_s,
        pinned=pinned,
        prefetch=prefetch,
        devices=devices,
    )
    result = predict_throughput(pipeline)
    nvme = find_store("nvme")
    assert nvme is not None
    separate_links = tuple(find_link(name) for name in SEPARATE_NODES)
    upgrades = Upgrades(
        nvme,
        (separate_links[0], separate_links[1]),
        float(resolved.input_elements),
        _rate_and_bytes_in_fp16(resolved, device, precision, batch_size, phase, time_model, ppp, clock),
    )
    subject = {
        "network": resolved.name,
        "gpu": device.id,
        "precision": precision,
        "phase": phase,
        "storage": storage,
        "host_link": link,
        "time_model": prediction.model.name,
    }
    rules = check_rules(result)
    remedies = evaluate_remedies(result, upgrades)
    plan = plan_remedies(result, upgrades)
    notes = (*describe_sources(pipeline, decode_rate is not None), *prediction.notes)
    if resolved.tokens is not None and pipeline.sample_bytes == parse_quantity(DEFAULT_SAMPLE_BYTES, "B"):
        notes = (
            f"a sample is stored as an image of {DEFAULT_SAMPLE_BYTES}B that has to be decoded: for {resolved.name}, "
            "which reads tokens, give `--sample-bytes` and `--decode-rate`",
            *notes,
        )
    number = f"{devices} x " if devices > 1 else ""
    description = f"{resolved.name} on {number}{device.name}, {precision} {phase}"
    data = feeding_dict(result, subject, prediction, rules, remedies, plan)
    page = feeding_page(result, description, prediction, rules, remedies, plan, notes)
    return StaticResult({**data, "notes": list(notes)}, page)


def _throughput(prediction: Prediction) -> float:
    """Return the samples per second of the device."""
    if prediction.throughput_per_s is None:
        raise BadValue(f"the predicted time of {prediction.network} is 0, so there is nothing to feed")
    return prediction.throughput_per_s


def _rate_and_bytes_in_fp16(
    network: Network,
    device: Device,
    precision: str,
    batch_size: int,
    phase: str,
    time_model: str | None,
    ppp: float | None,
    clock: str | None,
) -> tuple[float, float] | None:
    """Return samples per second and bytes per sample in fp16, or None if that is no improvement or not supported."""
    if precision not in ("fp32", "tf32", "fp64"):
        return None
    try:
        prediction = predict_pass(
            Question(
                network,
                gpu=device,
                precision="fp16",
                batch_size=batch_size,
                phase=phase,
                time_model=time_model,
                ppp=ppp,
                clock=clock,
            )
        )
    except UnknownPrecision:
        return None
    return _throughput(prediction), network.input_elements * element_bytes("fp16")
