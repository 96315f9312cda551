"""Published speeds of llama.cpp, MLX and ExLlama: tables, and what people published one by one.

The tables are in ``engines/`` of the folder of the published data; its ``SOURCES.md`` says where each is from.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from paleo_lite.engines.records import LOCAL_ENGINES
from paleo_lite.machines import find_device

from ..tables import rows_of

PUBLISHED = Path(__file__).parent / "published.csv"
"""Speeds that people published in pull requests and on pages, with the source of each row."""

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


device_of = cache(find_device)
backend_of = LOCAL_ENGINES["llama.cpp"].backend_of


class LocalMeasurement(NamedTuple):
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


def read_rows(data: Path) -> list[LocalMeasurement]:
    """Return the rows of all tables that speak of shipped networks and devices."""
    rows = []
    for line in rows_of(data / "engines" / "llama_cpp.csv"):
        tokens, rate = int(line["tokens"]), float(line["tokens_per_s"])
        is_prompt = line["phase"] == "prompt"
        rows.append(
            LocalMeasurement(
                "XiongjieDai",
                line["gpu"],
                int(line["gpus"]),
                line["model"],
                line["format"],
                line["phase"],
                tokens,
                0 if is_prompt else tokens // 2,
                tokens / rate if is_prompt else 1 / rate,
                backend_of(device_of(line["gpu"])),
            )
        )
    for line in rows_of(data / "engines" / "llama_cpp_machines.csv"):
        device = SYSTEMS.get(line["system"])
        is_cpu = device in ("cix-p1", "intel-n150", "raspberry-pi-5")
        if device is None or is_cpu != (line["runs_on"] == "CPU"):
            continue
        network, weights = MODELS[line["model"]]
        seconds = 1 / float(line["tokens_per_s"])
        backend = backend_of(device_of(device))
        rows.append(LocalMeasurement("geerlingguy", device, 1, network, weights, "decode", 256, 256, seconds, backend))
    for line in rows_of(data / "engines" / "llama_cpp_strix_halo.csv"):
        if line["model"] not in STRIX_MODELS:
            continue
        network, weights = STRIX_MODELS[line["model"]]
        test, _, depth = line["test"].partition(" @ d")
        tokens, cached, rate = int(test[2:]), int(depth or 0), float(line["tokens_per_s"])
        phase = "prompt" if test.startswith("pp") else "decode"
        seconds = tokens / rate if phase == "prompt" else 1 / rate
        rows.append(
            LocalMeasurement("kyuz0", "ryzen-ai-max-395", 1, network, weights, phase, tokens, cached, seconds, "vulkan")
        )
    for line in rows_of(PUBLISHED):
        tokens, rate = int(line["tokens"]), float(line["tokens_per_s"])
        seconds = tokens / rate if line["phase"] == "prompt" else 1 / rate
        rows.append(
            LocalMeasurement(
                line["source"],
                line["device"],
                int(line["gpus"]),
                line["network"],
                line["weights"],
                line["phase"],
                tokens,
                int(line["context"]),
                seconds,
                line["backend"],
            )
        )
    return rows
