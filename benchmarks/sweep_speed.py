"""Predictions of whole networks per second: the vectorized sweep on all cores, and a loop over objects on one core.

The loop has the structure of the released PALEO: a Python object for each layer, with formulas evaluated layer by layer
for every prediction. It uses the same counting rules; the benchmark first checks that it returns the same seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from math import isclose

import numpy as np

from paleo_lite.calibration.choose import choose_model
from paleo_lite.counting import count
from paleo_lite.counting.kinds import MATRIX_KINDS, class_of, count_layer
from paleo_lite.counting.kinds.products import MATRIX_CLASSES
from paleo_lite.counting.layer import Layer, Op, trace_flow
from paleo_lite.errors import PaleoError
from paleo_lite.executor import count_cores
from paleo_lite.machines import Device, Machine, find_device, list_devices
from paleo_lite.sweeps.cases import build_stack, resolve_network
from paleo_lite.sweeps.space import SizedNetwork
from paleo_lite.timing import RooflineModel, TimeModel, Workload, predict
from paleo_lite.timing.broadcast import keep_freed_memory
from paleo_lite.timing.calibrated import POWER, CalibratedModel, rates_of
from paleo_lite.timing.features import CLASSES, padding_and_tiles
from paleo_lite.timing.parameters import NAMES
from paleo_lite.timing.terms import RequestedOutputs
from paleo_lite.units import PRECISION_BYTES

from .turns import Turns, take_turns

NETWORKS = ("alexnet", "vgg16", "resnet50", "inception_v3")
BATCHES = 250
PREDICTIONS, LOOPED = 10**6, 20
Task = tuple[tuple[str, ...], str, str, str, int, int, bool]


@lru_cache(None)
def model_of(device: str, precision: str, name: str) -> TimeModel | None:
    """Return the named model of a device, or None if there is none."""
    machine_device = find_device(device)
    try:
        machine_device.find_peak(precision)
        return RooflineModel() if name == "roofline" else choose_model(machine_device, precision, "calibrated")
    except PaleoError:
        return None


@lru_cache(None)
def device_of(name: str) -> Device:
    return find_device(name)


@lru_cache(2)
def laid(networks: tuple[str, ...], precision: str, first: int, last: int):
    stacked = build_stack(tuple((SizedNetwork(name), "inference") for name in networks), precision, "sgd")
    return stacked.at_batch_sizes(np.arange(first, last))


def predict_blocks(tasks: list[Task]) -> int:
    """Compute several blocks of predictions in one process task; return the number of predictions."""
    predicted = 0
    for networks, device, precision, name, first, last, interval in tasks:
        model = model_of(device, precision, name)
        assert model is not None
        stacked = laid(networks, precision, first, last)
        predicted += model.evaluate_many(
            stacked, Machine(device_of(device)), precision, RequestedOutputs(interval=interval)
        ).time_s.size
    return predicted


def tasks_of(size: int, platforms: list[tuple[str, str]], name: str, interval: bool) -> Iterator[Task]:
    """Return tasks with about `size` distinct predictions: batch sizes, then platforms, then further batch sizes."""
    each = len(NETWORKS) * BATCHES
    batch, remaining = 1, size
    while remaining > 0:
        for device, precision in platforms:
            if remaining <= 0:
                return
            yield NETWORKS, device, precision, name, batch, batch + BATCHES, interval
            remaining -= each
        batch += BATCHES


def start(platforms: list[tuple[str, str]]) -> None:
    """Initialize a worker process."""
    keep_freed_memory()
    for device, precision in platforms:
        for name in ("roofline", "calibrated"):
            model_of(device, precision, name)
        device_of(device)
    for precision in {precision for _, precision in platforms}:
        laid(NETWORKS, precision, 1, 2)


class LayerObject:
    """A layer as in PALEO: an object with methods that return FLOPs, bytes and time at one batch size."""

    def __init__(self, op: Op, batch_size: int) -> None:
        self.op, self.batch_size, self.cost = op, batch_size, count_layer(op)

    def flops(self) -> int:
        return self.cost.inference.flops

    def bytes(self, number_bytes: int) -> int:
        phase = self.cost.inference
        return (phase.reads + phase.writes) * number_bytes + phase.index_bytes

    def roofline_s(self, peaks: tuple[float, float], bandwidth_bytes_per_s: float, number_bytes: int) -> float:
        peak = peaks[0] if self.op.layer.kind in MATRIX_KINDS else peaks[1]
        return max(self.flops() / peak, self.bytes(number_bytes) / bandwidth_bytes_per_s)

    def calibrated_s(self, rates, values: dict[str, float], precision: str) -> float:
        layer, name = self.op.layer, class_of(self.op.layer)
        padding, tiles = padding_and_tiles(layer, "inference", self.batch_size)
        matrix = CLASSES.index(name) < len(MATRIX_CLASSES)
        per_s = rates.vector_per_s
        if matrix:
            tiles /= rates.multiprocessors
            half = values["half_3x3" if name == "conv_3x3" else "half"]
            per_s = rates.matrix_per_s * values[f"efficiency_{name}"] / (1 + half / tiles)
            per_s *= rates.convolution_fraction if name.startswith("conv") else rates.sustained_fraction
        share = values["share_matrix" if matrix else "share_other"]
        compute = self.flops() * padding / per_s
        memory = self.bytes(PRECISION_BYTES[precision]) / (rates.bandwidth_bytes_per_s * share)
        floor = self.cost.inference.kernels * values["floor_s"]
        return float((compute**POWER + memory**POWER + floor**POWER) ** (1 / POWER))


def ops_of(layers: Sequence[Layer], batch_size: int) -> list[Op]:
    """Return the operations of layers as input of counting rules."""
    return [Op(layer, batch_size, *seen) for layer, seen in zip(layers, trace_flow(layers).op_arguments)]


def loop_roofline(network: str, device: Device, precision: str, batch_size: int, model: TimeModel) -> float:
    """Predict with the roofline model, one object at a time."""
    layers = resolve_network(SizedNetwork(network)).layers
    objects = [LayerObject(op, batch_size) for op in ops_of(layers, batch_size)]
    machine = Machine(device)
    peaks = machine.peak(precision).per_s, machine.vector_peak(precision).per_s
    rates = peaks, device.bandwidth_bytes_per_s, PRECISION_BYTES[precision]
    return sum(layer.roofline_s(*rates) for layer in objects)


def loop_calibrated(network: str, device: Device, precision: str, batch_size: int, model: CalibratedModel) -> float:
    """Predict with the calibrated model, one object at a time, without an interval."""
    layers = resolve_network(SizedNetwork(network)).layers
    rates, values = rates_of(Machine(device), precision), dict(zip(NAMES, np.exp(model.theta).tolist()))
    objects = [LayerObject(op, batch_size) for op in ops_of(layers, batch_size)]
    device_s = sum(layer.calibrated_s(rates, values, precision) for layer in objects)
    host_s = values["overhead_s"] * sum(layer.cost.inference.kernels for layer in objects)
    return float(np.hypot(device_s, host_s) + values["step_s"])


@lru_cache(None)
def work_of(network: str):
    return count(resolve_network(SizedNetwork(network)).layers, "fp32")


def check_loop(loop, network: str, name: str) -> None:
    """Check that the loop returns the same seconds as `predict`."""
    device = find_device("v100-sxm2")
    model = model_of(device.id, "fp32", name)
    for batch_size in (1, 7):
        workload = Workload(resolve_network(SizedNetwork(network)), "fp32", batch_size).with_work(work_of(network))
        prediction = predict(workload, Machine(device), model)
        assert isclose(loop(network, device, "fp32", batch_size, model), prediction.time_s, rel_tol=1e-12)


def measure(repeats: int) -> list[Turns]:
    """Return a table for four networks on every device in every precision, with 10^6 predictions per turn."""
    platforms = sorted(
        [
            (device.id, precision)
            for device in list_devices()
            for precision in device.precisions
            if model_of(device.id, precision, "calibrated") is not None
        ],
        key=lambda platform: PRECISION_BYTES[platform[1]],  # counts are the same for all precisions of one size
    )
    loops = {"roofline": loop_roofline, "calibrated": loop_calibrated}
    for name, loop in loops.items():
        for network in NETWORKS:
            check_loop(loop, network, name)
    device = find_device("v100-sxm2")

    def looped(name: str) -> None:
        for network in NETWORKS:
            for batch_size in range(1, 1 + LOOPED):
                loops[name](network, device, "fp32", batch_size, model_of(device.id, "fp32", name))

    with ProcessPoolExecutor(count_cores(), initializer=start, initargs=(platforms,)) as pool:

        def swept(name: str, interval: bool) -> None:
            tasks = list(tasks_of(PREDICTIONS, platforms, name, interval))
            shares = np.array_split(np.arange(len(tasks)), 8 * count_cores())
            predicted = sum(pool.map(predict_blocks, [[tasks[index] for index in share] for share in shares]))
            assert predicted >= PREDICTIONS

        contestants = {
            "calibrated, with intervals": lambda: swept("calibrated", True),
            "calibrated": lambda: swept("calibrated", False),
            "roofline": lambda: swept("roofline", False),
            "calibrated, a loop over objects": lambda: looped("calibrated"),
            "roofline, a loop over objects": lambda: looped("roofline"),
        }
        seconds = take_turns(contestants, repeats)
    amount = {name: LOOPED * len(NETWORKS) if "loop" in name else PREDICTIONS for name in contestants}
    what = f"{', '.join(NETWORKS)}: predictions a second, on {count_cores()} cores, the loop on one"
    return [Turns(what, seconds, amount, unit="/s", wanted={"calibrated, a loop over objects": 1000})]
