"""Fit of the constants of llama.cpp by backend, each device held out in turn.

Run ``python -m validation.local.fit DATA`` with the folder of the published tables: it writes
``calibrations/llama_cpp.json`` and prints the errors.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from paleo_lite.architectures import find_network
from paleo_lite.local import LLAMA_CPP
from paleo_lite.local.contents import Contents, read_contents
from paleo_lite.local.engines import BACKENDS, LOCAL_ENGINES
from paleo_lite.local.pieces import GROUPS
from paleo_lite.local.step import DEVIATIONS_AT_90, BackendConstants, LocalConstants, prompt_s, token_s
from paleo_lite.machines import find_device

PUBLISHED = Path(__file__).parent / "published.csv"
"""Speeds that people published in pull requests and on pages, with the source of each row."""

CALIBRATION = Path(__file__).parents[2] / "calibrations" / "llama_cpp.json"

NAMES = (
    "share", "cache_share", "unpack_wide", "unpack_legacy", "unpack_k", "unpack_table", "block_s", "eff_wide",
    "eff_legacy", "eff_k", "eff_table", "eff_attention", "expert_rows",
)  # fmt: skip
TYPICAL = {
    "cuda": (0.85, 0.7, 0.07, 0.12, 0.12, 0.09, 6e-5, 0.40, 0.40, 0.38, 0.35, 0.2, 16.0),
    "metal": (0.8, 0.6, 0.04, 0.06, 0.055, 0.045, 8e-5, 0.68, 0.62, 0.58, 0.5, 0.3, 16.0),
    "rocm": (0.75, 0.6, 0.07, 0.1, 0.1, 0.08, 1e-4, 0.4, 0.4, 0.38, 0.35, 0.1, 16.0),
    "vulkan": (0.8, 0.6, 0.07, 0.12, 0.1, 0.08, 8e-5, 0.25, 0.3, 0.25, 0.22, 0.1, 16.0),
    "mlx": (0.85, 0.6, 0.05, 0.1, 0.1, 0.1, 8e-5, 0.7, 0.65, 0.65, 0.6, 0.3, 16.0),
    "exllama": (0.85, 0.7, 0.07, 0.15, 0.15, 0.15, 6e-5, 0.5, 0.45, 0.45, 0.45, 0.2, 16.0),
    "cpu": (0.7, 0.5, 0.2, 0.3, 0.24, 0.1, 5e-5, 0.4, 0.7, 0.5, 0.3, 0.3, 4.0),
}
"""Values before any measurement, of the order of what reviews of llama.cpp print."""
DEVIATION = np.array([0.15, 0.3, 0.4, 0.4, 0.4, 0.5, 0.5, 0.3, 0.3, 0.3, 0.4, 0.5, 0.5])
PIPELINE = 0.6
NOISE = 0.12
BLOCK_CORES = {"mlx": 32.0}
"""Cores of the device for which ``block_s`` holds, of backends whose waits grow with the cores."""
FEW_ROWS, LEAST_OF_FEW = 5, 0.3
"""Rows below which an interval is not narrower than this deviation."""

SYSTEMS = {
    "Intel 265K Custom PC (Nvidia RTX 3080 Ti)": "rtx3080ti", "Intel 265K Custom PC (Nvidia RTX 2080 Ti)": "rtx2080ti",
    "Intel 265K Custom PC (Nvidia RTX 3060)": "rtx3060", "Intel 265K Custom PC (Nvidia RTX A4000)": "rtx-a4000",
    "Ryzen 9 7950X (Nvidia 4080)": "rtx4080", "Ryzen 9 5950X (Nvidia 4070)": "rtx4070",
    "Ryzen 9 9950X (AMD 7900 XT)": "rx7900xt", "M1 Ultra (48 GPU Core) 64GB": "apple-m1-ultra-48",
    "M4 Mac mini (10 core - 32GB)": "apple-m4",
    "Radxa Orion O6 - 16GB": "cix-p1", "Minisforum MS-R1": "cix-p1", "GMKtek G3 Plus (Intel N150) - 16GB": "intel-n150",
    "GMKtec G3 Plus (Intel N150) - 16GB": "intel-n150", "Pi 5 - 16GB": "raspberry-pi-5", "Pi 5 - 8GB": "raspberry-pi-5",
}  # fmt: skip
"""Systems whose host is no bottleneck. Cards behind a Raspberry Pi wait for it, and so do those of a Thelio Astra: its
A4000 writes 91 tokens/s, another one 149."""
MODELS = {
    "DeepSeek R1 14b": ("qwen2.5-14b", "q4_k_m"), "Llama 3.2:3b": ("llama-3.2-3b", "q4_k_m"),
    "Llama 3.1:70b": ("llama-3.1-70b", "q4_k_m"), "gpt-oss 20b": ("gpt-oss-20b", "mxfp4_moe"),
}  # fmt: skip
STRIX_MODELS = {
    "llama-2-7b.Q4_0": ("llama-2-7b", "q4_0"), "gpt-oss-20b-mxfp4": ("gpt-oss-20b", "mxfp4_moe"),
    "Qwen3.6-35B-A3B-UD-Q4_K_XL": ("qwen3.5-35b-a3b", "q4_k_xl"),
    "Qwen3.6-35B-A3B-UD-Q8_K_XL": ("qwen3.5-35b-a3b", "q8_k_xl"),
    "Qwen3.5-122B-A10B-UD-Q5_K_XL": ("qwen3.5-122b-a10b", "q5_k_xl"),
    "NVIDIA-Nemotron-3-Super-120B-A12B-UD-Q4_K_XL": ("nemotron-3-super-120b-a12b", "q4_k_xl"),
}  # fmt: skip


OF_OTHER_ENGINES = ("mlx", "exllama")
"""Backends that are programs of their own."""

device_of = cache(find_device)
backend_of = LOCAL_ENGINES[LLAMA_CPP].backend_of


class Row(NamedTuple):
    """A published speed: tokens after `context` cached ones, of an answer or of a prompt."""

    source: str
    device: str
    gpus: int
    network: str
    weights: str
    phase: str
    tokens: int
    context: int
    seconds: float
    backend: str


@cache
def contents_of(network: str, weights: str, backend: str | None = None) -> Contents:
    """Return the contents of a network under the program of a backend, by default llama.cpp."""
    engine = LOCAL_ENGINES[backend if backend in OF_OTHER_ENGINES else LLAMA_CPP]
    return read_contents(find_network(network), weights, None, engine).merged()


def read_rows(data: Path) -> list[Row]:
    """Return the rows of all tables that speak of shipped networks and devices."""
    rows = []
    with (data / "engines" / "llama_cpp.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            tokens, rate = int(line["tokens"]), float(line["tokens_per_s"])
            is_prompt = line["phase"] == "prompt"
            rows.append(
                Row("XiongjieDai", line["gpu"], int(line["gpus"]), line["model"], line["format"], line["phase"],
                    tokens, 0 if is_prompt else tokens // 2, tokens / rate if is_prompt else 1 / rate,
                    backend_of(device_of(line["gpu"])))
            )  # fmt: skip
    with (data / "engines" / "llama_cpp_machines.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            device = SYSTEMS.get(line["system"])
            is_cpu = device in ("cix-p1", "intel-n150", "raspberry-pi-5")
            if device is None or is_cpu != (line["runs_on"] == "CPU"):
                continue
            network, weights = MODELS[line["model"]]
            seconds = 1 / float(line["tokens_per_s"])
            backend = backend_of(device_of(device))
            rows.append(Row("geerlingguy", device, 1, network, weights, "decode", 256, 256, seconds, backend))
    with (data / "engines" / "llama_cpp_strix_halo.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["model"] not in STRIX_MODELS:
                continue
            network, weights = STRIX_MODELS[line["model"]]
            test, _, depth = line["test"].partition(" @ d")
            tokens, cached, rate = int(test[2:]), int(depth or 0), float(line["tokens_per_s"])
            phase = "prompt" if test.startswith("pp") else "decode"
            seconds = tokens / rate if phase == "prompt" else 1 / rate
            rows.append(Row("kyuz0", "ryzen-ai-max-395", 1, network, weights, phase, tokens, cached, seconds, "vulkan"))
    with PUBLISHED.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            tokens, rate = int(line["tokens"]), float(line["tokens_per_s"])
            seconds = tokens / rate if line["phase"] == "prompt" else 1 / rate
            rows.append(
                Row(line["source"], line["device"], int(line["gpus"]), line["network"], line["weights"], line["phase"],
                    tokens, int(line["context"]), seconds, line["backend"])
            )  # fmt: skip
    return rows


def make_constants(
    backend: str, theta: ArrayLike, deviation: float = 0.1, prompt_deviation: float = 0.2
) -> BackendConstants:
    """Return the constants of a backend from logarithms in the order of `NAMES`."""
    value = dict(zip(NAMES, np.exp(theta).tolist()))
    return BackendConstants(
        value["share"], value["cache_share"], {group: value[f"unpack_{group}"] for group in GROUPS}, value["block_s"],
        {group: value[f"eff_{group}"] for group in GROUPS}, value["eff_attention"], value["expert_rows"],
        deviation, prompt_deviation, BLOCK_CORES.get(backend, 0.0),
    )  # fmt: skip


def predict_s(row: Row, constants: BackendConstants) -> float:
    """Return the seconds of a row."""
    contents, device = contents_of(row.network, row.weights, row.backend), device_of(row.device)
    if row.phase == "decode":
        return token_s(contents, device, constants, row.context + row.tokens / 2 * (row.context == 0))
    return prompt_s(contents, device, constants, row.tokens, cached=row.context, gpus=row.gpus, pipeline=PIPELINE)


def fit(backend: str, rows: Sequence[Row]) -> np.ndarray:
    """Return the logarithms of the constants: the rows, and what is typical."""
    typical = np.log(TYPICAL[backend])

    def residuals(theta: np.ndarray) -> np.ndarray:
        constants = make_constants(backend, theta)
        errors = [np.log(predict_s(row, constants) / row.seconds) / NOISE for row in rows]
        return np.array([*errors, *((theta - typical) / DEVIATION)])

    return np.asarray(least_squares(residuals, typical, loss="soft_l1", diff_step=1e-3, max_nfev=30).x)


class Forecast(NamedTuple):
    """Predicted seconds of a row that was left out."""

    row: Row
    seconds: float

    @property
    def error(self) -> float:
        """Relative error of the tokens per second."""
        return abs(self.row.seconds / self.seconds - 1)

    @property
    def log_ratio(self) -> float:
        """Logarithm of predicted over measured seconds."""
        return float(np.log(self.seconds / self.row.seconds))

    def is_inside(self, deviation: float) -> bool:
        """Return whether the interval of a deviation contains the measured seconds."""
        return abs(self.log_ratio) <= DEVIATIONS_AT_90 * deviation


def held_out(backend: str, rows: Sequence[Row]) -> list[Forecast]:
    """Return the forecast of each row, from all devices but its own."""
    results = []
    for device in dict.fromkeys(row.device for row in rows):
        constants = make_constants(backend, fit(backend, [row for row in rows if row.device != device]))
        results += [Forecast(row, predict_s(row, constants)) for row in rows if row.device == device]
    return results


def source_of(row: Row) -> str:
    """Return the table of a row; single published speeds count as one."""
    return "published" if "/" in row.source else row.source


def held_out_by_source(backend: str, rows: Sequence[Row]) -> list[Forecast]:
    """Return the forecast of each row, from other sources and other devices than those of its source."""
    results = []
    for source in dict.fromkeys(map(source_of, rows)):
        own = [row for row in rows if source_of(row) == source]
        devices = {row.device for row in own}
        others = [row for row in rows if source_of(row) != source and row.device not in devices]
        constants = make_constants(backend, fit(backend, others))
        results += [Forecast(row, predict_s(row, constants)) for row in own]
    return results


def mean_over_devices(forecasts: Sequence[Forecast]) -> float:
    """Return the mean over devices, each with its backend, of their mean errors."""
    by_device: dict[tuple[str, str], list[float]] = {}
    for each in forecasts:
        by_device.setdefault((each.row.device, each.row.backend), []).append(each.error)
    return float(np.mean([np.mean(own) for own in by_device.values()]))


def describe(label: str, forecasts: Sequence[Forecast], inside: float) -> str:
    """Return a line with the errors of forecasts, and the share inside their intervals."""
    devices = len({(each.row.device, each.row.backend) for each in forecasts})
    mean = np.mean([each.error for each in forecasts])
    return (
        f"{label:16s} {len(forecasts):3d} rows, {devices:2d} devices: mean error {mean:.1%} over rows, "
        f"{mean_over_devices(forecasts):.1%} over devices; inside {inside:.0%}"
    )


def spread(errors: Sequence[float], least: float) -> float:
    """Return the deviation that covers nine of ten errors with the interval of `interval_of`."""
    return max(float(np.quantile(np.abs(errors), 0.9)) / DEVIATIONS_AT_90, least) if len(errors) else least


PHASES = (("decode", 0.08), ("prompt", 0.15))
"""Phases, and the least deviation of each."""


def main(data: Path) -> None:
    """Fit all backends, write the constants, and print errors of devices, and of sources, held out."""
    every = read_rows(data)
    backends = {}
    by_device: dict[str, list[Forecast]] = {phase: [] for phase, _ in PHASES}
    inside_by_device: dict[str, list[bool]] = {phase: [] for phase, _ in PHASES}
    by_source: dict[str, list[Forecast]] = {phase: [] for phase, _ in PHASES}
    inside_by_source: dict[str, list[bool]] = {phase: [] for phase, _ in PHASES}
    print("each device held out")
    for backend in BACKENDS:
        rows = [row for row in every if row.backend == backend]
        results, of_sources = held_out(backend, rows), held_out_by_source(backend, rows)
        deviations = []
        for phase, least in PHASES:
            chosen = [each for each in results if each.row.phase == phase]
            deviation = spread([each.log_ratio for each in chosen], LEAST_OF_FEW if len(chosen) < FEW_ROWS else least)
            deviations.append(deviation)
            insides = [each.is_inside(deviation) for each in chosen]
            if backend not in OF_OTHER_ENGINES:
                by_device[phase] += chosen
                inside_by_device[phase] += insides
            if chosen:
                inside = float(np.mean(insides))
                print(describe(f"{backend} {phase}", chosen, inside), f"of {np.exp(DEVIATIONS_AT_90 * deviation):.2f}")
            if "-v" in sys.argv:
                for each in chosen:
                    print("   ", *each.row[:-2], f"{np.exp(each.log_ratio):.2f}")
            chosen = [each for each in of_sources if each.row.phase == phase]
            by_source[phase] += chosen
            inside_by_source[phase] += [each.is_inside(deviation) for each in chosen]
        theta = fit(backend, rows)
        backends[backend] = make_constants(backend, theta, *deviations)
        if "-v" in sys.argv:
            print({name: float(f"{value:.3g}") for name, value in zip(NAMES, np.exp(theta))})
    for phase, _ in PHASES:
        print(describe(f"llama.cpp {phase}", by_device[phase], float(np.mean(inside_by_device[phase]))))
    print("each source held out, with all its devices")
    for phase, _ in PHASES:
        print(describe(phase, by_source[phase], float(np.mean(inside_by_source[phase]))))
    sources = ("XiongjieDai/GPU-Benchmarks-on-LLM-Inference aa72e0e", "geerlingguy/ai-benchmarks bdf9441",
               "kyuz0/amd-strix-halo-toolboxes d1a34be", "Published speeds of llama.cpp")  # fmt: skip
    constants = LocalConstants(backends, PIPELINE, sources)
    CALIBRATION.write_bytes(msgspec.json.format(msgspec.json.encode(constants), indent=1) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
