"""Options: types, validation messages, aliases and shell completion.

Tests: cli/answers.py, cli/options.py, questions/completion.py,
questions/names.py, questions/values.py, cli/options.py.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from paleo_lite import questions
from paleo_lite.cli import main, options
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.questions.completion import CompletedText
from paleo_lite.questions.diffusion import Diffusion
from paleo_lite.questions.kind import KINDS, find_kind
from paleo_lite.questions.names import Names, OptimizerNames, documented_name
from paleo_lite.questions.option import Options, options_of, parameters_of
from paleo_lite.questions.values import (
    INTEGER,
    PPP,
    TOKENS,
    CommaSeparated,
    Number,
    PictureSize,
    SplitProportions,
    WholeNumber,
)
from paleo_lite.serving.lengths import parse_lengths


def commands(group=main, words=()):
    """Yield every command with its name, including commands of groups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


ALL = dict(commands())
OPTIONS = [(words, option) for words, command in ALL.items() for option in command.params]
NAMED = [(words, option) for words, option in OPTIONS if isinstance(option.type, Names)]


def test_names_come_from_a_list_that_has_the_default():
    pytest.importorskip("pyarrow")
    assert len(NAMED) > 90
    for words, option in NAMED:
        names, what = option.type.choices, f"{words} {option.name}"
        assert len(names) > 1 and all(isinstance(name, str) for name in names), what
        assert option.default in names or not isinstance(option.default, str), what


def test_an_option_has_the_same_type_in_every_command():
    """``--unit`` of one command must not be ``--unit`` of another command with other values."""
    types = {}
    for words, option in OPTIONS:
        if isinstance(option, click.Option) and not option.multiple:
            single = option.type.item_type if isinstance(option.type, CommaSeparated) else option.type
            kind = single.sources if isinstance(single, (Names, CompletedText)) else type(single).__name__
            types.setdefault(documented_name(option), {}).setdefault(kind, []).append(words)
    differing = {name: kinds for name, kinds in types.items() if len(kinds) > 1}
    # `layers` also counts single passes; the phases of `scale` and `measure` are those that they support; a front has
    # no table that can be cut; workers that decode are counted one by one; only two models can be fitted.
    # Steps are ranked by time or energy, servers by cost or energy; `predict` also runs llama.cpp.
    allowed = {"--phase", "--top", "--workers", "--precision", "--output", "--time-model", "--by", "--execution"}
    # `sweep` and `plot batch` take several ranges.
    allowed |= {"--batch-size", "--sequence-length"}
    # A pipeline has steps of its denoiser, pictures in a batch and pictures of any width and height; elsewhere they are
    # steps of a profile, pictures of a data set and square images.
    allowed |= {"--steps", "--images", "--image-size"}
    # Engines of servers and of one's own machine; rankings of steps and of servers; one number of devices or a range.
    allowed |= {"--engine", "--advise", "--workers", "--offload"}
    # Columns of a file are completed from it; those of rows that are to be computed are not known yet.
    allowed |= {"--pareto", "--where"}
    assert differing.keys() <= allowed, differing


def test_several_values_are_a_list_and_one_is_itself(tmp_path, monkeypatch):
    assert CommaSeparated(INTEGER).convert("8", None, None) == 8
    assert CommaSeparated(INTEGER).convert("1,8,8,32", None, None) == [1, 8, 32]
    assert CommaSeparated(INTEGER).convert("1:8:x2", None, None) == [1, 2, 4, 8]
    names = CommaSeparated(Names("phase", ".counting:PHASES"))
    assert names.convert("training, inference", None, None) == ["training", "inference"]
    with pytest.raises(UnknownName, match="trainig"):
        names.convert("inference,trainig", None, None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine,too.json").touch()
    assert CommaSeparated().convert("mine,too.json", None, None) == "mine,too.json"


def test_shared_options_are_written_once():
    """What a record declares, or several commands share, is not written again beside a command."""
    sources = {path.stem: path.read_text() for path in Path(options.__file__).parent.glob("*.py")}
    declared = {
        documented_name(option)
        for path in Path(questions.__file__).parent.glob("*.py")
        for record in vars(importlib.import_module(f"paleo_lite.questions.{path.stem}")).values()
        if isinstance(record, type) and issubclass(record, Options) and is_dataclass(record)
        for option in parameters_of(record)
    }
    shared = {name for text in sources.values() for name in re.findall(r'= SharedOption\(\s*"(--[\w-]+)"', text)}
    again = {
        (stem, name)
        for stem, text in sources.items()
        for name in re.findall(r'@click\.option\(\s*"(--[\w-]+)"', text)
        if name in declared | shared
    }
    assert len(declared) > 150 and again == {("layers", "--top")}  # rows of a table


def test_every_option_has_help():
    silent = [
        (words, documented_name(option))
        for words, option in OPTIONS
        if isinstance(option, click.Option) and not option.help
    ]
    assert not silent


def test_help_texts_are_for_the_command_line():
    """They name options, not Python parameters, and have no markup of docstrings."""
    for words, option in OPTIONS:
        if isinstance(option, click.Option):
            assert "``" not in option.help and "paleo_lite.predict" not in option.help, (words, option.name)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (INTEGER, "0", "must be an integer >= 1 (got 0)"),
        (INTEGER, "-3", "must be an integer >= 1 (got -3)"),
        (INTEGER, "1.5", "must be an integer >= 1 (got 1.5)"),
        (INTEGER, "many", "must be an integer >= 1 (got 'many')"),
        (INTEGER, "9" * 5000, "must be at most 2^63 - 1 (got"),
        (WholeNumber(8), "9", "must be an integer from 1 to 8 (got 9)"),
        (PPP, "nan", "must be a number > 0, such as 0.62 (got 'nan')"),
        (PPP, "inf", "must be at most 1e+30 (got 'inf')"),
        (Number(0.5, 2), "3", "must be a number from 0.5 to 2 (got 3)"),
    ],
)
def test_invalid_input_gets_one_sentence(kind, text, said):
    option = click.Option(["--batch-size"], type=kind)
    with pytest.raises(BadValue) as wrong:
        kind(text, option)
    assert str(wrong.value).startswith("`--batch-size` must be") and said in str(wrong.value)
    with pytest.raises(BadValue, match=r"^the value must be"):
        kind(text)


@pytest.mark.parametrize("text", ["1080*1920", "2.5", "-3", "big", "1024x"])
def test_a_size_of_pictures_is_pixels_or_width_x_height(text: str) -> None:
    with pytest.raises(BadValue, match="must be pixels, as in 1024, or width x height, as in 1024x768"):
        PictureSize()(text)


def test_unknown_name_gets_suggestions():
    with pytest.raises(UnknownName, match=r"no optimizer is called 'adma': did you mean adam"):
        Names("optimizer", ".timing.optimizers:OPTIMIZERS")("adma")


def test_optimizers_have_the_names_of_transformers():
    """``OptimizerNames`` of transformers/training_args.py; bitsandbytes keeps state of 8 bits."""
    optimizers = OptimizerNames("optimizer", ".timing.optimizers:OPTIMIZERS")
    assert optimizers("adamw_torch_fused") == "adamw" and optimizers("adamw_bnb_8bit") == "adamw-8bit"
    assert optimizers("paged_adamw_32bit") == "paged-adamw" and optimizers("paged_adamw_8bit") == "paged-adamw-8bit"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "llama-3.2-1b", "--precision", "int4"], "give `--precision bf16 --weights int4`"),
        (["serve", "llama-3.2-1b", "--precision", "awq"], "give `--precision bf16 --weights awq`"),
        (["gemm", "1", "2", "3", "--precision", "nvfp4"], "give `--precision fp4 --weights nvfp4`"),
        (["layers", "llama-3.2-1b", "--precision", "int4"], "no precision is called 'int4'"),  # has no `--weights`
    ],
)
def test_a_format_of_weights_as_precision_says_what_to_give(words, said):
    answer = CliRunner().invoke(main, [*words, "--gpu", "b200"])
    assert answer.exit_code == 2 and said in answer.output + answer.stderr


def test_help_and_a_prediction_read_no_list_they_do_not_need():
    code = (
        "import sys; from paleo_lite.cli import main; main({words}, standalone_mode=0); "
        "print([m for m in sys.modules if m.startswith(('paleo_lite.scaling', "
        "'paleo_lite.counting.fusion', 'rich', 'torch', 'pandas'))])"
    )
    words = ["predict", "alexnet", "--gpu", "k80", "--time-model", "roofline"]
    done = subprocess.run([sys.executable, "-c", code.format(words=words)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def completed(words, incomplete):
    """What a shell is offered."""
    found = ShellComplete(main, {}, "paleo-lite", "_PALEO_LITE_COMPLETE").get_completions(words.split(), incomplete)
    return [item.value for item in found if item.type == "plain"]


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        ("predict", "vgg1", {"vgg11", "vgg16", "vgg19"}),
        ("predict vgg16 --gpu", "k40", {"k40c", "k40m"}),
        ("predict vgg16 --gpu", "k80,k40", {"k80,k40c", "k80,k40m"}),
        ("predict vgg16 --gpu k40m --explain", "classifier.", {"classifier.0", "classifier.6"}),
        ("layers vgg16 --ignore", "classifier.", {"classifier.0", "classifier.6"}),
        ("train vgg16 --gpu k80 --link", "nvlink2", {"nvlink2", "nvlink2-x6"}),
        ("train vgg16 --gpu k80 --platform", "dgx1-p", {"dgx1-p100"}),
        ("train vgg16 --topology", "2x k40", {"2x k40m"}),
        ("train vgg16 --topology", "2x k40m @ pcie3-x", {"2x k40m @ pcie3-x16"}),
        ("predict vgg16 --gpu k40m --calibration", "k40", {"k40m-fp32"}),
        ("calibrations show", "k40", {"k40m-fp32"}),
        ("compare a.parquet --predict", "alex", {"alexnet"}),
        ("predict", "alexnet,vgg1", {"alexnet,vgg16"}),
        ("predict alexnet --price", "la", {"Lambda"}),
        ("feeding alexnet --gpu k80 --storage", "nv", {"nvme"}),
        ("validate --gpu", "k40", {"k40m"}),
    ],
)
def test_shell_completion(words, incomplete, offered):
    found = completed(words, incomplete)
    assert offered <= set(found) and all(name.lower().startswith(incomplete) for name in found)


def test_columns_are_offered_of_the_file_that_was_typed(tmp_path):
    pytest.importorskip("pyarrow")
    import paleo_lite as pl

    pl.sweep(pl.Predict("alexnet", gpu="k80-die"), tmp_path / "sweep.csv", jobs=1)
    offered = completed(f"best {tmp_path}/sweep.csv --minimise", "time_")
    assert set(offered) == {"time_model", "time_s"}
    assert "time_s,network" in completed(f"best {tmp_path}/sweep.csv --pareto", "time_s,net")
    assert "time_s < 1 and workers" in completed(f"best {tmp_path}/sweep.csv --where", "time_s < 1 and work")
    assert completed(f"best {tmp_path}/none.csv --minimise", "") == []
    run = tmp_path / "run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"
    run.touch()
    assert {"nodes", "network"} <= set(completed(f"efficiency {run} --gpu k40m --group-by", "n"))


def test_files_are_offered_where_a_file_will_do():
    found = ShellComplete(main, {}, "paleo-lite", "_X").get_completions(["predict", "vgg16", "--calibration"], "mine.t")
    assert [(item.value, item.type) for item in found] == [("mine.t", "file")]


# Numbers of tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25_600),
        ("2m", 2_000_000),
        ("128K", 131_072),
        ("8192", 8192),
        ("0.5k", 500),
    ],
)
def test_tokens_are_counted_in_thousands_as_vllm_counts_them(text: str, tokens: int) -> None:
    # The first three are the examples of `human_readable_int` in vllm/utils, which reads --max-model-len.
    assert TOKENS.convert(text, None, None) == tokens
    assert parse_lengths(text, "--input-tokens", is_input=True).mean == tokens


@pytest.mark.parametrize("text", ["8q", "k", "0", "-1k", "1.0005k", "8kk", "1e400", "9" * 4001 + "k"])
def test_other_texts_are_no_numbers_of_tokens(text: str) -> None:
    with pytest.raises(BadValue, match=r"must be an integer >= 1, such as 8192, 8k \(8,000\) or 8K \(8,192\)"):
        TOKENS.convert(text, None, None)


def test_ranges_of_tokens_take_thousands() -> None:
    assert CommaSeparated(TOKENS).convert("1k:4k:x2", None, None) == [1000, 2000, 4000]
    assert CommaSeparated(TOKENS).convert("8k,16K", None, None) == [8000, 16_384]


def test_every_option_that_counts_tokens_takes_thousands() -> None:
    refused = []
    for name in KINDS:
        for option, declared in options_of(find_kind(name).record).items():
            if declared.metavar != "TOKENS" or option in ("input_tokens", "output_tokens"):
                continue  # those two are read by `parse_lengths`
            if declared.type.convert("8k", None, None) != 8000:
                refused.append((name, option))
    assert refused == []


# Sizes of pictures ----------------------------------------------------------------------------------------------------


def test_a_tuple_is_the_width_and_height_of_a_picture_and_a_list_is_several_sizes() -> None:
    one = Diffusion("flux.1-dev", gpu="h100-sxm", image_size=(1024, 768))  # type: ignore[arg-type]
    assert one.image_size == "1024x768"
    several = Diffusion("flux.1-dev", gpu="h100-sxm", image_size=[(1024, 768), 512])  # type: ignore[list-item]
    assert several.image_size == ["1024x768", 512]
    with pytest.raises(BadValue, match=r"takes a tuple of width and height, such as \(1024, 768\)"):
        Diffusion("flux.1-dev", gpu="h100-sxm", image_size=(512, 768, 1024))


@pytest.mark.parametrize("text", ["x", "0,0", "3,-1", "3,,1", "nan", "inf,1", ""])
def test_proportions_are_numbers_of_which_one_is_positive(text: str) -> None:
    with pytest.raises(BadValue, match="must be proportions such as 3,1"):
        SplitProportions().convert(text, None, None)
    assert SplitProportions().convert("3,1", None, None) == (3.0, 1.0)
