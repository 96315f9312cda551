"""From work and a device to a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from ..counting import PHASES, Work
from ..counting.work import check_batch_size
from ..errors import BadValue, UnknownName
from ..hardware import Device, PeakRate
from ..networks import Network
from .models import PeakModel, TimeModel
from .prediction import Prediction

if TYPE_CHECKING:
    from .fitted import CalibratedModel


def predict_work(
    network: Network,
    work: Work,
    device: Device,
    precision: str,
    model: TimeModel,
    *,
    batch_size: int = 1,
    phase: str = "inference",
    clock: str | None = None,
    unit: str | None = None,
) -> Prediction:
    """Time a network's work on a device.

    Multiply-accumulates are held against the fastest unit that does them in this precision (tensor cores where the
    device has them), all other arithmetic against the vector units; see `vector_peak`.

    Parameters
    ----------
    network : Network
    work : Work
        Counted from its layers for this precision.
    device : Device
    precision : str
    model : TimeModel
    batch_size : int
    phase : {"inference", "forward", "backward", "training"}
    clock : {"base", "boost"}, optional
        Without it the device's default.
    unit : {"vector", "tensor"}, optional
        Without it the fastest.

    Raises
    ------
    UnknownPrecision
        If the device has no peak for the precision, unit or clock.
    UnsupportedPhase
        If the work's convention does not count the phase.
    BadValue, UnknownName
        If batch size or phase are impossible.
    """
    if phase not in PHASES:
        raise UnknownName("phase", phase, PHASES)
    peak = device.find_peak(precision, unit, clock)
    vector = vector_peak(device, precision, clock)
    counts = work.counts_by_pass(phase, batch_size)
    moved = work.column("bytes", phase, batch_size)
    multiplies = np.array([[part != "update"] for part in PHASES[phase]]) & work.matrix
    rates = np.where(multiplies, peak.per_s, vector.per_s)
    compute_s, memory_s = counts / rates, moved / device.bandwidth_bytes_per_s
    notes = [*network.notes, *getattr(model, "notes", ()), *_notes(device, peak, vector, work)]
    constant_s, interval = 0.0, None
    intervals: dict[str, tuple[float, float]] = {}
    if model.name == "calibrated":
        from .fitted import QUANTILES, step_of  # with what it needs, and only then

        step, seconds = step_of(
            cast("CalibratedModel", model), network.layers, work, device, precision, phase, batch_size, clock, unit
        )
        compute_s, memory_s, times_s = seconds["compute"], seconds["memory"], seconds["time"]
        constant_s, interval = step.constant_s, step.interval()
        intervals = {f"{level:.0%}".rstrip("%"): step.interval(level) for level in QUANTILES}
        if step.waiting > 1.05:
            notes.append(
                f"the host launches kernels more slowly than the device runs them: {step.waiting:.2g} times as long"
            )
    else:
        times_s = model.time_s(compute_s, memory_s)
    return Prediction(
        network=network.name,
        device=device,
        precision=precision,
        phase=phase,
        batch_size=batch_size,
        model=model,
        convention=work.convention.name,
        peak=peak,
        vector_peak=vector,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        names=work.names,
        kinds=work.kinds,
        passes=PHASES[phase],
        counts_by_pass=counts,
        macs_by_pass=work.column("macs", phase, batch_size),
        bytes_by_pass=moved,
        compute_s=compute_s,
        memory_s=memory_s,
        times_s=times_s,
        matrix=work.matrix,
        counted=work.counted,
        parameters=network.parameters,
        constant_s=constant_s,
        interval=interval,
        intervals=intervals,
        notes=tuple(notes),
        execution=work.execution,
        kernels=int(work.column("kernels", phase, batch_size).sum()),
        carrier=work.carrier,
        layers=network.layers,
    )


def predict_flops(
    flops: float,
    device: Device,
    precision: str,
    model: TimeModel | None = None,
    *,
    batch_size: int = 1,
    clock: str | None = None,
    unit: str | None = None,
) -> Prediction:
    """Time a bare FLOP count for one sample, as one would on paper: FLOPs / peak (/ PPP).

    Raises
    ------
    BadValue
        If the count is not above 0, or the model needs bytes, which a FLOP count does not have.
    UnknownPrecision
        If the device has no such peak.
    """
    check_batch_size(batch_size)
    if not (np.isfinite(flops) and flops >= 1 and flops * batch_size < 2.0**62):
        raise BadValue(f"the FLOP count must be a number of 1 or more, not {flops!r}")
    model = model or PeakModel()
    if model.name not in ("peak", "ppp"):
        raise BadValue(f"the {model.name} model needs the bytes of a network: a bare FLOP count takes peak or ppp")
    peak = device.find_peak(precision, unit, clock)
    counts = np.array([[int(flops) * batch_size]], dtype=np.int64)
    compute_s = counts / peak.per_s
    nothing = np.zeros((1, 1), dtype=np.int64)
    return Prediction(
        network=f"{int(flops)} FLOPs",
        device=device,
        precision=precision,
        phase="inference",
        batch_size=batch_size,
        model=model,
        convention="given",
        peak=peak,
        vector_peak=peak,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        names=(),
        kinds=(),
        passes=("inference",),
        counts_by_pass=counts,
        macs_by_pass=nothing,
        bytes_by_pass=nothing,
        compute_s=compute_s,
        memory_s=np.zeros((1, 1)),
        times_s=model.time_s(compute_s, np.zeros((1, 1))),
        matrix=np.ones(1, dtype=bool),
        counted=np.ones(1, dtype=bool),
        parameters=None,
        has_bytes=False,
        notes=tuple(_device_notes(device, peak)),
    )


def vector_peak(device: Device, precision: str, clock: str | None = None) -> PeakRate:
    """The peak for arithmetic that is no multiply-accumulate.

    Frameworks compute elementwise work on numbers narrower than fp32 in fp32 (PyTorch's ``opmath_t``).

    Raises
    ------
    UnknownPrecision
        If the device has no such vector peak.
    """
    return device.find_peak("fp64" if precision == "fp64" else "fp32", "vector", clock)


def _notes(device: Device, peak: PeakRate, vector: PeakRate, work: Work) -> list[str]:
    notes = _device_notes(device, peak)
    if work.convention.unit != "FLOP":  # a convention in FLOPs goes with the peak
        notes.append(
            f"the {work.convention.name} convention counts a multiply-accumulate as 1, the peak counts it as 2: "
            "compute times come out about half as long as they should"
        )
    if work.unknown:
        notes.append(f"not counted, no rule for: {', '.join(work.unknown)}")
    if (vector.peak.precision, vector.peak.unit) != (peak.peak.precision, peak.peak.unit):
        notes.append(f"all but convolution, linear, matmul and attention are held against the {vector.describe()}")
    return notes


def _device_notes(device: Device, peak: PeakRate) -> list[str]:
    notes = []
    if device.parts is not None:
        notes.append(
            f"{device.name} is {device.parts.count} devices on one {device.scope}; a program that uses one of them "
            f"gets {device.parts.device}"
        )
    if peak.peak.unverified:
        notes.append(f"the {peak.describe()} could not be checked against a primary source")
    return notes
