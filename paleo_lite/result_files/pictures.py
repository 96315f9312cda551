"""Pictures: logs of ComfyUI, TensorRT's demoDiffusion and the table of diffusers' benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

from .findings import Findings, ResultFormat
from .text import all_lines, find_lines, ratio, read_table, scaled, to_number, to_seconds

_BAR = re.compile(r"100%\|[^|]*\| *(\d{1,15})/(\d{1,15}) \[[\d:]+<[\d:?]+, +(\d+(?:\.\d*)?) ?(it/s|s/it)\]")
_EXECUTED = re.compile(r"Prompt executed in (?:(\d+(?:\.\d*)?) seconds|(\d+:\d\d:\d\d))")
_LOADED = re.compile(r"Requested to load (\S+)")
_DEVICE = re.compile(r"Device: \w+:\d+ (.+?)(?: :.*)?$")
_DTYPE = re.compile(r"model weight dtype torch\.(\w+)")
_TEXT_AND_IMAGE_PARTS = ("CLIP", "Clip", "T5", "TextEncoder", "AutoencoderKL", "AutoencodingEngine", "VAE")


def read_comfyui(path: Path, findings: Findings) -> None:
    """Read the prompts of a log of ComfyUI: steps of the denoiser from its bars, and the whole prompt."""
    markers = (
        "100%|",
        "Prompt executed in",
        "Requested to load",
        "loaded partially",
        "Device:",
        "weight dtype",
    )
    network, bars, is_partial, prompts = "", list[tuple[int, float]](), False, 0
    for line in find_lines(path, markers):
        if match := _BAR.search(line):
            rate = float(match[3])
            if rate:
                bars.append((int(match[2]), 1 / rate if match[4] == "it/s" else rate))
        elif match := _LOADED.search(line):
            if not any(part in match[1] for part in _TEXT_AND_IMAGE_PARTS):
                network = match[1]
                findings.guess("the class that ComfyUI loads", network=network)
        elif match := _DEVICE.search(line):
            findings.record(gpu=match[1])
        elif match := _DTYPE.search(line):
            findings.record(precision=match[1])
        elif "loaded partially" in line:
            is_partial = True
        elif match := _EXECUTED.search(line):
            whole_s = to_seconds(match[2]) if match[2] else float(match[1])
            prompts += 1
            doubts = []
            if is_partial:
                doubts.append("weights did not fit and were offloaded: they were copied in every step")
            if prompts == 1:
                doubts.append("the first prompt of the log may contain the loading of the models")
            steps, step_s = bars[-1] if bars else (None, None)
            findings.add("picture", tuple(doubts), network=network or None, steps=steps, step_s=step_s, time_s=whole_s)
            bars = []
    findings.doubt(
        "a step is one of the whole batch, and with guidance it may be two passes; resolution, batch and sampler are "
        "not in the log"
    )


_DEMO_ROW = re.compile(r"^\|\s*([\w\- ]+?)(?: x (\d{1,15}))?\s*\|\s*(\d+(?:\.\d*)?) ms\s*\|", re.MULTILINE)
_DEMO_RATE = re.compile(r"Throughput: (\d+(?:\.\d*)?) image")
_DENOISERS = ("unet", "transformer", "denoiser", "mmdit")


def read_demo_diffusion(path: Path, findings: Findings) -> None:
    """Read the table of TensorRT's demoDiffusion: text encoder, denoiser (all steps), decoder of images."""
    parts: dict[str, float] = {}
    steps = rate = None

    def add_table() -> None:
        denoiser_s = parts.get("denoiser")
        findings.add("picture", steps=steps, encoder_s=parts.get("encoder"), denoiser_s=denoiser_s,
                     decoder_s=parts.get("decoder"), step_s=ratio(denoiser_s, steps), time_s=parts.get("pipeline"),
                     pictures_per_s=rate)  # fmt: skip

    for line in all_lines(path):
        if match := _DEMO_ROW.match(line):
            name, seconds = match[1].lower(), float(match[3]) / 1000
            if name.startswith(_DENOISERS):
                part, steps = "denoiser", float(match[2]) if match[2] else steps
            elif name.startswith("vae-enc"):
                part = "encoder of images"
            elif name.startswith("vae"):
                part = "decoder"
            else:
                part = "pipeline" if name.startswith("pipeline") else "encoder"
            parts[part] = parts.get(part, 0.0) + seconds
        elif match := _DEMO_RATE.search(line):
            rate = float(match[1])
            add_table()
            parts, steps, rate = {}, None, None
    if parts:
        add_table()
    findings.doubt(
        "resolution, network and precision stand on the command line only; with guidance a step runs a batch of 2"
    )


_DIFFUSERS = re.compile(
    r"^\ufeff?scenario,model_cls,|^\ufeff?model_id,pipeline_cls,batch_size,num_inference_steps", re.MULTILINE
)


def read_diffusers(path: Path, findings: Findings) -> None:
    """Read diffusers' own benchmarks: one pass of a denoiser, or in older tables the whole pipeline."""
    for row in read_table(path, _DIFFUSERS):
        billions, gflops = to_number(row.get("num_params_B")), to_number(row.get("flops_G"))
        for variant in ("plain", "compile"):
            findings.add(
                "step",
                phase="inference",
                network=row.get("model_cls"),
                label=row.get("scenario"),
                variant=variant,
                step_s=to_number(row.get(f"time_{variant}_s")),
                memory_bytes=scaled(row.get(f"mem_{variant}_GB"), 1e9),
                parameters=None if billions is None else billions * 1e9,
                flops=None if gflops is None else gflops * 1e9,
            )
        steps = to_number(row.get("num_inference_steps"))
        findings.add("picture", network=row.get("model_id"), batch_size=to_number(row.get("batch_size")), steps=steps,
                     time_s=to_number(row.get("time (secs)")),
                     memory_bytes=scaled(row.get("memory (gbs)"), 1e9))  # fmt: skip


FORMATS = (
    ResultFormat(
        "comfyui", "ComfyUI", "logs of ComfyUI", read_comfyui, sign=_EXECUTED, markers=("Prompt executed in",),
    ),
    ResultFormat(
        "demo-diffusion", "TensorRT demoDiffusion", "the table of TensorRT's demoDiffusion", read_demo_diffusion,
        sign=re.compile(r"^\|\s*Module\s*\|\s*Latency\s*\|", re.MULTILINE), markers=("Latency",),
    ),
    ResultFormat(
        "diffusers", "diffusers' benchmarks", "the CSV of diffusers' benchmarks", read_diffusers, sign=_DIFFUSERS,
    ),
)  # fmt: skip
