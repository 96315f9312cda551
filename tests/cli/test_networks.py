"""Lists of networks and of devices: by words, at most a screen, and all where a program reads them.

Tests: cli/hardware.py, cli/networks.py.
"""

from __future__ import annotations

import csv
import json

import pytest
from click.testing import CliRunner, Result

from paleo_lite.cli import main


def run(command: str, width: int = 80) -> Result:
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, command.split(), prog_name="paleo-lite")


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("command", ["networks list", "hardware list"])
def test_a_list_without_a_word_is_a_screen_that_says_how_many_it_leaves_out(command: str, width: int) -> None:
    listed = run(command, width).stdout
    rows = list(csv.DictReader(run(f"{command} --format csv").stdout.splitlines()))
    assert len(rows) > 200  # what programs read is whole
    lines = listed.splitlines()
    assert 30 < len(lines) <= 40
    years = [word for line in lines for word in line.split()[:2] if word.isdecimal() and word.startswith("20")]
    assert years == sorted(years, reverse=True)
    shown = int(listed.partition("the newest ")[2].split()[0])
    assert len(years) == shown
    assert lines[-1].startswith(f"note: {len(rows) - shown} more: give a word")
    assert len(run(f"{command} --all").stdout.splitlines()) > len(rows)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        # NVIDIA sells the A100 for PCIe with 40 and 80 GB (its data sheet of 2021), with 80 GB also for SXM.
        ("hardware list a100 pcie", {"a100-pcie-40gb", "a100-pcie-80gb"}),
        ("hardware list A100 80GB", {"a100-pcie-80gb", "a100-sxm-80gb"}),
        ("hardware list a100-sxm80", set()),
        ("hardware list asxm80", set()),
        # Alibaba's Qwen3 of 32 billion parameters: the language model and the one with pictures.
        ("networks list QWEN3 32b", {"qwen3-32b", "qwen3-vl-32b"}),
        # Mistral AI's mixtures of experts, by publisher as well as by name.
        ("networks list mistral 8x", {"mixtral-8x7b", "mixtral-8x22b"}),
    ],
)
def test_each_word_occurs_in_a_name(command: str, names: set[str]) -> None:
    result = run(f"{command} --format json")
    if not names:
        assert result.exit_code == 2
        return
    (rows,) = json.loads(result.stdout).values()
    assert {row.get("id", row["name"]) for row in rows} == names


def test_a_word_that_nothing_has_is_refused() -> None:
    result = run("hardware list h10o")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no GPU is called 'h10o'" in result.stderr and "`hardware list --all` shows all" in result.stderr
    assert result.stderr.count("\n") == 1
