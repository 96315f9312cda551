"""Location of tests: the tests of a module are in the file of its name, or in a file with its path after `Tests:`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE, VALIDATION = TESTS.parent / "paleo_lite", TESTS.parent / "validation"
DEFINITION = re.compile(r"^(?:(?:async )?def \w+\(|class \w+[(:])", re.MULTILINE)
LINE = re.compile(r"^Tests: (\S+(?:,\s+\S+)*)\.$", re.MULTILINE)


@cache
def modules() -> list[str]:
    """Paths in the package of modules that define something, and do not only pass on names or hold a table."""
    return sorted(
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if DEFINITION.search(path.read_text("utf-8"))
    )


@cache
def lines() -> dict[str, list[str]]:
    """What the `Tests:` line of each test file names; nothing where there is none."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        docstring, _, _ = path.read_text("utf-8").partition("\nfrom ")
        line = LINE.search(docstring)
        found[path.relative_to(TESTS).as_posix()] = re.split(r",\s+", line[1]) if line else []
    return found


def own_file(module: str) -> str:
    """Return the test file of a module that no `Tests:` line names."""
    folder, slash, name = module.rpartition("/")
    return f"{folder}{slash}test_{name}"


def test_every_module_is_tested_in_one_place() -> None:
    named, problems = lines(), []
    for module in modules():
        places = [f"tests/{file}" for file, paths in named.items() if module in paths]
        if own_file(module) in named or len(places) == 1:
            continue
        if places:
            problems.append(f"{' and '.join(places)} name {module}: leave it in one `Tests:` line")
        else:
            problems.append(
                f"nothing says where paleo_lite/{module} is tested: add tests/{own_file(module)}, "
                f"or `Tests: {module}.` to the docstring of the test file that runs it"
            )
    assert not problems, "\n".join(problems)


def test_every_test_file_says_what_it_tests() -> None:
    """By its name or a `Tests:` line. The files in the folder of this file test the project as a whole."""
    own, problems = {own_file(module) for module in modules()}, []
    for file, paths in lines().items():
        room = VALIDATION / file.removeprefix("validation/test_").removesuffix(".py")
        if file.startswith("validation/"):  # a file for each folder there, and one for the command
            if not (room.is_dir() or file == "validation/test_command.py"):
                problems.append(f"tests/{file} is named after no folder of validation/: rename it")
        elif "/" in file and file not in own and not paths:
            problems.append(
                f"tests/{file} is named after no module: rename it, or say `Tests: folder/module.py.` in its docstring"
            )
        problems += [
            f"tests/{file} says that it tests paleo_lite/{path}, which is not there: name what is tested now"
            for path in paths
            if not (PACKAGE / path).is_file()
        ]
        around = [TESTS / file, (TESTS / file).with_name("conftest.py")]
        if paths and not any("paleo_lite" in path.read_text("utf-8") for path in around if path.is_file()):
            problems.append(f"tests/{file} says that it tests {', '.join(paths)}, and does not use paleo_lite")
    assert not problems, "\n".join(problems)
