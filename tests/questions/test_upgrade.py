"""Words of earlier versions get one sentence with the new word."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from paleo_lite.cli import main
from paleo_lite.questions.kind import KINDS, find_kind
from paleo_lite.questions.upgrade import MOVED, MOVED_COMMANDS

OPTIONS = [(command, option) for command, options in MOVED.items() for option in options]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_of_earlier_versions_names_the_new_one(command: str, option: str) -> None:
    said = CliRunner().invoke(main, [command, "alexnet", "--gpu", "t4", option, "1"])
    assert said.exit_code == 2
    assert said.stderr.count("\n") == 1 and f"`{option}` is" in said.stderr


def test_sentences_name_options_that_exist() -> None:
    spellings = {opt for kind in KINDS for option in _parameters(kind) for opt in option.opts}
    for sentence in (*(text for options in MOVED.values() for text in options.values()), *MOVED_COMMANDS.values()):
        assert set(re.findall(r"--[a-z-]+", sentence)) <= spellings, sentence


def _parameters(kind: str):
    from paleo_lite.questions.option import parameters_of

    return parameters_of(find_kind(kind).record)


def test_a_command_of_earlier_versions_names_the_new_ones() -> None:
    for command in MOVED_COMMANDS:
        said = CliRunner().invoke(main, [command, "alexnet", "--gpu", "t4"])
        assert said.exit_code == 2 and "`train`" in said.stderr
