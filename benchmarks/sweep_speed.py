"""Whole-network predictions per second: the broadcast on all cores, and against a loop over objects in the same run.

The loop is written as the released PALEO is: one Python object for every layer, its formulas evaluated layer by layer
for every prediction. It counts by the same rules and gives the same seconds, which is checked. Wanted: 1,000,000
predictions per second on two cores for roofline and calibrated, 1,000 times the loop on one, and a cost that does not
grow with the sweep. On a machine that others use too the clock says less than the seconds that the processes got:
both are printed, and the exit status goes by the latter for the rate and by the clock for the ratio.

    python benchmarks/sweep_speed.py [largest sweep, such as 1e8]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from math import isclose

import numpy as np

from paleo_lite.api import default_model
from paleo_lite.counting.kinds import MATRIX_KINDS, count_layer
from paleo_lite.counting.layer import Op, see, trace_flow
from paleo_lite.efficiency.executor import cores
from paleo_lite.errors import PaleoError
from paleo_lite.hardware import Device, Machine, find_device, list_devices
from paleo_lite.scaling.sweeps.inputs import network_of, stack_of
from paleo_lite.timing import RooflineModel, TimeModel, Workload, predict
from paleo_lite.timing.broadcast import keep_memory
from paleo_lite.timing.calibrated import NAMES, POWER
from paleo_lite.timing.classes import CLASSES, MATRIX_CLASSES, class_of
from paleo_lite.timing.features import sizes_of
from paleo_lite.timing.fitted import CalibratedModel, rates_of
from paleo_lite.timing.models import Want
from paleo_lite.units import PRECISION_BYTES

NETWORKS = ("alexnet", "vgg16", "resnet50", "inception_v3")
BATCHES = 250
WANTED_PER_S, WANTED_RATIO = 1_000_000, 1000
PALEO_PER_S = {"alexnet": 1138, "inception_v3": 126}
"""The released PALEO, forward, on one core of another machine."""

Task = tuple[tuple[str, ...], str, str, str, int, int, bool]


@lru_cache(None)
def model_of(device: str, precision: str, name: str) -> TimeModel | None:
    """A model of a device by name, None where there is none."""
    found = find_device(device)
    try:
        found.find_peak(precision)
        return RooflineModel() if name == "roofline" else default_model(found, precision, "calibrated")
    except PaleoError:
        return None


@lru_cache(None)
def device_of(name: str) -> Device:
    return find_device(name)


@lru_cache(2)
def laid(networks: tuple[str, ...], number_bytes: int, first: int, last: int):
    stacked = stack_of(tuple((name, "inference") for name in networks), number_bytes, "sgd", None)
    return stacked.at(np.arange(first, last))


def predict_block(task: Task) -> tuple[int, float]:
    """How many predictions, and the fastest of them."""
    networks, device, precision, name, first, last, interval = task
    model = model_of(device, precision, name)
    assert model is not None
    stacked = laid(networks, PRECISION_BYTES[precision], first, last)
    found = model.evaluate_many(stacked, Machine(device_of(device)), precision, Want(interval=interval))
    return found.time_s.size, float(found.time_s.min())


def predict_blocks(tasks: list[Task]) -> tuple[int, float]:
    """Several, as one piece of work for a process: how many predictions, and the seconds of a core."""
    begin = time.process_time()
    made = sum(predict_block(task)[0] for task in tasks)
    return made, time.process_time() - begin


def tasks_of(size: int, platforms: list[tuple[str, str]], name: str, interval: bool) -> Iterator[Task]:
    """About `size` distinct predictions: batch sizes first, then platforms, then further batch sizes."""
    each = len(NETWORKS) * BATCHES
    batch, left = 1, size
    while left > 0:
        for device, precision in platforms:
            if left <= 0:
                return
            yield NETWORKS, device, precision, name, batch, batch + BATCHES, interval
            left -= each
        batch += BATCHES


def start(platforms: list[tuple[str, str]]) -> None:
    """What a process looks up once."""
    keep_memory()
    for device, precision in platforms:
        for name in ("roofline", "calibrated"):
            model_of(device, precision, name)
        device_of(device)
    for size in {PRECISION_BYTES[precision] for _, precision in platforms}:
        laid(NETWORKS, size, 1, 2)


def rate(
    pool: ProcessPoolExecutor, size: int, platforms: list[tuple[str, str]], name: str, interval: bool
) -> tuple[int, float, float]:
    """Predictions made, how many per second, and how many it were if nothing else ran on the cores."""
    tasks = list(tasks_of(size, platforms, name, interval))
    shares = max(cores(), min(len(tasks) // 8, 2000))
    work = [part.tolist() for part in np.array_split(np.arange(len(tasks)), shares) if len(part)]
    begin = time.perf_counter()
    parts = list(pool.map(predict_blocks, [[tasks[index] for index in part] for part in work]))
    wall_s = time.perf_counter() - begin
    made = sum(number for number, _ in parts)
    return made, made / wall_s, made / sum(core_s for _, core_s in parts) * cores()


class LayerObject:
    """A layer as PALEO has it: an object that is asked for its time."""

    def __init__(self, op: Op) -> None:
        self.op, self.cost = op, count_layer(op)

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
        padding, tiles = sizes_of(layer, "inference", self.op.batch_size)
        matrix = CLASSES.index(name) < len(MATRIX_CLASSES)
        per_s = rates.vector_per_s
        if matrix:
            tiles /= rates.multiprocessors
            half = values["half_3x3" if name == "conv_3x3" else "half"]
            per_s = rates.matrix_per_s * values[f"efficiency_{name}"] / (1 + half / tiles)
        share = values["share_matrix" if matrix else "share_other"]
        compute = self.flops() * padding / per_s
        memory = self.bytes(PRECISION_BYTES[precision]) / (rates.bandwidth_bytes_per_s * share)
        floor = self.cost.inference.kernels * values["floor_s"]
        return float((compute**POWER + memory**POWER + floor**POWER) ** (1 / POWER))


def loop_roofline(network: str, device: Device, precision: str, batch_size: int, model: TimeModel) -> float:
    """One prediction, one object at a time."""
    layers = network_of(network).layers
    objects = [LayerObject(op) for op in see(layers, trace_flow(layers), batch_size)]
    machine = Machine(device)
    peaks = machine.peak(precision).per_s, machine.vector_peak(precision).per_s
    rates = peaks, device.bandwidth_bytes_per_s, PRECISION_BYTES[precision]
    return sum(layer.roofline_s(*rates) for layer in objects)


def loop_calibrated(network: str, device: Device, precision: str, batch_size: int, model: CalibratedModel) -> float:
    """One prediction, one object at a time; without its interval."""
    layers = network_of(network).layers
    rates, values = rates_of(Machine(device), precision), dict(zip(NAMES, np.exp(model.theta).tolist()))
    objects = [LayerObject(op) for op in see(layers, trace_flow(layers), batch_size)]
    device_s = sum(layer.calibrated_s(rates, values, precision) for layer in objects)
    host_s = values["overhead_s"] * sum(layer.cost.inference.kernels for layer in objects)
    return float((device_s**POWER + host_s**POWER) ** (1 / POWER) + values["step_s"])


def loop_rate(loop: Callable[..., float], network: str, name: str) -> float:
    """Predictions per second of a loop, which are checked against `predict`."""
    device = find_device("v100-sxm2")
    model = model_of(device.id, "fp32", name)
    work = stack_work(network)
    for batch_size in (1, 7):
        one = predict(Workload(network_of(network), "fp32", batch_size).doing(work), Machine(device), model)
        assert isclose(loop(network, device, "fp32", batch_size, model), one.time_s, rel_tol=1e-12)
    made, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < 1.0:
        loop(network, device, "fp32", made % 512 + 1, model)
        made += 1
    return made / (time.perf_counter() - begin)


@lru_cache(None)
def stack_work(network: str):
    from paleo_lite.counting import count

    return count(network_of(network).layers, "fp32")


def broadcast_rate(pool: ProcessPoolExecutor, network: str, name: str, platforms: list[tuple[str, str]]) -> float:
    """Predictions per second of all cores, without intervals, of one network in fp32."""
    blocks = [
        [
            ((network,), device, "fp32", name, first, first + 1000, False)
            for device, precision in platforms
            if precision == "fp32"
        ]
        for first in range(1, 64_000, 1000)
    ]
    begin = time.perf_counter()
    made = sum(number for number, _ in pool.map(predict_blocks, blocks))
    return made / (time.perf_counter() - begin)


def main() -> None:
    """Measure and print."""
    most = float(sys.argv[1]) if len(sys.argv) > 1 else 1e7
    platforms = sorted(
        [
            (device.id, precision)
            for device in list_devices()
            for precision in device.precisions
            if model_of(device.id, precision, "calibrated") is not None
        ],
        key=lambda platform: PRECISION_BYTES[platform[1]],  # what is counted is the same for all of one size
    )
    kinds = [
        ("roofline", False, "roofline"),
        ("calibrated", False, "calibrated"),
        ("calibrated", True, "with interval"),
    ]
    print(f"{', '.join(NETWORKS)} on {len(platforms)} pairs of device and precision; inference, {cores()} processes")
    print("per second of the clock, and in brackets if nothing else ran on the cores (by the processes' own seconds)")
    print(f"{'predictions':>14}  " + "  ".join(f"{title + ', per s':>22}" for *_, title in kinds))
    slow = []
    with ProcessPoolExecutor(cores(), initializer=start, initargs=(platforms,)) as pool:
        for _ in range(2):
            rate(pool, 10**5, platforms, "calibrated", True)
        size = 10**3
        while size <= most:
            print(f"{size:>14,}", end="", flush=True)
            for name, interval, _ in kinds:
                _, per_s, alone = rate(pool, size, platforms, name, interval)
                print(f"  {per_s:>13,.0f} ({alone / 1e6:5.2f}M)", end="", flush=True)
                if size >= 10**5 and alone < WANTED_PER_S:
                    slow.append(alone)
            print()
            size *= 10
        print(f"\n{'per s':>14}  {'model':>10}  {'loop':>10}  {'broadcast':>12}  {'ratio':>8}  {'PALEO':>8}")
        for network in NETWORKS:
            for name, loop in (("roofline", loop_roofline), ("calibrated", loop_calibrated)):
                slowly, fast = loop_rate(loop, network, name), broadcast_rate(pool, network, name, platforms)
                paleo = PALEO_PER_S.get(network, "-")
                print(
                    f"{network:>14}  {name:>10}  {slowly:>10,.0f}  {fast:>12,.0f}  {fast / slowly:>8,.0f}  {paleo:>8}"
                )
                if fast / slowly < WANTED_RATIO:
                    slow.append(fast / slowly)
    print(f"\nthe loop on one core, the broadcast on {cores()}; PALEO as released, on one core of another machine")
    sys.exit(bool(slow))


if __name__ == "__main__":
    main()
