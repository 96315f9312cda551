"""The README shows real commands with their real output."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from paleo_lite.cli import main

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"```console\n\$ (paleo-lite [^\n]*)\n(.*?)```", README, re.DOTALL)


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_an_example_prints_what_the_readme_shows(command: str, output: str) -> None:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(main, shlex.split(command)[1:], prog_name="paleo-lite")
    assert result.exit_code == 0
    assert [line.rstrip() for line in result.stdout.splitlines()] == output.splitlines()


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    kinds = names["pl"].layers("vgg19", convention="macs").by_kind()  # type: ignore[attr-defined]
    assert f"{kinds['conv2d']['share']:.2%}" == "99.37%"
