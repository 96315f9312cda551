"""Words of earlier versions get one sentence with the new word."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from paleo_lite.cli import main
from paleo_lite.cli.question import make_command
from paleo_lite.questions.kind import KINDS
from paleo_lite.questions.upgrade import BROUGHT, MOVED, MOVED_COMMANDS, MOVED_EVERYWHERE

OPTIONS = [(command, option) for table in (MOVED, BROUGHT) for command, options in table.items() for option in options]


@pytest.mark.spread(60)
@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_of_earlier_versions_names_the_new_one(command: str, option: str) -> None:
    said = CliRunner().invoke(main, [command, "alexnet", "--gpu", "t4", option, "1"])
    assert said.exit_code == 2
    assert said.stderr.count("\n") == 1 and re.search(f"`{option}` (is|has)", said.stderr)


def test_sentences_name_options_that_exist() -> None:
    spellings = {opt for kind in KINDS for option in make_command(kind).params for opt in option.opts}
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
