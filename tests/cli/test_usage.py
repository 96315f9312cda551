"""Command lines that cannot be parsed: one sentence that says what is wrong and what would be right.

Tests: cli/usage.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from paleo_lite.cli import main
from paleo_lite.questions.names import Names


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Iterate over all commands with their names."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif command is not None:
            yield (*path, name), command


COMMANDS = dict(commands(main))
CHOICES = [
    (path, parameter.opts[0], parameter.type)
    for path, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter, click.Option) and isinstance(parameter.type, Names)
]


def said(*arguments: str) -> str:
    """Return the sentence about a command line."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and not result.stdout, result.output
    return result.stderr


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_unknown_options_are_refused_in_one_sentence(path: tuple[str, ...]) -> None:
    assert said(*path, "--xyzzy-unknown", "3").startswith("paleo-lite: no option is called `--xyzzy-unknown`")


@pytest.mark.parametrize(("path", "option", "names"), CHOICES, ids=[f"{' '.join(c[0])} {c[1]}" for c in CHOICES])
def test_unknown_names_are_refused_with_those_that_are_known(path: tuple[str, ...], option: str, names: Names) -> None:
    sentence = said(*path, option, "xyzzy")
    assert "is called 'xyzzy': valid names: " in sentence and all(name in sentence for name in names.choices)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("best --fort", "no option is called `--fort`: did you mean `--force`, `--format` or `--plot`?"),
        ("--foo", "no option is called `--foo`: `main --help` shows what it takes"),
        ("foo", "no command is called 'foo': valid names: best, calibrate,"),
        ("hardware lst", "no command of `hardware` is called 'lst': did you mean list or links?"),
        ("networks xyzzy", "no command of `networks` is called 'xyzzy': valid names: export, list, show."),
        ("gemm 1 2", "Missing argument 'K': `main gemm --help` shows what it takes"),
        ("predict resnet50 vgg16", "Got unexpected extra argument (vgg16): `main predict --help` shows what it takes"),
        ("rl qwen3-0.6b --steps-off -1", "`--steps-off` must be an integer >= 0 (got -1)"),
        ("serve qwen3-8b --seed 1.5", "`--seed` must be an integer >= 0 (got 1.5)"),
        ("serve qwen3-8b --router near", "no router is called 'near': valid names: least-loaded, prefix, random,"),
    ],
)
def test_sentences_name_what_would_be_right(arguments: str, sentence: str) -> None:
    assert sentence in said(*arguments.split())


def test_a_group_without_a_command_still_prints_its_help() -> None:
    result = CliRunner().invoke(main, ["hardware"])
    assert result.exit_code == 2 and "Usage: main hardware" in result.output
