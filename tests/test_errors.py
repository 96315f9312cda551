"""Errors: suggestions in messages, and exit codes of the command line."""

from __future__ import annotations

import ast
import gc
import inspect
import re
import tracemalloc
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite import cli, errors
from paleo_lite.cli import main
from paleo_lite.errors import AmbiguousName, BadDegree, Interrupted, MissingExtra, PaleoError, UnknownName, UsageProblem

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
ARGUMENTS = {
    UnknownName: ("network", "vgg61", ["vgg16"]),
    AmbiguousName: ("device", "k80", ["k80", "k80-die"]),
    MissingExtra: ("drawing", "plots"),
    BadDegree: ("--tensor", 3, "does not divide the 8 attention heads of llama"),
}


@pytest.mark.parametrize(
    ("name", "known", "near", "sentence"),
    [
        ("resnet5O", ["resnet50", "resnet101", "vgg16"], "resnet50", "did you mean resnet50 or resnet101?"),
        ("K40M", ["p100", "k40m"], "k40m", "did you mean k40m?"),
        ("qwen3-30b", ["qwen3-30b-a3b", "qwen3-32b", "qwen3-8b"], "qwen3-30b-a3b", "did you mean qwen3-30b-a3b?"),
        ("wan2.2", ["wan-2.1-14b", "wan-2.2-14b"], "wan-2.2-14b", "did you mean wan-2.2-14b?"),
        ("transformer", ["vgg16", "alexnet"], None, "valid names: alexnet, vgg16."),
        ("k80,K40m", ["k40m", "k80", "k40c"], None, "only one network is allowed here: use k80 or K40m."),
        ("transformer", [f"vgg{n}" for n in range(17)], None, "none of the 17 valid names is similar."),
    ],
)
def test_unknown_name_lists_suggestions(name, known, near, sentence) -> None:
    error = UnknownName("network", name, known)
    assert near is None or error.near[:1] == [near]
    assert str(error) == f"no network is called {name!r}: {sentence}"
    hint = "" if "," in name else " See there."
    assert str(UnknownName("network", name, known, "See there.")) == f"{error}{hint}"


def test_unknown_name_lists_all_names_where_asked() -> None:
    known = [f"vgg{n}" for n in range(13)]
    error = UnknownName("network", "transformer", known, lists_all=True)
    assert str(error) == f"no network is called 'transformer': valid names: {', '.join(sorted(known))}."


def test_ambiguous_name_lists_candidates() -> None:
    error = AmbiguousName("device", "titan x", ["titan-x-maxwell", "titan-x-pascal", "titan-xp"])
    assert str(error) == (
        "'titan x' matches more than one device: use titan-x-maxwell, titan-x-pascal or titan-xp"
    )  # fmt: skip
    assert error.candidates[-1] == "titan-xp"


@pytest.mark.parametrize("kind", CLASSES)
def test_command_line_prints_one_line_and_exits(kind, monkeypatch) -> None:
    """The exit code is 2 for usage errors, as in click, 130 for Ctrl-C, and 1 otherwise."""
    error = kind(*ARGUMENTS.get(kind, ("a sentence",)))
    assert isinstance(error, PaleoError)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli._LazyCommands, "get_command", fail)
    found = CliRunner().invoke(main, ["predict"])
    assert found.exit_code == (130 if kind is Interrupted else 2 if issubclass(kind, UsageProblem) else 1)
    assert found.stderr == f"paleo-lite: {error}\n"
    assert found.stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "x" * 20_000, "--gpu", "k80"], "no network is called 'xxx"),
        (["predict", "alexnet", "--gpu", "y" * 300], "no GPU is called 'yyy"),
        (["predict", "alexnet", "--gpu", "k80", "--batch-size", "9" * 5000], "must be at most 2^63 - 1"),
    ],
)
def test_long_texts_are_shortened_in_messages(words, said) -> None:
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 2 and said in found.stderr and len(found.stderr) < 600


COMMANDS_OF = {
    "serving/": ["serve"], "questions/serve": ["serve"], "api/serve_advice": ["serve"], "api/deployments": ["serve"],
    "reinforcement/": ["rl"], "api/reinforcement": ["rl"], "questions/rl": ["rl"],
    "own_machines/": ["local"], "questions/local": ["local"], "api/local": ["local"],
    "questions/diffusion": ["diffusion"], "questions/train": ["train"], "questions/predict": ["predict"],
    "distributed/": ["train", "diffusion", "predict"], "api/scaling": ["train", "diffusion"],
    "profile_analysis/": ["efficiency", "kernels", "compare"], "input_pipeline/": ["feeding"],
}  # fmt: skip
"""Commands that print the messages of a module, where it has a few of its own."""

OF_OTHERS = {
    # of engines, launchers and tools, in the descriptions of what is simulated
    "--disaggregation-bootstrap-port", "--verbose", "--bufferSize",
    # Of kernels of engines, which predict shares with servers.
    "--phase", "--execution",
}  # fmt: skip


def messages_of(path):
    """Yield the texts of a module that advises options, without those that describe what stands above them."""
    source = path.read_text()
    if "`--" not in source:
        return
    nodes = list(ast.walk(ast.parse(source)))
    described = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield node.value


def test_messages_advise_options_that_their_commands_have():
    """An option that a command lacks is a dead end; the page on upgrading names those that are gone."""
    context = click.Context(main)
    options = {
        name: {option for parameter in main.get_command(context, name).params for option in parameter.opts}
        for name in main.list_commands(context)
    }
    package = Path(pl.__file__).parent
    wrong, named = [], 0
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).as_posix()
        commands = next((names for start, names in COMMANDS_OF.items() if place.startswith(start)), list(options))
        known = {"--help", *OF_OTHERS}.union(*(options[name] for name in commands))
        if place == "questions/upgrade.py":
            continue
        for text in messages_of(path):
            # Options of another command stand behind its name: `paleo-lite predict --phase decode`.
            advised = re.findall(r"`(--[a-z][\w-]*)", re.sub(r"`paleo-lite [^`]*`?", "", text))
            named += len(advised)
            wrong += [(place, option) for option in advised if option not in known]
    assert named > 500 and wrong == []


@pytest.mark.thorough
def test_refused_questions_keep_nothing():
    """No cache grows with names, sizes or links that nobody has, and no traceback keeps what it has seen."""

    def refuse(number):
        name = f"{number}" + "x" * 20_000
        for question in (
            lambda: pl.predict(name, gpu="k80"),
            lambda: pl.predict("alexnet", gpu=name),
            lambda: pl.predict("alexnet", gpu="k80", precision=name),
            lambda: pl.predict("alexnet", gpu="k80", batch_size=-number - 1),
            lambda: pl.train("alexnet", gpu="k80", workers=[2], link=name),
        ):
            with pytest.raises(PaleoError):
                question()

    def kept_bytes(first):
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(first, first + 3):
                refuse(number)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    refuse(0)
    # Python's table of interned texts, in which the parts of paths are for a moment, doubles at some text (by 1.9 MB,
    # if many modules are imported): what questions keep, they keep each time.
    kept = min(kept_bytes(1), kept_bytes(4))
    assert kept < 3 * 10_000  # less than any of the names
