"""Forecasts of networks of which a part is in the memory of the host, beside speeds that people published.

Run ``python -m validation.local.offloaded``. Nothing was fitted to these rows. `host` says whether the source names the
processor of the host.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from paleo_lite.architectures import find_network
from paleo_lite.local import LLAMA_CPP
from paleo_lite.local.contents import read_contents
from paleo_lite.local.engines import LOCAL_ENGINES
from paleo_lite.local.placement import place
from paleo_lite.local.predict import OFFLOAD_DEVIATION, device_token_s, host_token_s
from paleo_lite.local.step import DEVIATIONS_AT_90, local_constants
from paleo_lite.machines import find_device

PUBLISHED = Path(__file__).parent / "offloaded.csv"


def predict_rate(line: dict[str, str]) -> float:
    """Return the forecast of tokens per second of a row."""
    device, cpu = find_device(line["device"]), find_device(line["cpu"])
    contents = read_contents(find_network(line["network"]), line["weights"])
    placed = place(contents, int(line["gpu_layers"]), int(line["cpu_expert_blocks"]))
    backends = local_constants().backends
    own = backends[LOCAL_ENGINES[LLAMA_CPP].backend_of(device, line["backend"])]
    context = int(line["context"]) + int(line["tokens"]) / 2
    device_s = device_token_s(contents, placed, device, own, context)
    return 1 / (device_s + host_token_s(contents, placed, cpu, backends["cpu"], context))


def main() -> None:
    """Print a row per published speed, and the mean errors of those with named and assumed hosts."""
    with PUBLISHED.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    ratios: dict[bool, list[float]] = {}
    for line in lines:
        rate, measured = predict_rate(line), float(line["tokens_per_s"])
        is_named = line["host"].startswith("named")
        ratios.setdefault(is_named, []).append(rate / measured)
        print(
            f"{line['network']:16s} {line['device']:15s} {line['cpu']:16s} {measured:6.1f} {rate:6.1f}  {line['host']}"
        )
    factor = np.exp(DEVIATIONS_AT_90 * OFFLOAD_DEVIATION)
    for is_named, own in ratios.items():
        errors = np.abs(np.array(own) - 1)
        inside = np.mean(np.abs(np.log(own)) <= np.log(factor))
        host, within = "named" if is_named else "assumed", f"inside a factor of {factor:.2f}: {inside:.0%}"
        print(f"host {host}: {len(own)} rows, mean error {errors.mean():.0%}, {within}")


if __name__ == "__main__":
    main()
