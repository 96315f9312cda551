"""What each of PALEO's simplifications and slips is worth: ``python benchmarks/paleo_defects.py`` prints the tables.

One training step (forward, backward, update, all-reduce) as the first release computes it, and again with one thing
put right, everything else left as it is; and the hours of the hybrid AlexNet on eight GPUs, likewise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from paleo_lite.counting import count
from paleo_lite.networks import find_network
from paleo_lite.paleo.layers import parameter_bytes
from paleo_lite.paleo.model_parallel import hybrid_ms
from paleo_lite.paleo.scale import exchange_ms, paleo_link, paleo_scale
from paleo_lite.paleo.simulator import DEVICES, find_paleo_device, paleo_times, transfer_ms, update_ms

DECIMAL = 1e9 / 2**30
"""The bandwidth, in what PALEO takes for GB/s, that moves as many bytes as the data sheet says."""


class Case(NamedTuple):
    """A step."""

    network: str
    device: str
    batch_size: int
    workers: int
    ppp: float = 0.62
    ppp_comm: float = 0.72
    link: str = "ethernet20"


def step_ms(
    case: Case, bandwidth: float = 1.0, algorithm: str = "gemm", overlap: bool = False, ppp_update: float = 1.0
) -> float:
    """The step as PALEO has it, but for what the arguments say."""
    layers = find_network(case.network).layers
    device = find_paleo_device(case.device)
    device = msgspec.structs.replace(device, bandwidth_gb_per_s=device.bandwidth_gb_per_s * bandwidth)
    times = paleo_times(layers, device, [case.batch_size], case.ppp, revision="first", algorithm=algorithm)
    size = parameter_bytes(layers)
    passes = sum(float(times.total_ms(direction, overlap)[0]) for direction in ("forward", "backward"))
    exchange = exchange_ms("tree", size, case.workers, paleo_link(case.link), case.ppp_comm)
    return passes + update_ms(size, device) / ppp_update + exchange


def over_counted_ms(case: Case) -> float:
    """Arithmetic of the data gradients beyond the forward pass's FLOPs of the same layers."""
    layers, device = find_network(case.network).layers, find_paleo_device(case.device)
    times = paleo_times(layers, device, [case.batch_size], case.ppp, revision="first")
    counted = sum(time for time, layer in zip(times.compute_ms[0, 1], layers) if layer.kind == "conv2d")
    flops = 2 * count(layers).column("macs", "backward_data", case.batch_size).sum()
    return float(counted - flops / 1e6 / device.peak_gflops / case.ppp)


def free_layers_ms(case: Case) -> float:
    """Activations, batch norm, concat and softmax: their bytes, forward and backward, as PALEO would time them."""
    layers, device = find_network(case.network).layers, find_paleo_device(case.device)
    free = [layer.kind not in ("conv2d", "linear", "dropout", "max_pool", "avg_pool") for layer in layers]
    moved = count(layers).column("bytes", "forward+backward", case.batch_size)[:, free].sum()
    return float(moved / 2**30 / device.bandwidth_gb_per_s * 1e3 / case.ppp)


CORRECTIONS: dict[str, Callable[[Case], float]] = {
    "data gradients with the forward pass's FLOPs": lambda case: step_ms(case) - over_counted_ms(case),
    "bytes in GB, not GiB, under a GB/s figure": lambda case: step_ms(case, bandwidth=DECIMAL),
    "the update at the platform's PPP": lambda case: step_ms(case, ppp_update=case.ppp),
    "activations, batch norm, concat, softmax not free": lambda case: step_ms(case) + free_layers_ms(case),
    "a layer's memory traffic behind its arithmetic": lambda case: step_ms(case, overlap=True),
    "FFT wherever it can be": lambda case: step_ms(case, algorithm="fft"),
    "the defect switched on: Winograd (3x3) at 0 ms": lambda case: step_ms(case, algorithm="winograd"),
}


def hybrid_hours() -> dict[str, float]:
    """Hybrid AlexNet on eight K20 (paleo.md's case), as released and with one thing put right."""
    workers, batch, gb_per_s, ppp_comm = 8, 128, 8.0, 0.75
    network, device = find_network("paleo_alex_v2_hybrid"), DEVICES["K20"]
    released = paleo_scale(network, "K20", "pcie2", workers=[workers], batch_size=batch, ppp=0.46, ppp_comm=ppp_comm,
                           strategy="hybrid")[0].time_s * 1e3  # fmt: skip
    fetched = hybrid_ms(network, device, workers, batch, gb_per_s, 0.46, ppp_comm, "first").fetch_ms

    def fetch(halved: bool, hidden_share: float, itself: int) -> float:
        once = transfer_ms(4 * batch * 25 * 256, gb_per_s, device.tick_ms, ppp_comm)  # pool5
        part = transfer_ms(4 * batch * 4096 // workers, gb_per_s, device.tick_ms, ppp_comm)
        across = [2, 4, 8, 16] if halved else [1, 1, 1, 1]
        concat, gather = part * (sum(across) + 3 * across[-1]), part * (3 + itself + sum(across))
        hidden = once * ppp_comm / 4 * hidden_share * (workers - 1)
        return 2 * (workers * (once + concat - hidden) + hidden + gather)

    assert abs(fetch(True, 1, 1) - fetched) < 1e-9 * fetched
    split = [layer for layer in network.layers if layer.attributes.get("model_parallel")]
    spared = update_ms(parameter_bytes(split), device) * (1 - 1 / workers)
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
