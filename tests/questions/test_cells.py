"""Every option of every kind of question changes the answer or is refused; stating a default changes nothing.

Tests: questions/kind.py, questions/option.py, questions/records.py, questions/cluster_records.py, questions/predict.py,
questions/train.py, questions/serve.py, questions/local.py, questions/diffusion.py, questions/compare.py,
cli/question.py.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.errors import BadValue, PaleoError
from paleo_lite.machines import list_devices
from paleo_lite.questions.kind import KINDS, find_kind
from paleo_lite.questions.option import documented_spelling, options_of

DEVICE = {"gpu": "a100-sxm-80gb", "clock": "1 GHz", "unit": "vector", "power_limit": "150 W"}
MODEL = {"time_model": "roofline", "ppp": 0.5, "calibration": "t4-fp16"}

BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "predict a CNN": ("predict", {"network": "resnet18", "gpu": "t4", "precision": "fp16", "batch_size": 4}),
    "predict a token": (
        "predict",
        {"network": "llama-3.2-1b", "gpu": "h100-sxm", "precision": "bf16", "phase": "decode", "context": 512},
    ),
    "predict a group": (
        "predict",
        {
            "network": "olmoe-1b-7b", "gpu": "h100-sxm", "precision": "bf16", "phase": "decode", "tensor": 4,
            "batch_size": 32, "expert_parallel": 4,
        },
    ),
    "train on one": ("train", {"network": "gpt2", "gpu": "a100-sxm-80gb", "precision": "bf16", "batch_size": 4}),
    "train on many": (
        "train",
        {"network": "resnet18", "gpu": "t4", "precision": "fp16", "batch_size": 8, "workers": 4, "link": "pcie3"},
    ),
    "train in blocks": (
        "train",
        {
            "network": "olmoe-1b-7b", "gpu": "h100-sxm", "precision": "bf16", "batch_size": 8, "workers": 8,
            "platform": "dgx-h100", "tensor": 2, "mixed_precision": True,
        },
    ),
    "serve": (
        "serve",
        {
            "network": "llama-3.2-1b", "gpu": "h100-sxm", "rate": 5, "num_requests": 12, "input_tokens": 256,
            "output_tokens": 8, "tensor": 2,
        },
    ),
    "local": ("local", {"network": "qwen3-30b-a3b", "gpu": "rtx3060", "weights": "q4_k_m", "context": 2048}),
    "pictures": ("diffusion", {"network": "sdxl", "gpu": "h100-sxm", "steps": 4}),
    "pictures on many": ("diffusion", {"network": "sd-3.5-medium", "gpu": "h100-sxm", "steps": 4, "workers": 8}),
    "rl": (
        "rl",
        {
            "network": "olmoe-1b-7b", "gpu": "h100-sxm", "workers": 8, "prompts": 16, "samples_per_prompt": 4,
            "prompt_tokens": 64, "response_tokens": 200, "rollout_tensor": 2,
        },
    ),
    "rl apart": (
        "rl",
        {
            "network": "qwen3-0.6b", "gpu": "h100-sxm", "workers": 8, "rollout_workers": 4, "steps_off": 1,
            "prompts": 16, "samples_per_prompt": 4, "response_tokens": 200, "updates_per_step": 2,
        },
    ),
    "denoiser": ("diffusion", {"network": "sd-1.5", "gpu": "h100-sxm", "phase": "training"}),
}  # fmt: skip
"""Questions of each kind, to each of which every option of the kind is added."""

VALUES: dict[str, Any] = {
    **DEVICE, **MODEL, "site": "electricity=0.3,pue=1.5",
    "precision": "fp32", "batch_size": 16, "phase": "training", "context": 1024, "flops": "1G", "macs": "1G",
    "convention": "macs", "execution": "compiled", "engine": "sglang", "tensor": 2, "pipeline": 2,
    "platform": "dgx-h100", "link": "ethernet10", "memory": True, "sequence_length": 256,
    "image_size": 96, "inputs": ["3x64x64"], "attention": "eager", "weights": "int8", "kv_cache": "fp8",
    "expert_parallel": 2, "attention_data_parallel": 2, "expert_load": "power-law:1.2", "price": "7 USD/h",
    "samples": "1M", "tokens": "1B", "epochs": 3, "within": "10d", "optimizer": "momentum",
    "mixed_precision": True, "training_settings": "loss=fused", "recompute": "full", "accumulation": 2,
    "offload": "cpu",
    "lora": 8, "trainable": "only=last", "workers": 2,
    "strategy": "zero-1",
    "context_parallel": 2, "micro_batch": 2, "experts": "imbalance=1.5",
    "schedule": "interleaved=2", "communication": "overlap=no", "feed": "decode=5/s", "global_batch_size": 64,
    "advise": "time", "measured": ["2 workers: 1 s"], "replicas": 2, "prefill_pool": "replicas=2",
    "decode_pool": "max-sequences=2", "router": "least-loaded",
    "scaling": "fail-at=1s,start=5s", "admission": "max-concurrent-requests=2,queue-size=0",
    "workload": "conversation:turns=3", "cache_tiers": "host=8GB",
    "input_tokens": 512, "output_tokens": 32, "rate": 50, "concurrency": 4, "num_requests": 80, "arrivals": "fixed",
    "seed": 7, "max_batched_tokens": 512, "max_sequences": 2, "chunked_prefill": 128,
    "engine_settings": "overhead=5 ms", "memory_fraction": 0.5, "prefix_hit_rate": 0.5,
    "speculation": "tokens=3,acceptance=0.5", "slo": "ttft=500ms", "headroom": 0.3, "prompt": 64, "backend": "vulkan",
    "gpu_layers": 4, "tensor_split": "3,1", "cpu_experts": True, "cpu_expert_blocks": 12, "cpu_cache": True,
    "device_memory": "6 GB", "cpu": "ryzen-9-9950x",
    "steps": 8, "guidance": 1, "frames": 5, "tiled": True, "step_caching": 2, "ulysses": 2, "ring": 2,
    "guidance_parallel": True, "requests": "REQUESTS",
    "algorithm": "ppo", "framework": "slime", "prompts": 32, "samples_per_prompt": 8, "prompt_tokens": 128,
    "response_tokens": 300, "lengths": "LENGTHS", "max_tokens": 600, "clipped_share": 0.2, "updates_per_step": 4,
    "micro_batch_tokens": 1024, "sharding": "full-shard", "reference": "no", "reward": "seconds=3s",
    "rollout_workers": 2, "rollout_tensor": 4, "rollout_precision": "fp8", "steps_off": 4,
    "tools": "turns=2,seconds=1s", "dataset_prompts": 1000,
}  # fmt: skip
"""A value of each option that is not its default."""

BY_BASE: dict[tuple[str, str], Any] = {
    ("train in blocks", "platform"): "dgx-a100",
    ("train in blocks", "mixed_precision"): False,
    ("train in blocks", "workers"): 16,
    ("train in blocks", "tensor"): 4,
    ("train on one", "gpu"): "h100-sxm",
    ("train on one", "calibration"): "t4-fp16",
    ("predict a group", "tensor"): 8,
    ("rl", "platform"): "dgx-a100",
    ("rl apart", "platform"): "dgx-a100",
    ("rl", "engine_settings"): "max-sequences=2",
    ("rl apart", "engine_settings"): "eager=yes",
    ("rl", "offload"): "none",
    ("rl apart", "offload"): "none",
    ("rl", "precision"): "fp8",
    ("rl apart", "precision"): "fp8",
    ("rl", "workers"): 16,
    ("rl apart", "workers"): 16,
    ("serve", "tensor"): 4,
    ("serve", "workers"): 4,
    ("serve", "platform"): "p5.48xlarge",
    ("serve", "advise"): "joules",
    ("local", "advise"): True,
    ("local", "engine"): "exllama",
    ("local", "weights"): "q8_0",
    ("local", "kv_cache"): "q8_0",
    ("local", "gpu"): "rtx3090",
    ("denoiser", "phase"): "forward",
    ("denoiser", "weights"): "nf4",
    ("pictures", "weights"): "int8",
    ("pictures on many", "workers"): 4,
    ("pictures", "offload"): "model",
    ("pictures", "image_size"): 512,
    ("pictures on many", "image_size"): 512,
    ("denoiser", "image_size"): 256,
}  # fmt: skip
"""Values for one base, where another is needed."""


def cells() -> list[tuple[str, str]]:
    return [
        (base, option)
        for base, (kind, _) in BASES.items()
        for option in options_of(find_kind(kind).record)
        if option not in NO_NUMBERS
    ]


def answer(kind: str, options: dict[str, Any]) -> Any:
    """Return the answer as JSON, without what only repeats the question."""
    found = find_kind(kind)
    return found.answer(found.record(**options)).to_dict()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A file of requests, and one of lengths of responses."""
    requests = tmp_path_factory.mktemp("cells") / "requests.csv"
    requests.write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n1,200,20\n")
    lengths = tmp_path_factory.mktemp("lengths") / "lengths.txt"
    lengths.write_text("100\n150\n300\n")
    return {"REQUESTS": str(requests), "LENGTHS": str(lengths)}


_ANSWERS: dict[str, Any] = {}


def base_answer(base: str) -> Any:
    if base not in _ANSWERS:
        _ANSWERS[base] = answer(*BASES[base])
    return _ANSWERS[base]


NO_NUMBERS = {"hardware_files", "memory"}
"""Options that change no number: a further device, until it is asked for, and a part of the output."""


@pytest.mark.spread(160)
@pytest.mark.parametrize(("base", "option"), cells())
def test_every_option_changes_the_answer_or_is_refused(base: str, option: str, files: dict[str, str]) -> None:
    kind, asked = BASES[base]
    value = BY_BASE.get((base, option), VALUES.get(option))
    assert value is not None, f"give a value of {option}"
    value = files.get(value, value) if isinstance(value, str) else value
    try:
        changed = answer(kind, {**asked, option: value})
    except pl.PaleoError as error:
        assert len(str(error)) > 20 and "\n" not in str(error)
        return
    assert changed != base_answer(base), f"{option} of `{kind}` is ignored: {asked}"


ELSEWHERE = {
    "predict a CNN": {"image_size"},
    "predict a group": {"expert_parallel"},
    "train on one": {"sequence_length", "tokens", "lora"},
    "train in blocks": {"platform", "tensor", "pipeline", "context_parallel", "expert_parallel"},
    "pictures": {"weights", "attention", "steps", "guidance", "step_caching"},
    "pictures on many": {"workers", "ring"},
    "rl apart": set(),
}
"""Options of bases that `make test` compares there only, because the light base of the kind refuses them.

What takes several values is declared once for a kind, and compared by the same code for all its bases.
"""

SEVERAL = [
    pytest.param(base, option, marks=pytest.mark.thorough if option not in ELSEWHERE.get(base, {option}) else ())
    for base, (kind, _) in BASES.items()
    for option, declared in options_of(find_kind(kind).record).items()
    if declared.takes_several and option not in NO_NUMBERS and not isinstance(VALUES.get(option), (list, bool))
]


@pytest.mark.spread(63)
@pytest.mark.parametrize(("base", "option"), SEVERAL)
def test_every_option_takes_several_values(base: str, option: str, files: dict[str, str]) -> None:
    """The value of the base beside another one: both rows of a comparison, or one with a reason for the other."""
    kind, asked = BASES[base]
    value = BY_BASE.get((base, option), VALUES[option])
    value = files.get(value, value) if isinstance(value, str) else value
    default = next(field.default for field in dataclasses.fields(find_kind(kind).record) if field.name == option)
    first = asked.get(option, default)
    if first is None:
        first = value
        value = SECOND.get(option)
        if value is None:
            return
    try:
        compared = answer(kind, {**asked, option: [first, value]})
    except pl.PaleoError as error:
        assert len(str(error)) > 20 and "\n" not in str(error)
        return
    rows = compared["rows"]
    assert len(rows) + len(compared.get("left_out", ())) >= 2, option


SECOND = {
    "sequence_length": 128, "power_limit": "200 W", "clock": "1.1 GHz", "context": 256, "weights": "fp8",
    "kv_cache": "bf16", "attention": "flash2", "time_model": "calibrated", "ppp": 0.6, "price": "AWS", "lora": 4,
    "recompute": "none", "accumulation": 4, "samples": "2M", "tokens": "2B", "epochs": 1, "optimizer": "sgd",
    "micro_batch": 1, "max_sequences": 4, "seed": 1, "concurrency": 8, "gpu_layers": 8,
    "steps": 4, "guidance": 2, "frames": 9, "step_caching": 1, "ulysses": 4, "ring": 1, "image_size": 128,
    "execution": "eager", "engine": "vllm", "prompt": 128, "backend": "cuda",
}  # fmt: skip
"""A second value of options that have no default of their own."""


def stated_defaults() -> list[tuple[str, str]]:
    """Return the bases with the options that have a default other than nothing."""
    found = []
    for base, (kind, asked) in BASES.items():
        record = find_kind(kind).record
        declared = options_of(record)
        for field in dataclasses.fields(record):
            if field.name in declared and field.name not in asked and field.default not in (None, (), False):
                found.append((base, field.name))
    return found


@pytest.mark.spread(24)
@pytest.mark.parametrize(("base", "option"), stated_defaults())
def test_stating_a_default_changes_nothing(base: str, option: str) -> None:
    kind, asked = BASES[base]
    (default,) = (field.default for field in dataclasses.fields(find_kind(kind).record) if field.name == option)
    assert answer(kind, {**asked, option: default}) == base_answer(base)


@pytest.mark.spread(5)
@pytest.mark.parametrize("base", BASES)
def test_the_command_line_answers_the_same(base: str) -> None:
    kind, asked = BASES[base]
    words = [kind, asked["network"], "--format", "json"]
    declared = options_of(find_kind(kind).record)
    for name, value in asked.items():
        if name != "network":
            words += [documented_spelling(name, declared[name])] + ([] if value is True else [str(value)])
    said = CliRunner().invoke(main, words)
    assert said.exit_code == 0, said.output
    from_python = answer(kind, {**asked, **({"memory": True} if "memory" in declared else {})})
    assert json.loads(said.stdout) == json.loads(json.dumps(from_python)), shlex.join(words)


@pytest.mark.parametrize("kind", KINDS)
def test_help_shows_at_most_25_options_in_groups(kind: str) -> None:
    short = CliRunner(env={"COLUMNS": "100"}).invoke(main, [kind, "--help"]).stdout
    whole = CliRunner(env={"COLUMNS": "100"}).invoke(main, [kind, "--help-all"]).stdout
    options = [line for line in short.splitlines() if line.startswith("  -") and not line.startswith("   ")]
    assert 5 < len(options) <= 31, options  # 25 of the question, and six of the output
    assert len(whole.splitlines()) > len(short.splitlines())
    for name, declared in options_of(find_kind(kind).record).items():
        assert documented_spelling(name, declared) in whole


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train resnet50 --gpu t4 --workers 4 --communication overlap=maybe", "overlap: the value must be yes or no"),
        ("rl qwen3-8b --gpu h100-sxm --workers 8 --reward seconds=0", "`--reward`, seconds: '0' has no unit: expected"),
        ("train resnet50 --gpu t4 --workers 4 --communication speed=3", "valid names: bucket, collective"),
        ("train resnet50 --gpu t4 --workers 4 --communication overlap", "takes settings such as collective=..."),
        ("train resnet50 --gpu t4 --workers 4 --communication overlap=no,overlap=no", "has overlap twice"),
        ("predict resnet18 --gpu t4 --price 2,free", "must be USD per hour, such as '2.50 USD/h', or a cloud"),
        ("predict resnet18 --gpu t4 --time-model ppp-overlap", "needs a PPP"),
        ("serve llama-3-8b,gpt2 --gpu t4 --rate 1 --advise cost", "`--advise` ranks deployments of one network"),
        ("predict flux.1-dev --gpu t4", "ask `paleo-lite diffusion flux.1-dev`"),
        ("train flux.1-dev --gpu h100-sxm --sequence-length 512", "`--sequence-length` is not for the denoiser"),
        ("train flux.1-dev --gpu h100-sxm --training-settings loss=cut", "`--training-settings loss` is not for"),
        ("train flux.1-dev --gpu h100-sxm --frames 9", "flux.1-dev makes pictures: remove --frames"),
        ("train resnet50 --gpu h100-sxm --frames 9", "--frames is for pipelines such as flux.1-dev"),
        ("diffusion resnet50 --gpu t4", "needs a pipeline such as flux.1-dev"),
        ("diffusion wan2.3-t2v-14b --gpu t4", "did you mean wan-2.2-14b, wan-2.1-14b"),
        ("local llama-3.1-8b", "give the device with `--gpu`"),
        ("local llama-3.1-8b --gpu rtx3090+rtx4060ti-16gb --workers 2", "leave `--workers` out"),
    ],
)
def test_bad_questions_get_one_sentence(words: str, message: str) -> None:
    said = CliRunner().invoke(main, words.split())
    assert said.exit_code == 2 and message in said.stderr and said.stderr.count("\n") == 1


@pytest.mark.parametrize("name", [device.name for device in list_devices() if "+" in device.name])
def test_a_plus_sign_in_the_name_of_a_device_joins_no_devices(name: str) -> None:
    said = CliRunner().invoke(main, ["local", "qwen3-8b", "--gpu", name])
    assert said.exit_code == 0 and name in said.stdout.splitlines()[0]


EVERYDAY = list(csv.DictReader((Path(__file__).parent / "everyday.csv").read_text(encoding="utf-8").splitlines()))
"""Thirty questions of public issue threads, with the option that each is about."""


@pytest.mark.parametrize("asked", EVERYDAY, ids=lambda asked: f"{asked['kind']} {asked['option']}")
def test_help_shows_the_option_of_an_everyday_question(asked: dict[str, str]) -> None:
    shown = CliRunner(env={"COLUMNS": "100"}).invoke(main, [asked["kind"], "--help"]).stdout
    assert any(re.search(rf"^  (-\S+, )*{asked['option']}\b", line) for line in shown.splitlines()), asked["question"]


def test_the_everyday_questions_are_thirty_of_different_threads() -> None:
    assert len(EVERYDAY) == 30 and len({asked["source"] for asked in EVERYDAY}) == 30


@pytest.mark.parametrize("options", [{"gpu": {"t4"}}, {"gpu": b"t4"}], ids=["set", "bytes"])
def test_values_of_other_types_get_one_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="`--gpu` takes a value or a list of values"):
        pl.predict("alexnet", **options)


def test_arrays_are_several_values_and_paths_name_networks(tmp_path: Path) -> None:
    several = pl.predict("alexnet", gpu="t4", batch_size=np.array([1, 2]))
    assert [row["batch_size"] for row in several.rows] == [1, 2]
    with pytest.raises(PaleoError, match=r"missing\.json: cannot be read"):
        pl.predict(tmp_path / "missing.json", gpu="t4")
    with pytest.raises(BadValue, match="a network is a name, a path, a module of PyTorch or a Network"):
        pl.predict({"alexnet": 1}, gpu="t4")
