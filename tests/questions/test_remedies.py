"""What remedies state, and commands that answers print: each is given to the command line as it is written.

Tests: timing/capacity.py.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.machines import find_device
from paleo_lite.questions.predict import Predict
from paleo_lite.questions.train import remedies_in_training
from paleo_lite.units import format_si

TOO_LARGE = {  # questions that do not fit, with the remedies that they have at least
    "train resnet50 --gpu v100-sxm2-16gb --batch-size 256": 8,
    "train vgg16 --gpu a100-sxm-40gb --batch-size 1024": 7,
    "train llama-3.2-3b --gpu rtx4090 --precision bf16": 8,
    "train qwen3-8b --gpu a100-sxm-40gb --precision bf16 --batch-size 4": 12,
    "train llama-3.2-1b --gpu h100-sxm --precision fp32 --batch-size 16 --accumulation 2": 10,
    "train llama-3.2-1b --gpu h100-sxm --precision fp32 --micro-batch 8 --accumulation 2": 10,
    "train bert-large --gpu t4 --batch-size 64": 12,
    "train flux.1-dev --gpu a100-sxm-40gb": 8,
    "train flux.1-dev --gpu rtx4090 --lora 16": 12,
    "predict resnet50 --phase training --gpu t4 --batch-size 256 --precision fp32": 8,
    "predict vit_b_16 --gpu t4 --batch-size 4096 --precision fp32": 1,
    "predict llama-3-8b --gpu rtx4060 --phase decode": 2,
    "predict resnet50 --gpu k80-die --precision fp64 --batch-size 64 --phase forward+backward": 6,
    "predict llama-3.2-3b --gpu rtx4090 --precision bf16 --batch-size 4 --phase forward+backward": 8,
    "predict llama-3.2-1b --gpu rtx4090 --precision bf16 --batch-size 16 --phase backward": 8,
    "predict llama-3.2-1b --gpu rtx4090 --precision bf16 --batch-size 16 --phase backward --attention eager": 6,
    "predict llama-3.2-1b --gpu rtx4090 --precision bf16 --batch-size 16 --phase training --attention eager": 6,
    "diffusion flux.1-dev --phase training --gpu a100-sxm-40gb": 8,
}


def ask(words: list[str]) -> dict[str, Any]:
    """Return the answer to a command."""
    result = CliRunner().invoke(main, [*words, "--format", "json"])
    assert result.exit_code == 0, f"{shlex.join(words)}: {result.output}"
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def options_of(words: list[str]) -> list[list[str]]:
    """Return options with their values."""
    options: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            options.append([])
        options[-1].append(word)
    return options


CONTRADICTED = {"--accumulation": ("--micro-batch",)}
"""Options that others replace: the number of the micro-batches of a batch their size."""


def changed(words: list[str], remedy: list[str]) -> list[str]:
    """Return a question with the options of a remedy, in the place of those that they contradict."""
    command, network, *given = words
    if "--phase" in given and command != "train" and "--attention" in given and not remedy:
        remedy = ["--training-settings", f"attention={given[given.index('--attention') + 1]}"]
    names = {option[0] for option in options_of(remedy)}
    replaced = names.union(*(CONTRADICTED.get(name, ()) for name in names))
    if "--phase" in given and command != "train":
        command, replaced = "train", replaced | {"--phase", "--attention"}
    kept = [word for option in options_of(given) if option[0] not in replaced for word in option]
    return [command, network, *kept, *remedy]


@pytest.mark.spread(4)
@pytest.mark.parametrize("question", TOO_LARGE)
def test_remedies_are_the_answers_of_their_options(question: str) -> None:
    words = question.split()
    answer = ask(words)
    remedies = answer["memory"]["remedies"]
    assert answer["fits"] is False and len(remedies) >= TOO_LARGE[question]
    # Remedies of passes without an update are options of `train`, whose step has one: times are relative to it.
    without = ask(changed(words, [])) if {"backward", "forward+backward"} & {*words} else answer
    for remedy in remedies:
        found = ask(changed(words, shlex.split(remedy["options"])))
        rows = found.get("rows")
        time_s, memory, fits = (
            found["time_s"], found["memory"]["total_bytes"], found["fits"]
        ) if rows is None else (
            rows[-1]["time_s"], rows[-1]["memory_bytes"], rows[-1]["fits"]
        )  # fmt: skip
        assert remedy["time_ratio"] == pytest.approx(time_s / without["time_s"], rel=1e-6), remedy["options"]
        assert remedy["total_bytes"] == pytest.approx(memory, rel=1e-3), remedy["options"]
        assert remedy["fits"] is fits, remedy["options"]


def test_two_remedies_are_named_together_where_no_single_one_is_enough() -> None:
    """12 billion parameters take 24 GB in bf16 and 12 GB in fp8; activations the rest unless they are recomputed."""
    remedies = ask(["train", "flux.1-dev", "--gpu", "rtx4090", "--lora", "16"])["memory"]["remedies"]
    fitting = {remedy["options"] for remedy in remedies if remedy["fits"]}
    assert "--recompute all --weights fp8" in fitting
    assert all(len(shlex.split(options)) == 4 for options in fitting)
    by_size = ask(["train", "flux.1-dev", "--gpu", "a100-sxm-40gb", "--lora", "16"])["memory"]["remedies"]
    assert any(remedy["fits"] for remedy in by_size)
    assert not any(remedy["options"].count("--recompute") and "--weights" in remedy["options"] for remedy in by_size)


def test_a_step_that_train_refuses_has_no_remedies() -> None:
    """Batch norms are folded into convolutions for inference only."""
    question = Predict("vgg16", gpu="t4", phase="forward+backward", batch_size=8, execution="folded")
    assert remedies_in_training(question, less_than_bytes=10**12) == ()


def test_a_pass_of_which_no_sample_fits_refers_to_train() -> None:
    said = "; `train` with the same options names remedies"
    words = ["predict", "llama-3-8b", "--gpu", "rtx4090", "--precision", "bf16", "--batch-size", "fit"]
    result = CliRunner().invoke(main, [*words, "--phase", "forward+backward"])
    assert result.exit_code and said in result.stderr and "remedies that make it fit" not in result.stderr


PRINTED = {  # questions whose answer or refusal names options or a command that would help, with their number
    "train llama-3-8b --gpu a100-sxm-40gb --workers 8": 5,
    "train resnet50 --gpu k80 --workers 4": 2,
    "train llama-3-70b --gpu h100-sxm --workers 8": 2,
    "train qwen3-30b-a3b --gpu h100-sxm --workers 6": 3,
    "train llama-3-8b --gpu h100-sxm --workers 8 --pipeline 4": 1,
    "train llama-3-70b --gpu h100-sxm --batch-size fit": 1,
    "train gpt2 --gpu a100-sxm-80gb": 1,
    "diffusion flux.1-dev --gpu a100-sxm-40gb --phase training --workers 8": 1,
    "rl qwen3-32b --gpu h100-sxm --workers 8 --framework verl": 1,
    "serve qwen3-32b --gpu h100-sxm --rate 1 --memory-fraction 0.5": 1,
    "predict resnet50 --gpu rtx3090 --precision fp32 --phase training --batch-size 64": 1,
}

COMMANDS = ("train ", "predict ", "serve ", "rl ", "diffusion ", "local ")


def printed_commands(question: str) -> list[list[str]]:
    """Return the commands that an answer prints in backquotes: whole ones, and options with values for the question."""
    words = question.split()
    result = CliRunner().invoke(main, words, env={"COLUMNS": "400"})
    text = result.output if result.exit_code == 0 else result.stderr
    commands = []
    for span in dict.fromkeys(re.findall(r"`([^`\n]+)`", text)):
        if span.startswith(COMMANDS):
            commands.append(shlex.split(span))
        elif span.startswith("--") and " " in span and "NAME" not in span and span not in question:
            commands.append(changed(words, shlex.split(span)))
    return [command for command in commands if command[-1] not in ("memory-fraction", "1")]  # names of what was asked


@pytest.mark.spread(5)
@pytest.mark.parametrize("question", PRINTED)
def test_printed_commands_run_as_they_are_written(question: str) -> None:
    commands = printed_commands(question)
    assert len(commands) >= PRINTED[question]
    for command in commands:
        ask(command)


FITTING_NOTES = {  # questions of many devices that do not fit, with the changes that their note names
    "train llama-3.1-8b --gpu h100-sxm --workers 64 --sequence-length 8192": 3,
    "train llama-3.1-8b --gpu h100-sxm --workers 64 --sequence-length 8192 --mixed-precision": 3,
    "train llama-3.1-8b --gpu h100-sxm --workers 64 --sequence-length 8192 --strategy ddp --batch-size 2": 3,
    "train llama-3.1-8b --gpu h100-sxm --workers 64 --sequence-length 8192 --micro-batch 2": 3,
    "train llama-3.1-8b --gpu h100-sxm --workers 64 --sequence-length 8192 --accumulation 2 --batch-size 4": 3,
    "train qwen3-32b --gpu h100-sxm --workers 16 --mixed-precision": 3,
    "train qwen3-30b-a3b --gpu h100-sxm --workers 8 --sequence-length 8192 --mixed-precision": 3,
    "train qwen3-30b-a3b --gpu h100-sxm --workers 8 --sequence-length 8192 --mixed-precision --pipeline 2": 2,
    "train qwen3-30b-a3b --gpu h100-sxm --workers 16 --mixed-precision --strategy ddp --micro-batch 2": 3,
    "train llama-3.1-405b --gpu h100-sxm --workers 128 --mixed-precision --sequence-length 8192": 3,
    "train llama-3.1-70b --gpu h100-sxm --workers 16 --mixed-precision --sequence-length 32768": 1,
    "train deepseek-v3 --gpu h100-sxm --workers 256 --mixed-precision": 3,
    "train qwen3-235b-a22b --gpu h100-sxm --workers 64 --mixed-precision --micro-batch 2": 3,
    "train llama-3.1-70b --gpu h100-sxm --workers 16 --mixed-precision --sequence-length 4096": 1,
    "train llama-3.1-70b --gpu h100-sxm --workers 64 --mixed-precision --tensor 4": 1,
    "train llama-3-8b --gpu a100-sxm-40gb --workers 8 --link nvlink3-x12": 3,
    "train gpt2 --gpu t4 --workers 4 --micro-batch 32 --accumulation 2 --link pcie3-x16": 2,
    "train gpt2 --gpu t4 --workers 4 --global-batch-size 256 --micro-batch 64 --link pcie3-x16": 3,
    "train resnet50 --gpu k80-die --link pcie3-x16 --workers 4 --micro-batch 512": 1,
    "train bert-large --gpu h100-sxm --workers 8 --batch-size 2048": 2,
    "train flux.1-dev --gpu h100-sxm --workers 8 --mixed-precision --image-size 1024": 2,
    "train flux.1-dev --gpu h100-sxm --workers 8 --mixed-precision --image-size 1024 --tensor 8": 2,
    "train resnet50 --gpu k80-die --link pcie3-x16 --workers 4 --batch-size 512": 1,
    "train bert-large --gpu h100-sxm --workers 8 --batch-size 2048 --strategy zero-1": 2,
    "train vgg16 --gpu h100-sxm --workers 4 --batch-size 4096 --strategy tensor": 1,
    "train vgg16 --gpu h100-sxm --workers 4 --batch-size 4096 --strategy pipeline-gpipe": 1,
    "train vgg16 --gpu h100-sxm --workers 4 --global-batch-size 16384 --strategy hybrid": 1,
    "train llama-3.1-70b --gpu h100-sxm --workers 64 --mixed-precision --pipeline 4 --tensor 2 --execution eager": 3,
    "train gpt2 --gpu t4 --workers 4 --batch-size 64 --link pcie3-x16": 3,
    "train gpt2 --gpu t4 --workers 4 --global-batch-size 256 --link pcie3-x16": 3,
    "train llama-3.1-8b --gpu h100-sxm --workers 8 --lora 16 --batch-size 64 --sequence-length 8192": 3,
    "train mixtral-8x7b --gpu h100-sxm --workers 16": 1,
}


def stated_changes(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the changes that the notes of an answer name: options, memory and time of a step."""
    notes = answer["notes"] + [note for row in answer.get("rows", ()) for note in row.get("notes", ())]
    pattern = r"`(--[^`]+)` \(([^()]+ [kMG]?B) and ([^()]+s) per step\)"
    return list(dict.fromkeys(found for note in notes for found in re.findall(pattern, note)))


def test_advice_without_a_strategy_that_fits_says_what_fits_instead() -> None:
    """Tensor-parallel groups share 36% of this denoiser alone, so that no strategy beside them fits."""
    question = "train flux.1-dev --gpu h100-sxm --workers 8 --mixed-precision --image-size 1024 --tensor 8"
    answer = ask([*question.split(), "--advise", "time"])
    assert "without `--advise` it fits with `--strategy zero-3 --tensor 1`" in answer["why"]
    assert not any("every device has the whole state" in note for note in answer["notes"])


@pytest.mark.parametrize(
    "question",
    [
        "train llama-3.1-405b --gpu h100-sxm --workers 128 --mixed-precision --sequence-length 8192",
        "train llama-3.1-70b --gpu h100-sxm --workers 16 --mixed-precision --sequence-length 32768",
    ],
)
def test_no_more_devices_are_asked_for_where_advice_finds_a_division(question: str) -> None:
    words = question.split()
    advised = ask([*words, "--advise", "time"])["rows"][0]
    changes = stated_changes(ask(words))
    assert advised["fits"] and changes
    assert all("--pipeline" in options for options, _, _ in changes)


def test_experts_are_divided_where_they_do_not_fit() -> None:
    """128 experts hold 29.0 of 30.5 billion parameters, of which eight devices with 16 each need an eighth."""
    question = "train qwen3-30b-a3b --gpu h100-sxm --workers 8 --sequence-length 8192 --mixed-precision"
    (options, _, _), *_ = stated_changes(ask(question.split()))
    assert "--expert-parallel 8 " in options


@pytest.mark.parametrize("network", ["qwen3-30b-a3b", "llama-3.1-8b"])
def test_long_sequences_are_divided_where_they_do_not_fit(network: str) -> None:
    """A device keeps the tokens of its own share of a sequence alone (Liu et al. 2023, Ring attention)."""
    words = f"train {network} --gpu h100-sxm --workers 8 --sequence-length 131072".split()
    changes = [change for change in stated_changes(ask(words)) if "--context-parallel 8" in change[0]]
    assert changes
    for options, memory, _ in changes:
        row = ask(changed(words, shlex.split(options)))["rows"][-1]
        assert row["fits"] and memory == format_si(row["memory_bytes"], "B", 3)


@pytest.mark.parametrize("question", FITTING_NOTES)
def test_changes_have_the_memory_and_time_of_the_command_they_name(question: str) -> None:
    words = question.split()
    changes = stated_changes(ask(words))
    assert len(changes) >= FITTING_NOTES[question]
    for options, memory, time in changes:
        row = ask(changed(words, shlex.split(options)))["rows"][-1]
        assert row["fits"], options
        stated = (format_si(row["memory_bytes"], "B", 3), format_si(row["time_s"], "s", 3))
        assert (memory, time) == stated, options


FORMATS = ("table", "markdown", "csv", "json")


@pytest.mark.parametrize(
    ("asked", "fitting"),
    [
        ("resnet50 --gpu rtx4060 --precision fp16 --batch-size 8192", "--batch-size fit"),
        ("vit_h_14 --gpu jetson-nano --batch-size 64", "--batch-size fit"),
        ("llama-3-70b --gpu rtx4060", ""),
        ("llama-3-8b --gpu rtx4060", "--weights int4"),
    ],
)
def test_inference_that_does_not_fit_says_so_in_every_output(asked: str, fitting: str) -> None:
    words = ["predict", *shlex.split(asked)]
    shown = {form: CliRunner().invoke(main, [*words, "--format", form]).stdout for form in FORMATS}
    answer = json.loads(shown["json"])
    options = {option[2:].replace("-", "_"): value for option, value in options_of(words[2:])}
    options["batch_size"] = int(options.get("batch_size", 1))
    assert pl.predict(words[1], **options).to_dict() == answer
    assert answer["fits"] is False and answer["memory_bytes"] > find_device(options["gpu"]).memory_bytes
    for form in ("table", "markdown"):
        assert "does not fit into memory" in shown[form].splitlines()[0]
    rows = list(csv.DictReader(shown["csv"].splitlines()))
    assert {(row["fits"], float(row["memory_bytes"])) for row in rows} == {("False", answer["memory_bytes"])}
    first = shown["markdown"].splitlines()[0]
    if fitting == "--batch-size fit":
        largest = ask(
            [*words[: words.index("--batch-size")], *words[words.index("--batch-size") + 2 :], *fitting.split()]
        )
        assert f"fits up to batch {largest['batch_size']:,}" in first and largest["fits"]
    elif fitting:
        assert f"`{fitting}`" in first and ask([*words, *fitting.split()])["fits"]
    else:
        assert "not even one sample fits" in first


@pytest.mark.parametrize(
    ("network", "gpu", "options"),
    [
        ("llama-3-70b", "h100-sxm", "--tensor 2"),  # 141 GB in bf16, 84 GB usable
        ("deepseek-v3", "h200-sxm", "--tensor 8"),  # 674 GB in fp8, 149 GB usable
        ("llama-3.1-405b", "h100-sxm", "--weights int4 --tensor 4"),  # 812 GB in bf16, more than a node has
    ],
)
def test_text_generation_names_the_group_of_devices_that_holds_it(network: str, gpu: str, options: str) -> None:
    asked: dict[str, Any] = {"gpu": gpu, "phase": "decode"}
    alone = pl.predict(network, **asked)
    remedies = {remedy.options: remedy for remedy in alone.memory.remedies if remedy.fits}
    words = dict(zip(options.split()[::2], options.split()[1::2], strict=True))
    asked |= {name.removeprefix("--"): int(value) if value.isdigit() else value for name, value in words.items()}
    row = pl.predict(network, **asked).rows[0]
    assert row.fits and remedies[options].total_bytes == row.memory_bytes
    assert remedies[options].time_ratio == pytest.approx(row.time_s / alone.time_s)
    smaller = pl.predict(network, **{**asked, "tensor": asked["tensor"] // 2})
    fit = smaller.memory.fits if asked["tensor"] == 2 else smaller.rows[0].fits
    assert not fit


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"network": "hunyuanvideo", "gpu": "h100-sxm"}, "--tiled"),  # 226 GB, of which the decoder needs most
        ({"network": "hunyuanvideo", "gpu": "rtx4090"}, "--tiled --offload sequential"),
        ({"network": "flux.1-dev", "gpu": "rtx4090"}, "--offload model"),
    ],
)
def test_pictures_that_do_not_fit_name_what_fits_as_it_is_typed(asked: dict[str, str], options: str) -> None:
    answer = pl.diffusion(**asked)
    (remedy,) = answer.memory.remedies
    assert not answer.memory.fits and remedy.options == options
    words = ["diffusion", asked["network"], "--gpu", asked["gpu"], *shlex.split(options), "--format", "json"]
    changed = json.loads(CliRunner().invoke(main, words).stdout)
    assert changed["fits"] and changed["memory"]["total_bytes"] == remedy.total_bytes
    assert remedy.time_ratio == pytest.approx(changed["time_s"] / answer.time_s)
    first_line = CliRunner().invoke(main, words[:4]).stdout.splitlines()[0]
    assert first_line.endswith(f"; fits with `{options}`")
