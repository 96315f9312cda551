"""The Python face: `predict`, `layers`, `devices`, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# First of all: where typing_extensions is installed msgspec imports it, and numpy behind it takes 60 ms longer.
import numpy  # noqa: F401

from .counting import count, find_convention
from .errors import BadValue, CalibrationFailed
from .files import shipped
from .hardware import Device, find_device, list_devices
from .networks import LayerCounts, Network, count_network, find_network, network_names, trace_factory
from .timing import Prediction, TimeModel, find_model, predict_flops, predict_work
from .units import element_bytes, parse_quantity

if TYPE_CHECKING:
    from torch import nn

    from .calibration.store import Calibration


def predict(
    network: str | Network | nn.Module | None = None,
    *,
    gpu: str | Device,
    precision: str = "fp32",
    batch_size: int = 1,
    phase: str = "inference",
    time_model: str | None = None,
    ppp: float | None = None,
    overlap: bool = False,
    convention: str = "flops",
    clock: str | None = None,
    unit: str | None = None,
    image_size: int | None = None,
    inputs: Sequence[Sequence[int]] = (),
    flops: float | str | None = None,
    hardware_files: Sequence[str | Path] = (),
    calibration: str | Calibration | None = None,
) -> Prediction:
    """Predict how long a network takes on a device.

    Parameters
    ----------
    network : str, Network or nn.Module
        A shipped network's name, a descriptor's path, ``package.module:factory``, a traced network, or a module.
    gpu : str or Device
        A device's name: ``"k80"``, ``"Tesla K80"``.
    precision : {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"}
    batch_size : int
        Samples per pass.
    phase : {"inference", "forward", "backward", "training"}
    time_model : {"peak", "ppp", "roofline", "calibrated"}, optional
        Without it ``ppp`` where `ppp` is given, ``peak`` for a FLOP count, and for a network ``calibrated`` where there
        is a calibration of the device in this precision, else ``roofline``.
    ppp : float, optional
        The share of peak that the platform reaches; may exceed 1.
    overlap : bool
        For ``ppp``: memory traffic and arithmetic hide behind each other.
    convention : str
        How FLOPs are counted: ``flops``, ``macs``, ``pthflops`` or ``lu2017``.
    clock : {"base", "boost"}, optional
    unit : {"vector", "tensor"}, optional
    image_size : int, optional
        Another image size than the network's own; needs torch once.
    inputs : sequence of shapes
        For a factory or module: the shape of one sample per input, without the batch dimension.
    flops : float or str, optional
        A FLOP count per sample (``"15503M"``) in place of a network.
    hardware_files : sequence of paths
        Further hardware TOMLs.
    calibration : str or Calibration, optional
        A calibration's path or shipped name; without it the shipped one of the device and precision, if there is one.

    Returns
    -------
    Prediction
        With ``time_s``, ``throughput_per_s``, ``to_dict()``, ``to_frame()``.

    Raises
    ------
    PaleoError
        One of its classes: an unknown name, an impossible value, a precision that the device lacks, a bad file.

    Examples
    --------
    >>> import paleo_lite as pl
    >>> pl.predict("vgg16", gpu="k80", precision="fp64").time_s  # doctest: +SKIP
    """
    element_bytes(precision)
    device = find_device(gpu, [Path(file) for file in hardware_files]) if isinstance(gpu, str) else gpu
    if (network is None) == (flops is None):
        raise BadValue("a prediction takes a network or a FLOP count: one of the two")
    if flops is not None:
        if calibration is not None:
            raise BadValue("a calibration needs the layers of a network, which a bare FLOP count does not have")
        if phase != "inference" or image_size is not None or convention != "flops":
            raise BadValue("a bare FLOP count stands for inference: it has no phase, image size or convention")
        model = find_model(time_model or (None if ppp is not None or overlap else "peak"), ppp, overlap)
        count_given = parse_quantity(flops, "FLOP")
        return predict_flops(count_given, device, precision, model, batch_size=batch_size, clock=clock, unit=unit)
    assert network is not None
    model = _model(device, precision, time_model, ppp, overlap, calibration)
    found = resolve(network, image_size, inputs)
    return predict_work(
        found,
        count(found.layers, precision, convention),
        device,
        precision,
        model,
        batch_size=batch_size,
        phase=phase,
        clock=clock,
        unit=unit,
    )


def _model(
    device: Device,
    precision: str,
    time_model: str | None,
    ppp: float | None,
    overlap: bool,
    calibration: str | Calibration | None,
) -> TimeModel:
    """The time model that was asked for, or the best that there is."""
    plain = ppp is not None or overlap or time_model not in (None, "calibrated")
    if calibration is None and (plain or not (shipped("calibrations") / f"{device.id}-{precision}.toml").is_file()):
        return find_model(time_model, ppp, overlap)
    from .calibration.store import find_calibration

    if calibration is None:
        return find_calibration(f"{device.id}-{precision}").model()
    if plain:
        raise BadValue("a calibration is a time model of its own: leave --time-model, --ppp and --overlap out")
    found = find_calibration(calibration) if isinstance(calibration, str) else calibration
    if (found.device, found.precision) != (device.id, precision):
        raise CalibrationFailed(
            f"the calibration is of {found.device} in {found.precision}, it says nothing of {device.id} in {precision}"
        )
    return found.model()


def layers(
    network: str | Network | nn.Module,
    *,
    convention: str = "flops",
    phase: str = "inference",
    batch_size: int = 1,
    image_size: int | None = None,
    inputs: Sequence[Sequence[int]] = (),
    ignore: Sequence[str] = (),
) -> LayerCounts:
    """Count a network layer by layer.

    Parameters
    ----------
    network, image_size, inputs
        As for `predict`.
    convention : str
        ``flops``, ``macs``, ``pthflops`` or ``lu2017``.
    phase : str
        ``inference``, ``forward``, ``backward``, ``training``, or one pass of it.
    batch_size : int
    ignore : sequence of str
        Layer names or globs to leave out.

    Returns
    -------
    LayerCounts

    Raises
    ------
    PaleoError
        One of its classes.
    """
    find_convention(convention)
    found = resolve(network, image_size, inputs)
    return count_network(found, convention, phase=phase, batch_size=batch_size, ignore=ignore)


def resolve(network: str | Network | nn.Module, image_size: int | None, inputs: Sequence[Sequence[int]]) -> Network:
    """The network that a name, factory or module stands for."""
    shapes = [tuple(shape) for shape in inputs]
    if isinstance(network, Network):
        return network
    if not isinstance(network, str):
        from .networks.trace import trace

        if not shapes:
            raise BadValue("a module needs the shape of its inputs: inputs=[(3, 224, 224)]")
        return trace(network, *((1, *shape) for shape in shapes))
    if ":" in network:
        if image_size is not None:
            raise BadValue("the image size of a factory's module is that of its input: --input 3x320x320")
        if not shapes:
            raise BadValue(f"{network} needs the shape of its inputs: --input 3x224x224")
        return trace_factory(network, shapes)
    if shapes:
        raise BadValue("--input is for package.module:factory; a shipped network takes --image-size")
    return find_network(network, image_size)


def devices(hardware_files: Sequence[str | Path] = ()) -> list[Device]:
    """All devices that predictions know, by id."""
    return list_devices([Path(file) for file in hardware_files])


def trace(module: nn.Module, *inputs: Any, **named_inputs: Any) -> Network:
    """Trace a module on the meta device; see `paleo_lite.networks.trace.trace`.

    Raises
    ------
    MissingExtra
        If torch is not installed.
    TraceFailed
        If the module's forward fails or needs the value of a tensor.
    """
    from .networks.torch_import import import_torch

    import_torch()
    from .networks.trace import trace as trace_module

    return trace_module(module, *inputs, **named_inputs)


__all__ = ["devices", "layers", "network_names", "predict", "resolve", "trace"]
