"""Writing of the prior of evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from paleo_lite.calibration.posterior import FILE, EvidencePrior
from paleo_lite.files import write_atomically

from ..collectives.published import PLATFORMS
from ..local.ship import SOURCES as LOCAL_SOURCES
from .fit import fit_prior
from .groups import Grouped
from .links import measured_collectives
from .machines import measured_machines
from .pictures import measured_pictures
from .powers import measured_watts
from .servers import measured_servers
from .training import measured_steps

MEASURED: dict[str, Callable[[Path], Sequence[Grouped]]] = {
    "server": measured_servers,
    "local": measured_machines,
    "train": measured_steps,
    "picture": measured_pictures,
    "link": measured_collectives,
    "power": measured_watts,
}
"""Functions that read the published measurements of each kind of question."""

SOURCES = [
    "ai-dynamo/aiconfigurator, tables of servers (aiconfigurator-core 0.12.0)",
    "ML.ENERGY Benchmark v3, vLLM 0.11.1",
    "inference-sim/training, loads of vLLM 0.15",
    "Published serving results, validation/serving/published.csv",
    *LOCAL_SOURCES,
    "llm-foundry",
    "vTrain",
    "Megatron-Bridge",
    "tensorflow-docs-benchmarks",
    "mxnet-docs-perf",
    "sara-nl/SURFBoard",
    "Oneflow-Inc/DLPerf",
    "DeepLearningExamples 134510b, 1d4211f, 0bc061d and 291f0d0",
    "ML.ENERGY Benchmark v3, pictures and videos",
    "chengzeyi/stable-fast 04c6802",
    "huggingface/diffusers, tutorials and result tables of 2024",
    "facebookincubator/AITemplate 116bae5",
    "TheStageAI/Elastic-FLUX.1-dev",
    "aredden/flux-fp8-api 138a97c",
    "THUDM/CogVideoX",
    *dict.fromkeys(platform.source for platform in PLATFORMS.values()),
]

HEADER = b"""# Deviations of the logarithms of the factors of causes, common at each level, and of rows by themselves.
# Fitted by python -m validation ship (validation/evidence/fit.py) to published groups of measurements.
"""


def ship_evidence(data: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Fit the priors of all kinds of questions and write them; yield the name of each with what it rests on."""
    kinds = {}
    for kind, read in MEASURED.items():
        rows = read(data)
        kinds[kind] = fit_prior(kind, rows)
        yield f"evidence of {kind}", f"{kinds[kind].rows} rows of {kinds[kind].groups} groups"
    prior = EvidencePrior(kinds, SOURCES)
    write_atomically(folder / FILE, HEADER + msgspec.toml.encode(prior))
