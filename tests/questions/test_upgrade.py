"""Words of earlier versions get one sentence with the new word."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.calibration.validate import SPLITS
from paleo_lite.cli import main
from paleo_lite.cli.question import make_command
from paleo_lite.questions.kind import KINDS
from paleo_lite.questions.upgrade import BROUGHT, MOVED, MOVED_COMMANDS, MOVED_EVERYWHERE
from validation.__main__ import SPLITS as ACCURACY_SPLITS

OPTIONS = [(command, option) for table in (MOVED, BROUGHT) for command, options in table.items() for option in options]


@pytest.mark.spread(60)
@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_of_earlier_versions_names_the_new_one(command: str, option: str) -> None:
    said = CliRunner().invoke(main, [command, "alexnet", "--gpu", "t4", option, "1"])
    assert said.exit_code == 2
    assert said.stderr.count("\n") == 1 and re.search(f"`{option}` (is|has)", said.stderr)


def test_sentences_name_options_that_exist() -> None:
    commands = [*map(make_command, KINDS), *map(find_command, ("feeding", "efficiency"))]
    spellings = {opt for command in commands for option in command.params for opt in option.opts}
    tables = (*MOVED.values(), *BROUGHT.values(), MOVED_EVERYWHERE, MOVED_COMMANDS)
    for sentence in (text for table in tables for text in table.values()):
        assert set(re.findall(r"--[a-z-]+", sentence)) <= spellings, sentence


@pytest.mark.parametrize("command", KINDS)
@pytest.mark.parametrize("option", MOVED_EVERYWHERE)
def test_merged_options_name_the_new_one(command: str, option: str) -> None:
    said = CliRunner().invoke(main, [command, "alexnet", "--gpu", "t4", option, "1"])
    assert said.exit_code == 2 and f"`{option}` is" in said.stderr and said.stderr.count("\n") == 1


def test_a_command_of_earlier_versions_names_the_new_ones() -> None:
    for command in MOVED_COMMANDS:
        said = CliRunner().invoke(main, [command, "alexnet", "--gpu", "t4"])
        assert said.exit_code == 2 and f"`{command}` is" in said.stderr and "`paleo-lite " in said.stderr


OF_0_1_0 = """
predict: accumulation batch-size calibration checkpointing clock convention execution explain fit-batch flops format
  gpu hardware-file image-size input memory mixed-precision optimizer overlap phase plot ppp precision theme
  time-model top unit
gemm: calibration clock count format gpu hardware-file into peak precision tile time-model unit
pipeline: access batch-size calibration decode-rate decoded decoded-bytes devices format gpu hardware-file host-link
  image-size input no-overlap no-pinned phase ppp precision random-reads sample-bytes storage workers
scale: accumulation advise batch-size bucket-size calibration checkpointing clock collective compat cost epochs
  format gpu gradient-precision hardware-file image-size images input interference link micro-batches
  mixed-precision no-overlap optimizer platform plot ppp ppp-comm precision price revision scaling slowdown strategy
  theme time-model topology unit workers
sweep: batch-sizes collectives dry-run force format gpus hardware-file jobs links networks optimizer output phases
  power ppp precisions price samples scalings scheduler strategies time-models workers yes
best: format maximise maximize minimise minimize pareto plot theme top where
report: accumulation advise batch-size calibration checkpointing clock collective epochs execution fit-batch force
  gpu hardware-file image-size images input link mixed-precision name-pattern optimizer output phase platform ppp
  precision price profile program scaling strategy time-model topology unit workers
layers: batch-size convention execution format ignore image-size input phase
networks export: force image-size input output
networks list, calibrations list, calibrations show: format
networks show: format image-size
hardware audit, hardware list, hardware show: format hardware-file
hardware links: format move
calibrate: batch-size date force format gpu hardware-file name-pattern network output plot precision template theme
validate: data format gpu plot precision split theme
measure: calibration-out channels-last compile device force format gpu hardware-file hardware-out output phase
  precision quick threads
efficiency: durations format gpu group-by hardware-file jobs keep-going method name-pattern plot precision scheduler
  theme
kernels: direction format full-names gpu hardware-file name-pattern next-command plot precision program sort theme
  top
compare: a b batch-size direction format gpu hardware-file name-pattern plot ppp precision predict repeats theme
  time-model top
plot roofline, plot layers, plot kinds, plot passes: accumulation batch-size calibration checkpointing clock
  convention execution fit-batch flops gpu hardware-file image-size input mixed-precision optimizer output overlap
  phase ppp precision theme time-model unit
plot batch: batch-sizes gpu hardware-file output phase ppp precision theme time-model
plot scaling: accumulation advise batch-size bucket-size calibration checkpointing clock collective compat cost
  epochs gpu gradient-precision hardware-file image-size images input interference link micro-batches
  mixed-precision no-overlap optimizer output platform ppp ppp-comm precision price revision scaling slowdown
  strategy theme time-model topology unit workers
plot pareto: maximise maximize minimise minimize output pareto theme where
plot accuracy: data gpu output precision split theme
plot fit: batch-size gpu hardware-file name-pattern network output precision theme
plot timeline: output slices theme
plot classes, plot kernels: direction gpu hardware-file name-pattern output precision theme
plot efficiency: durations gpu group-by hardware-file jobs keep-going method name-pattern output precision scheduler
  theme
plot compare: a b batch-size direction gpu hardware-file name-pattern output ppp precision predict repeats theme
  time-model
ui: no-browser port
scaled: batches durations format gpu group-by hardware-file name-pattern precision tau-batches tau-init
"""
"""Commands and options of 0.1.0, apart from ``--debug``: those of `paleo_lite.cli` at commit 376c5669."""

SUCCESSORS = {
    "pipeline": ("feeding",),
    "scale": ("train",),
    "sweep": ("predict", "train"),
    "report": ("predict", "train", "efficiency"),
    "scaled": ("efficiency",),
}
"""Commands that took over what a command of 0.1.0 answered; its message names the first."""

_ANSWERED = {"report": {"--profile", "--program"}}
"""Options of commands that are gone for which the message about the command has the answer."""


def commands_of_0_1_0() -> dict[str, list[str]]:
    """Return the options of every command of 0.1.0."""
    lines = re.sub(r"\n  ", " ", OF_0_1_0).strip().splitlines()
    pairs = [line.split(":") for line in lines]
    return {name: [f"--{word}" for word in options.split()] for names, options in pairs for name in names.split(", ")}


def find_command(words: str) -> click.Command | None:
    """Return a command, or a command of a group, by its words."""
    command: click.Command = main
    context = click.Context(main)
    for word in words.split():
        assert isinstance(command, click.Group)
        try:
            found = command.get_command(context, word)
        except click.UsageError:
            return None
        if found is None:
            return None
        command = found
    return command


def is_answered(command: str, option: str) -> bool:
    """Return whether a command has an option, or refuses it in one line that says what it is now."""
    found = find_command(command)
    assert found is not None
    if any(option in (*parameter.opts, *parameter.secondary_opts) for parameter in found.params):
        return True
    said = CliRunner().invoke(main, [*command.split(), "alexnet", option, "1"])
    sentence = re.search(f"`{option}` (is|has) .*(`|now)", said.stderr)
    return said.exit_code == 2 and said.stderr.count("\n") == 1 and sentence is not None


def test_the_list_of_0_1_0_is_whole() -> None:
    """As many commands, and options of them, as `paleo_lite.cli` had."""
    options = commands_of_0_1_0()
    groups = {command.split()[0] for command in options}
    assert len(groups) == 20 and sum(map(len, options.values())) == 485


@pytest.mark.parametrize("command", commands_of_0_1_0())
def test_commands_and_options_of_0_1_0_exist_or_name_their_successors(command: str) -> None:
    options = commands_of_0_1_0()[command]
    if find_command(command) is not None:
        assert [option for option in options if not is_answered(command, option)] == []
        return
    said = CliRunner().invoke(main, [command, "alexnet"])
    assert said.exit_code == 2 and f"`{command}` is" in said.stderr
    successors = SUCCESSORS[command]
    assert f"`paleo-lite {successors[0]}" in said.stderr
    options = [option for option in options if option not in _ANSWERED.get(command, ())]
    lacking = [option for option in options if not any(is_answered(successor, option) for successor in successors)]
    assert lacking == []


@pytest.mark.parametrize("split", ["network", "family", "gpu", "source", "layers", "profile", "collectives", "scaling"])
@pytest.mark.parametrize("command", [["validate"], ["plot", "accuracy", "-o", "accuracy.png"]])
def test_splits_of_0_1_0_exist_or_name_the_script_that_has_them(command: list[str], split: str) -> None:
    """The splits are those of `validate` at commit 376c5669."""
    assert split in ACCURACY_SPLITS
    said = CliRunner().invoke(main, [*command, "--data", "no.csv", "--split", split])
    if split in SPLITS:
        assert "no.csv" in said.stderr
        return
    assert said.exit_code == 2 and said.stderr.count("\n") == 1
    assert f"`python -m validation accuracy --split {split}`" in said.stderr


def test_the_order_of_kernels_of_0_1_0_names_the_new_one() -> None:
    """At commit 376c5669 `kernels --sort` took time, rank and ppp; the last sorted by the share of the peak."""
    said = CliRunner().invoke(main, ["kernels", "run.parquet", "--sort", "ppp"])
    assert said.exit_code == 2 and "`--sort share`" in said.stderr and said.stderr.count("\n") == 1
    kernels = find_command("kernels")
    assert kernels is not None
    values = {option.name: option.type for option in kernels.params}["order"]
    assert {"time", "rank", "share"} <= set(getattr(values, "choices", ()))


@pytest.mark.parametrize("name", ["PaleoError", "devices", "layers", "network_names", "predict", "scale", "trace"])
def test_names_of_the_package_of_0_1_0_exist_or_name_their_successors(name: str) -> None:
    """The names are ``__all__`` of `paleo_lite` at commit 376c5669."""
    if name in pl.__all__:
        assert hasattr(pl, name)
        return
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': it is `(\w+)` now") as error:
        getattr(pl, name)
    successors = re.findall(r"`(\w+)[`(]", str(error.value))
    assert "train" in successors and set(successors) <= set(pl.__all__)


@pytest.mark.parametrize(
    ("given", "option"),
    [("overlap", "`--time-model ppp-overlap`"), ("fit_batch", "`--batch-size fit`"), ("gpus", "`--gpu`")],
)
def test_arguments_of_earlier_versions_name_the_new_option(given: str, option: str) -> None:
    with pytest.raises(TypeError) as error:
        pl.predict("alexnet", gpu="t4", **{given: True})
    assert option in str(error.value)
