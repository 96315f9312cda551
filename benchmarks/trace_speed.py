"""How long a trace takes beside torch's own counter, and how much memory.

Both count the same module, which is in memory already, on the meta device, in turns within one process; the medians are
printed. Run ``python benchmarks/trace_speed.py``; it needs the torch extra.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
import tracemalloc

from paleo_lite.networks.torch_import import import_torchvision

import_torchvision()

import torch  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from paleo_lite.networks.build import torchvision_model  # noqa: E402
from paleo_lite.networks.trace import trace  # noqa: E402

NAMES = ("resnet50", "mobilenet_v3_large", "vit_b_16", "swin_t")
ROUNDS = 9


def seconds(function) -> float:  # type: ignore[no-untyped-def]
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(name: str) -> tuple[int, float, float]:
    """Layers of a model, and the median seconds of a trace and of FlopCounterMode."""
    module, size = torchvision_model(name)
    module.eval().to("meta")

    def ours():  # type: ignore[no-untyped-def]
        return trace(module, (1, 3, size, size))

    def theirs() -> None:
        with torch.no_grad(), FlopCounterMode(display=False):
            module(torch.empty(1, 3, size, size, device="meta"))

    layers = len(ours().layers)
    theirs()
    times = [(seconds(ours), seconds(theirs)) for _ in range(ROUNDS)]
    return layers, statistics.median(t for t, _ in times), statistics.median(t for _, t in times)


def resident() -> float:
    """The most memory that this process has held, in MB."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    """Print both tables."""
    before = resident()
    tracemalloc.start()
    module, size = torchvision_model("vgg16")
    network = trace(module, (1, 3, size, size))
    python_peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    grown = resident() - before

    print(f"{f'torch {torch.__version__}':24}{'layers':>8}{'trace (ms)':>12}{'FlopCounterMode (ms)':>22}{'ratio':>8}")
    for name in NAMES:
        layers, ours, theirs = compare(name)
        print(f"{name:24}{layers:>8}{1e3 * ours:>12.1f}{1e3 * theirs:>22.1f}{ours / theirs:>8.2f}")
    print("building and tracing VGG16, in MB")
    for what, used in (
        ("its weights, had they been made (fp32)", 4 * network.parameters / 1e6),
        ("Python objects, peak", python_peak),
        ("growth of the process's resident peak", grown),
    ):
        print(f"  {what:42}{used:>8.1f}")


if __name__ == "__main__":
    main()
