"""From a cold start to an answer: the README's command beside `import numpy` and beside other counters.

Every run is a new process; the commands take turns, so that a slow moment of the machine meets all of them.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import time
from pathlib import Path

_IMPORT = (
    "from paleo_lite.networks.torch_import import import_torchvision; import torch; "
    "model = import_torchvision().models.vgg16().eval(); image = torch.rand(1, 3, 224, 224); "
)
COMMANDS = {
    "import numpy": ["-c", "import numpy"],
    "paleo-lite predict vgg16": ["-m", "paleo_lite", "predict", "vgg16", "--gpu", "k80", "--precision", "fp64"],
    "fvcore": [
        "-c",
        _IMPORT + "from fvcore.nn import FlopCountAnalysis; print(FlopCountAnalysis(model, image).total())",
    ],
    "pthflops": ["-c", _IMPORT + "from pthflops import count_ops; count_ops(model, image)"],
    "ptflops": ["-c", _IMPORT + "from ptflops import get_model_complexity_info as g; print(g(model, (3, 224, 224)))"],
}
QUICK, SLOW = 21, 3


def main() -> None:
    """Run and print."""
    script = Path(sys.executable).parent / "paleo-lite"
    times: dict[str, list[float]] = {}
    for turn in range(QUICK):
        for name, arguments in COMMANDS.items():
            peer = name if name in ("fvcore", "pthflops", "ptflops") else None
            if peer and (turn >= SLOW or importlib.util.find_spec(peer) is None):
                continue
            command = [sys.executable, *arguments]
            if name.startswith("paleo-lite"):
                command = [str(script), *arguments[2:]]
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.setdefault(name, []).append(time.perf_counter() - start)
    ours = statistics.median(times["paleo-lite predict vgg16"])
    print(f"{'cold start of':28}{'median':>10}{'runs':>6}{'this / paleo-lite':>20}")
    for name, runs in times.items():
        median = statistics.median(runs)
        print(f"{name:28}{median * 1e3:>7.0f} ms{len(runs):>6}{median / ours:>20.2f}")
    print(f"paleo-lite / import numpy: {ours / statistics.median(times['import numpy']):.2f} (wanted: at most 2)")


if __name__ == "__main__":
    main()
