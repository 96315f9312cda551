"""Time from a cold start to an answer: the README's command, compared with `import numpy` and with other counters."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from .turns import Turns, run, take_turns

_IMPORT = (
    "from paleo_lite.architectures.torch_import import import_torchvision; import torch; "
    "model = import_torchvision().models.vgg16().eval(); image = torch.rand(1, 3, 224, 224); "
)
PEERS = {
    "fvcore": _IMPORT + "from fvcore.nn import FlopCountAnalysis; print(FlopCountAnalysis(model, image).total())",
    "pthflops": _IMPORT + "from pthflops import count_ops; count_ops(model, image)",
    "ptflops": _IMPORT + "from ptflops import get_model_complexity_info as g; print(g(model, (3, 224, 224)))",
}


def measure(repeats: int) -> list[Turns]:
    """Return a table; fast contestants run four times as often as slow ones."""
    script = str(Path(sys.executable).parent / "paleo-lite")
    ours = {"paleo-lite predict vgg16": run([script, *["predict", "vgg16", "--gpu", "k80", "--precision", "fp64"]])}
    quick = take_turns({**ours, "import numpy": run([sys.executable, "-c", "import numpy"])}, 4 * repeats)
    peers = {name: run([sys.executable, "-c", code]) for name, code in PEERS.items() if importlib.util.find_spec(name)}
    slow = take_turns(peers, repeats)
    return [Turns("from a cold start", {**quick, **slow}, wanted={"import numpy": 0.5})]
