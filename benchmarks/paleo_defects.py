"""Effect of each of PALEO's simplifications and errors: ``python benchmarks/paleo_defects.py`` prints the tables.

A training step (forward, backward, update, all-reduce) and the hours of the hybrid AlexNet on eight GPUs are computed
as in the first release, and again with a single simplification or error corrected.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from paleo_lite.architectures import find_network
from paleo_lite.counting import count
from paleo_lite.paleo.layers import parameter_bytes
from paleo_lite.paleo.scale import activations_ms, divide, paleo_scale
from paleo_lite.paleo.simulator import Simulator, make_simulator

DECIMAL = 1e9 / 2**30
"""The bandwidth, in what PALEO takes for GB/s, that moves as many bytes as the data sheet says."""


class Case(NamedTuple):
    """A training step."""

    network: str
    device: str
    batch_size: int
    workers: int
    ppp: float = 0.62
    ppp_comm: float = 0.72
    link: str = "ethernet20"

    def simulator(self, **options: Any) -> Simulator:
        """Return the simulator of the first release for this machine."""
        return make_simulator(self.device, self.link, ppp=self.ppp, ppp_comm=self.ppp_comm, **options)


def step_ms(case: Case, bandwidth: float = 1.0, ppp_update: float = 1.0, **options: Any) -> float:
    """Return the milliseconds of a step as PALEO computes it, with the corrections given by the arguments."""
    layers, simulator = find_network(case.network).layers, case.simulator(**options)
    device = simulator.device
    device = msgspec.structs.replace(device, bandwidth_gb_per_s=device.bandwidth_gb_per_s * bandwidth)
    simulator = msgspec.structs.replace(simulator, device=device)
    size_bytes = parameter_bytes(layers)
    passes = float(simulator.times(layers, [case.batch_size]).total_ms(simulator.concurrent)[0])
    return passes + device.update_ms(size_bytes) / ppp_update + simulator.exchange_ms("tree", size_bytes, case.workers)


def over_counted_ms(case: Case) -> float:
    """Return the extra milliseconds of the data gradients over the forward pass's FLOPs of the same layers."""
    layers, simulator = find_network(case.network).layers, case.simulator()
    gradients = simulator.times(layers, [case.batch_size]).compute_ms[1, :, 0]
    counted = sum(time for time, layer in zip(gradients, layers) if layer.kind == "conv2d")
    flops = 2 * count(layers).column("macs", "backward_data", case.batch_size).sum()
    return float(counted - simulator.device.compute_ms(flops, case.ppp))


def free_layers_ms(case: Case) -> float:
    """Return the milliseconds of the memory traffic of activations, batch norms, concatenations and softmax."""
    layers, device = find_network(case.network).layers, case.simulator().device
    free = [layer.kind not in ("conv2d", "linear", "dropout", "max_pool", "avg_pool") for layer in layers]
    moved_bytes = count(layers).column("bytes", "forward+backward", case.batch_size)[:, free].sum()
    return float(device.transfer_ms(moved_bytes, case.ppp))


CORRECTIONS: dict[str, Callable[[Case], float]] = {
    "data gradients with the forward pass's FLOPs": lambda case: step_ms(case) - over_counted_ms(case),
    "bytes in GB, not GiB, under a GB/s figure": lambda case: step_ms(case, bandwidth=DECIMAL),
    "the update at the platform's PPP": lambda case: step_ms(case, ppp_update=case.ppp),
    "activations, batch norm, concat, softmax not free": lambda case: step_ms(case) + free_layers_ms(case),
    "a layer's memory traffic behind its arithmetic": lambda case: step_ms(case, concurrent=True),
    "FFT wherever it can be": lambda case: step_ms(case, algorithm="fft"),
    "the defect switched on: Winograd (3x3) at 0 ms": lambda case: step_ms(case, algorithm="winograd"),
}


def hybrid_hours() -> dict[str, float]:
    """Return the hours of the hybrid AlexNet on eight K20 (the case of paleo.md), released and corrected."""
    workers, batch = 8, 128
    network = find_network("paleo_alex_v2_hybrid")
    simulator = make_simulator("K20", "pcie2", ppp=0.46, ppp_comm=0.75)
    device, ppp_comm = simulator.device, simulator.ppp_comm
    (row,) = paleo_scale(network, simulator, workers=[workers], batch_size=batch, strategy="hybrid")
    _, split = divide(network, workers)
    released, fetched = row.time_s * 1e3, activations_ms(simulator, split, workers, batch)

    def transfer_ms(elements: int) -> float:
        return float(device.transfer_ms(4 * batch * elements, ppp_comm, simulator.link.bandwidth_bytes_per_s / 1e9))

    def fetch(halved: bool, hidden_share: float, itself: int) -> float:
        once = transfer_ms(25 * 256)  # pool5
        part = transfer_ms(4096 // workers)
        across = [2, 4, 8, 16] if halved else [1, 1, 1, 1]
        concat, gather = part * (sum(across) + 3 * across[-1]), part * (3 + itself + sum(across))
        hidden = once * ppp_comm / 4 * hidden_share * (workers - 1)
        return 2 * (workers * (once + concat - hidden) + hidden + gather)

    assert abs(fetch(True, 1, 1) - fetched) < 1e-9 * fetched
    spared = device.update_ms(workers * parameter_bytes(split)) * (1 - 1 / workers)
    steps = {
        "as released": released,
        "the link keeps its bandwidth across the switch": released - fetched + fetch(False, 1, 1),
        "the hidden fetch in bytes, at the link's PPP": released - fetched + fetch(True, 4 / ppp_comm, 1),
        "worker 0 does not fetch from itself": released - fetched + fetch(True, 1, 0),
        "each worker updates its own part": released - spared,
    }
    return {name: step * 90 * 1.2e6 / (batch * workers) / 3.6e6 for name, step in steps.items()}


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128, help="per worker")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="TITAN_X")
    chosen = parser.parse_args()
    names = ("paleo_alex_v2", "paleo_vgg16", "paleo_inception_v3")
    cases = [Case(name, chosen.device, chosen.batch_size, chosen.workers) for name in names]
    print(f"| one thing put right | {' | '.join(name.removeprefix('paleo_') for name in names)} |")
    print("|---" * (len(cases) + 1) + "|")
    print(f"| as released | {' | '.join(f'{step_ms(case):,.1f} ms' for case in cases)} |")
    for name, corrected in CORRECTIONS.items():
        print(f"| {name} | {' | '.join(f'{corrected(case) / step_ms(case) - 1:+.1%}' for case in cases)} |")
    print("\n| hybrid AlexNet, 8 GPUs | hours |\n|---|---|")
    for name, hours in hybrid_hours().items():
        print(f"| {name} | {hours:.2f} |")


if __name__ == "__main__":
    main()
