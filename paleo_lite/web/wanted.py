"""What a person may want from the page, and what the page says of the options of a question: data, no code that draws.

The options themselves, their types, defaults and help are those of the records of `paleo_lite.questions`; here is only
what a page adds: where a question starts, the labels of controls, which options it does not offer, and when one
applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ..architectures.pipelines.records import pipelines
from ..questions.kind import find_kind
from ..questions.option import Option, Options, option, options_of
from ..questions.records import (
    COST_GROUP,
    DEVICE_GROUP,
    ENGINE_GROUP,
    INFERENCE_PRECISIONS,
    MODEL_GROUP,
    NETWORK_GROUP,
    PARALLEL_GROUP,
    TRAINING_GROUP,
    AdapterOptions,
    UpdateOptions,
)
from ..questions.rl_options import ROLLOUT_GROUP, STEP_GROUP
from ..questions.serve_options import TRAFFIC_GROUP
from .uploads import reads_sequences

PROFILE = "profile"
"""The question about an uploaded profile, which is not a kind of question of the command line."""


@dataclass(frozen=True)
class ProfileAsked(Options):
    """What is asked of a profile."""

    precision: str = option(
        "fp32",
        group=DEVICE_GROUP,
        is_common=True,
        type=INFERENCE_PRECISIONS,
        help="Precision of the peaks of the device.",
    )


class Wanted(NamedTuple):
    """A question as a person asks it."""

    title: str
    networks: str  # list of networks that are offered: a key of `uploads.NETWORKS`; empty for none
    network: str = ""  # the one that is shown first
    options: Mapping[str, str] = {}  # the options that are shown first
    always: Mapping[str, Any] = {}  # options that are always given, as the page shows what they add


WANTED = {
    "train": Wanted("Train", "any", "llama-3-8b", {"lora": "16", "weights": "int4", "samples": "52k", "epochs": "3"}),
    "serve": Wanted("Serve", "language", "llama-3-8b", {"rate": "5"}),
    "local": Wanted("Run on my machine", "language", "llama-3-8b"),
    "diffusion": Wanted("Make pictures", "pipelines", "sdxl"),
    "rl": Wanted("Reinforce", "language", "qwen3-8b", {"response_tokens": "2000"}),
    "predict": Wanted("One network", "any", "llama-3-8b", {"phase": "decode"}, {"memory": True}),
    PROFILE: Wanted("A profile", ""),
}
"""The questions, in their order on the page, by the name of their kind."""

FIRST_DEVICES = ("h100-sxm", "l40s", "rtx4090")
"""Devices that are shown first."""

DEVICES_AT_MOST = 6
COUNTS_AT_MOST = 40
"""Values of one range."""
ANSWERS_AT_MOST = 240
"""Combinations of values, devices included, that one question compares."""

GROUPS = (
    NETWORK_GROUP,
    DEVICE_GROUP,
    TRAINING_GROUP,
    STEP_GROUP,
    ROLLOUT_GROUP,
    TRAFFIC_GROUP,
    ENGINE_GROUP,
    PARALLEL_GROUP,
    COST_GROUP,
    MODEL_GROUP,
)
"""Groups of options in the order of the help of a command."""

FIRST_OPTIONS = {
    "train": (
        "precision", "lora", "weights", "batch_size", "sequence_length", "samples", "tokens", "epochs", "workers",
        "platform", "strategy", "tensor", "pipeline",
    ),
    "serve": (
        "rate", "concurrency", "input_tokens", "output_tokens", "precision", "weights", "tensor", "engine", "slo",
        "advise",
    ),
    "local": ("weights", "context", "engine"),
    "diffusion": ("image_size", "steps", "frames", "batch_size", "precision", "weights", "offload", "execution"),
    "rl": (
        "workers", "algorithm", "framework", "prompts", "samples_per_prompt", "prompt_tokens", "response_tokens",
        "max_tokens", "updates_per_step", "tensor", "pipeline", "rollout_tensor", "rollout_workers", "steps_off",
    ),
    "predict": ("phase", "batch_size", "context", "sequence_length", "precision", "weights", "tensor", "engine"),
}  # fmt: skip
"""Options that most questions of a kind need, which come first; other common options follow in the order of groups."""

NOT_OFFERED = {
    "gpu": "the devices have a control of their own",
    "memory": "the page always shows the memory",
    "hardware_files": "uploaded devices are in the list of devices",
    "requests": "names a file",
    "lengths": "names a file",
    "inputs": "imports and executes code",
    "flops": "the page asks about networks",
    "macs": "the page asks about networks",
    "image_size": "another size is traced with torch",
}
"""Options without a control, with the reason."""

OFFERED_BY = {"diffusion": frozenset({"image_size"})}
"""Exceptions of `NOT_OFFERED`: the sizes of pipelines are computed, not traced."""

LABELS = {
    "gpu": "Devices",
    "lora": "LoRA rank",
    "trainable": "Trained layers",
    "training_settings": "Details of a step",
    "accumulation": "Gradient accumulation",
    "recompute": "Activation recomputation",
    "loss": "Cross entropy",
    "freeze": "Frozen layers",
    "offload": "Offloading",
    "weights": "Format of weights",
    "kv_cache": "KV cache",
    "ppp": "PPP",
    "site": "What surrounds the devices",
    "price": "Price per hour",
    "tensor": "Tensor-parallel devices",
    "pipeline": "Pipeline stages",
    "context_parallel": "Context-parallel devices",
    "expert_parallel": "Expert-parallel devices",
    "attention_data_parallel": "Attention-data-parallel groups",
    "workers": "Number of devices",
    "feed": "Input of each node",
    "communication": "Exchange of gradients",
    "schedule": "Schedule of the pipeline",
    "experts": "Mixtures of experts",
    "measured": "Your own measurements",
    "global_batch_size": "Batch size of all devices",
    "advise": "Ranking",
    "rate": "Requests per second",
    "concurrency": "Users",
    "num_requests": "Simulated requests",
    "slo": "Objectives of latency",
    "max_sequences": "Sequences at the same time",
    "max_batched_tokens": "Tokens per iteration",
    "draft": "Draft network",
    "draft_length": "Drafted tokens",
    "prefill_pool": "Pool for prompts",
    "cache_tiers": "Tiers of the prefix cache",
    "decode_pool": "Pool for answers",
    "context": "Tokens in the KV cache",
    "prompt": "Tokens of the prompt",
    "cpu": "Processor of the host",
    "cpu_experts": "Experts in the memory of the host",
    "cpu_expert_blocks": "First blocks whose experts are in the memory of the host",
    "cpu_cache": "KV cache in the memory of the host",
    "gpu_layers": "Layers on the device",
    "tensor_split": "Proportions of the blocks on each device",
    "device_memory": "Memory of the device",
    "image_size": "Size of pictures",
    "ulysses": "Ulysses devices",
    "ring": "Ring groups",
    "tiled": "Decode in tiles",
    "inputs": "Inputs",
    "hardware_files": "Your own files",
}
"""Labels of controls whose option has a name that does not say enough; of the others it is their name in words."""

LABELS_OF_KIND = {
    ("diffusion", "batch_size"): "Pictures or videos",
    ("serve", "memory_fraction"): "Fraction of the memory",
    ("serve", "pipeline"): "Pipeline stages",
    ("local", "advise"): "Rank the formats",
}
"""Labels of options that mean something else in one kind."""

EXAMPLES = {
    "batch_size": "8 or 1,8,32 or 1:64:x2",
    "sequence_length": "2048 or 512,2048",
    "steps": "20,50",
    "workers": "8 or 1,2,4,...,64",
    "platform": "dgx-h100 or 2x k40m @ pcie3, 16 nodes @ infiniband",
    "experts": "dispatch=deepep,imbalance=1.2",
    "schedule": "interleaved=2,micro-batches=16",
    "communication": "collective=ring,overlap=no",
    "feed": "storage=nvme,decode=2000",
    "slo": "ttft=500ms,tpot=50ms",
    "price": "2 USD/h or AWS",
    "tokens": "15B",
    "samples": "52k",
    "clock": "boost or 1.2GHz",
    "power_limit": "300W",
    "image_size": "1024 or 1024x768",
    "device_memory": "16GB",
    "tensor_split": "3,1",
    "recompute": "full, selective or full:2",
    "site": "electricity=0.30,pue=1.2",
    "trainable": "only=last or adapters=q_proj,v_proj",
    "expert_load": "power-law:1.2",
    "overhead": "1 ms",
    "training_settings": "loss=fused,attention=flash2",
    "measured": "16 workers: 350 ms",
    "link": "ethernet20 or 25 GB/s",
}
"""What an empty field shows if the option has no default that can be shown."""

FREE_CHOICES = frozenset({"link", "platform", "price"})
"""Options whose names are offered and that also take another text."""

COMPARED = {
    "predict": frozenset({"precision", "batch_size", "sequence_length", "phase", "weights", "tensor"}),
    "train": frozenset({"precision", "batch_size", "sequence_length", "workers"}),
    "serve": frozenset({"rate", "concurrency"}),
    "local": frozenset({"weights"}),
    "rl": frozenset({"workers", "rollout_workers", "rollout_tensor", "response_tokens", "framework", "algorithm"}),
    "diffusion": frozenset({"precision", "image_size", "steps", "frames", "batch_size", "offload", "execution"}),
}
"""Options of which the page takes several values, by kind; the command line takes several of nearly all."""

AT_MOST = {
    "batch_size": 2**20,
    "global_batch_size": 2**20,
    "workers": 2**16,
    "replicas": 16,
    "concurrency": 1000,
    "prompts": 4096,
    "samples_per_prompt": 256,
    "num_requests": 10_000,
    "steps": 1000,
    "frames": 1000,
    "tensor": 64,
    "pipeline": 1024,
}
"""Largest numbers that the page takes, as every visitor's question is computed in one process."""
AT_MOST_ELSE = 2**24
"""Largest number of an option that is not in `AT_MOST`."""

_OF_TRAINING = frozenset((*options_of(UpdateOptions), *options_of(AdapterOptions))) - {"offload", "weights"}


OptionTexts = Mapping[str, str]
"""Texts of the options that are given."""


def _generates(network: str, options: OptionTexts) -> bool:
    return options.get("phase") in ("prefill", "decode")


def _is_decode(network: str, options: OptionTexts) -> bool:
    return options.get("phase") == "decode"


def _makes_pictures(network: str, options: OptionTexts) -> bool:
    return (options.get("phase") or "inference") == "inference"


def _trains(network: str, options: OptionTexts) -> bool:
    return not _makes_pictures(network, options)


def _makes_videos(network: str, options: OptionTexts) -> bool:
    record = pipelines().get(network)
    return record is not None and record.is_video and _makes_pictures(network, options)


def _reads_tokens(network: str, options: OptionTexts) -> bool:
    return reads_sequences(network)


def _reads_prompts(network: str, options: OptionTexts) -> bool:
    return reads_sequences(network) and not _is_decode(network, options)


_PICTURES = ("steps", "guidance", "ulysses", "ring", "guidance_parallel", "tiled", "step_caching")

APPLIES: dict[tuple[str, str], Callable[[str, OptionTexts], bool]] = {
    ("predict", "sequence_length"): _reads_prompts,
    ("train", "sequence_length"): _reads_tokens,
    ("train", "tokens"): _reads_tokens,
    ("predict", "context"): _is_decode,
    **{
        ("predict", name): _generates
        for name in ("engine", "tensor", "kv_cache", "expert_parallel", "attention_data_parallel", "expert_load")
    },
    ("predict", "platform"): _generates,
    ("predict", "link"): _generates,
    ("diffusion", "frames"): _makes_videos,
    **{("diffusion", name): _makes_pictures for name in _PICTURES},
    **{("diffusion", name): _trains for name in _OF_TRAINING},
}
"""When a control is shown that does not always apply, by kind and option; another option is always shown."""


def record_of(kind: str) -> type[Options]:
    """Return the record of a question."""
    return ProfileAsked if kind == PROFILE else find_kind(kind).record


@cache
def offered_options(kind: str) -> dict[str, Option]:
    """Return the options of a question for which the page has a control."""
    without = NOT_OFFERED.keys() - OFFERED_BY.get(kind, frozenset())
    return {name: declared for name, declared in options_of(record_of(kind)).items() if name not in without}


def takes_several(kind: str, name: str) -> bool:
    """Return whether the page compares several values of an option."""
    return name in COMPARED.get(kind, frozenset())


def applies(kind: str, name: str, network: str, options: OptionTexts) -> bool:
    """Return whether an option has a control, with a network and the options that are given."""
    condition = APPLIES.get((kind, name))
    return condition is None or condition(network, options)


def label_of(kind: str, name: str) -> str:
    """Return the label of the control of an option."""
    words = name.replace("_", " ")
    return LABELS_OF_KIND.get((kind, name)) or LABELS.get(name) or words[0].upper() + words[1:]
