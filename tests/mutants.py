"""Mutation testing: make small faults in the package, one at a time; the tests must fail.

    python tests/mutants.py try [--count N] [--random-state N] [--folders A,B]   try a sample of mutants, of all folders
        or of those named; resumes after an interruption
    python tests/mutants.py again [the same options]   try the survivors of that sample with the test files of today

cosmic-ray makes the mutants in a copy of the repository, ``build/mutants/mutated``. Each is tried in two stages:
against the test files nearest to its module, and, if it survives, against tests that ask the whole product. A test that
fails without a mutant, too, catches none. Code that computes nothing is not mutated: annotations, decorators, the
options ``frozen``, ``eq`` and ``strict``, code for type checkers, and error messages.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDERS = (
    "counting", "architectures", "timing", "distributed", "engines", "serving", "reinforcement", "own_machines",
    "input_pipeline", "sweeps", "profile_analysis", "calibration", "machines",
)  # fmt: skip
"""Folders of the package that are mutated, unless ``--folders`` names some of them."""

BUILD = Path(__file__).parents[1] / "build" / "mutants"
MUTATED = BUILD / "mutated"
RESULTS = BUILD / "results.json"
OUTPUT = BUILD / "output.txt"
CAUGHT_BY = BUILD / "caught_by.txt"

NEAREST_S = 20
"""Processor seconds after which no further test of the nearest files is begun."""

WHOLE_S = 40
"""The same of the tests that ask the whole product."""

WHOLE = (
    "tests/test_golden.py", "tests/test_impossible.py", "tests/test_metamorphic.py", "tests/test_limits.py",
    "tests/questions",
)  # fmt: skip
"""Tests that ask the whole product, those that ask much in little time first."""

PRELOADED = ("hypothesis", "torch", "scipy.optimize", "pandas")
"""Modules that are imported once, rather than for each mutant."""

# Operators, each with the ones that a typing error would replace it by. With others every program fails at once.
REPLACED = {
    "Add": ["Sub"], "Sub": ["Add"], "Mul": ["Div"], "Div": ["Mul"], "FloorDiv": ["Div"], "Mod": ["Mul"], "Pow": ["Mul"],
    "BitAnd": ["BitOr"], "BitOr": ["BitAnd"], "LShift": ["RShift"], "RShift": ["LShift"],
    "Lt": ["LtE", "GtE"], "LtE": ["Lt", "Gt"], "Gt": ["GtE", "LtE"], "GtE": ["Gt", "Lt"],
    "Eq": ["NotEq"], "NotEq": ["Eq"], "Is": ["IsNot"], "IsNot": ["Is"], "USub": ["UAdd"], "Delete": ["Not", "Invert"],
}  # fmt: skip


GUARDS = ("frozen", "eq", "strict")
"""Options of classes and of ``zip`` that only guard against misuse."""


class FirstFailure:
    """Records the first failure, and skips some tests, and all of them once the processor time is used up.

    Tests run in the order of `files`, but are collected folder by folder: pytest loses the fixtures of a folder that it
    comes back to, and what fails for want of them would count as caught.
    """

    def __init__(self, files: list[str], left_out: set[str], limit_s: float):
        self.files = files
        self.left_out = left_out
        self.limit_s = limit_s

    def pytest_collection_modifyitems(self, items):
        def place(item):
            file = item.nodeid.partition("::")[0]
            return next(n for n, name in enumerate(self.files) if item.nodeid == name or file.startswith(name))

        items.sort(key=place)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if item.nodeid in self.left_out:
            pytest.skip("fails without a mutant, too")
        if sum(os.times()[:4]) > self.limit_s:
            pytest.skip("the time of a mutant is used up")

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.note(report)

    pytest_collectreport = pytest_runtest_logreport

    def note(self, report):
        crash = getattr(report.longrepr, "reprcrash", None)
        message = str(crash.message if crash else report.longrepr)
        CAUGHT_BY.write_text(f"{report.nodeid}\n{message[:300]}")


def run_tests(arguments: list[str], plugin: object) -> int:
    """Run tests with the same random examples each time and without time limits; return pytest's exit code."""
    from hypothesis import HealthCheck, settings

    options = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}
    settings.register_profile("mutants", **options)
    return pytest.main(
        ["--hypothesis-profile=mutants", "-p", "no:cacheprovider", "--timeout=0", *arguments], plugins=[plugin]
    )


class Places:
    """The text of one module, and the parts of it that are not mutated."""

    def __init__(self, path: str):
        text = Path(path).read_text()
        self.lines = text.splitlines()
        self.skipped: list[ast.AST] = []
        for node in ast.walk(ast.parse(text)):
            self.skipped += [
                *getattr(node, "decorator_list", ()),
                getattr(node, "annotation", None),
                getattr(node, "returns", None),
            ]
            if isinstance(node, ast.ClassDef) or (isinstance(node, ast.Call) and ast.unparse(node.func) == "zip"):
                self.skipped += [option for option in node.keywords if option.arg in GUARDS]
            if isinstance(node, ast.Raise):
                self.skipped.append(node)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                self.skipped.append(node)
        self.skipped = [node for node in self.skipped if node is not None]

    def is_skipped(self, position: tuple[int, int]) -> bool:
        line, column = position
        place = (line, len(self.lines[line - 1][:column].encode()))
        return any((n.lineno, n.col_offset) <= place < (n.end_lineno, n.end_col_offset) for n in self.skipped)


class Mutant(NamedTuple):
    path: str
    line: int
    column: int
    operator: str
    occurrence: int

    def __str__(self):
        return f"{self.path}:{self.line}:{self.column} {self.operator} {self.occurrence}"


def chosen_operators() -> Iterator[str]:
    from cosmic_ray.plugins import get_operator, operator_names

    for name in operator_names():
        _family, *words = name.split("_")
        if not words and name not in ("core/NoOp", "core/RemoveDecorator") and not get_operator(name).arguments():
            yield name
        if words and words[1] in REPLACED.get(words[0], ()):
            yield name


def all_mutants(folders: list[str]) -> Iterator[Mutant]:
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator

    operators = {name: get_operator(name)() for name in chosen_operators()}
    paths = [path for folder in folders for path in sorted(Path("paleo_lite", folder).rglob("*.py"))]
    for path in map(str, paths):
        place = Places(path)
        nodes = list(ast_nodes(get_ast_from_path(Path(path))))
        for name, operator in operators.items():
            found = ((node, start, end) for node in nodes for start, end in operator.mutation_positions(node))
            for occurrence, (node, start, end) in enumerate(found):
                # A bare * among parameters is not a product, and cosmic-ray cannot replace `module.Error`.
                is_dotted = node.type == "except_clause" and "." in place.lines[start[0] - 1][start[1] : end[1]]
                if not place.is_skipped(start) and node.parent.type != "parameters" and not is_dotted:
                    yield Mutant(path, *start, name, occurrence)


def sample(count: int, random_state: int, folders: list[str]) -> list[Mutant]:
    """Draw places at random, each with one of its mutants."""
    of_place = defaultdict(list)
    for mutant in all_mutants(folders):
        of_place[mutant.path, mutant.line, mutant.column, mutant.operator.split("_")[0]].append(mutant)
    print(f"{len(of_place)} places, {sum(map(len, of_place.values()))} mutants")
    draw = random.Random(random_state)
    return [draw.choice(of_place[place]) for place in draw.sample(sorted(of_place), count)]


def mirror(path: str) -> str:
    """Return the file with the tests of a module."""
    folder, name = path.removeprefix("paleo_lite/").rsplit("/", 1)
    return f"tests/{folder}/test_{name}"


def nearest_files(path: str) -> list[str]:
    """Return the test files of a module: its own, those that name or import it, and the others of its folder."""
    inside = path.removeprefix("paleo_lite/")
    module = inside.removesuffix(".py").replace("/", ".")
    parent, _, name = module.rpartition(".")
    imports = re.compile(rf"paleo_lite\.{module}\b|from paleo_lite\.{parent} import [^\n]*\b{name}\b")
    folder = f"tests/{inside.split('/')[0]}/"

    def distance(file: str) -> int:
        if file == mirror(path):
            return 0
        text = Path(file).read_text()
        if inside in text.split('"""')[1]:
            return 1
        if imports.search(text):
            return 2 if file.startswith(folder) else 3
        return 4 if file.startswith(folder) else 5

    distances = {str(file): distance(str(file)) for file in sorted(Path("tests").rglob("test_*.py"))}
    return sorted((file for file in distances if distances[file] < 5), key=distances.__getitem__)


def in_child(files: list[str], limit_s: int, left_out: set[str]) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (3 * limit_s, 3 * limit_s + 5))  # of a mutant that never ends
    assert not any(name.split(".")[0] == "paleo_lite" for name in sys.modules), "the mutant would not be loaded"
    with OUTPUT.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(MUTATED)
    sys.path[0] = str(MUTATED)
    os._exit(run_tests(["-x", *sorted(files)], FirstFailure(files, left_out, sum(os.times()[:4]) + limit_s)))


def run_in_child(files: list[str], limit_s: int, left_out: set[str]) -> str:
    """Return the name and message of the first failing test, or an empty text."""
    CAUGHT_BY.unlink(missing_ok=True)
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(files, limit_s, left_out))
    child.start()
    child.join(30 * limit_s)  # `limit_s` is processor time; this wall-clock limit stops tests that wait forever
    if child.exitcode is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
        return "waits forever"
    if CAUGHT_BY.exists():
        return CAUGHT_BY.read_text()
    if child.exitcode < 0:
        return f"{signal.Signals(-child.exitcode).name} after {3 * limit_s} s"
    if child.exitcode:
        sys.exit(f"pytest ended with {child.exitcode} and no failed test: {OUTPUT}")
    return ""


class Runner:
    """Runs tests with one mutant at a time, in `MUTATED`, a copy of the files that git knows or does not ignore."""

    def __init__(self):
        shutil.rmtree(MUTATED, ignore_errors=True)  # an interrupted run leaves a mutant in it
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")[:-1]:
            if Path(name).is_file():
                (MUTATED / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(name, MUTATED / name)
        self.passing: set[str] = set()
        self.failing: set[str] = set()
        os.environ |= {"PYTHONPATH": str(MUTATED), "PYTHONDONTWRITEBYTECODE": "1"}
        # Compiled files are checked by their source's content, not by its time: a mutant cannot be overlooked.
        compileall = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "paleo_lite"]
        subprocess.run([sys.executable, *compileall], check=True, cwd=MUTATED)
        for name in PRELOADED:
            importlib.import_module(name)

    def fails_without_mutant(self, test: str) -> bool:
        if test not in self.passing | self.failing:
            failure = run_in_child([test], WHOLE_S, set())
            (self.failing if failure else self.passing).add(test)
        return test in self.failing

    def try_mutant(self, mutant: Mutant) -> dict[str, object] | None:
        """Return which test fails with a mutant, and in which stage; None if the mutant does not compile."""
        from cosmic_ray.mutating import use_mutation
        from cosmic_ray.plugins import get_operator

        nearest = nearest_files(mutant.path)
        stages = {"nearest": (nearest, NEAREST_S), "whole": (list(WHOLE), WHOLE_S)}
        result = {"caught_by": "", "stage": "", "closest": nearest[:2]}
        while stages:
            stage = next(iter(stages))
            with use_mutation(MUTATED / mutant.path, get_operator(mutant.operator)(), mutant.occurrence) as texts:
                try:
                    compile(texts[1], mutant.path, "exec")
                except SyntaxError:
                    return None
                result["change"] = list(difflib.unified_diff(*(t.splitlines() for t in texts), lineterm="", n=0))[3:]
                failure = run_in_child(*stages[stage], self.failing)
            test = failure.partition("\n")[0]
            if not failure:
                del stages[stage]
            elif "::" not in test or not self.fails_without_mutant(test):
                return result | {"caught_by": failure, "stage": stage}
        return result


def try_sample(mutants: list[Mutant], again: bool) -> None:
    """Try the mutants of a sample that have not been tried, or its survivors again."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    runner = Runner()
    for number, mutant in enumerate(mutants, 1):
        name = str(mutant)
        if name not in stored or (again and stored[name] and not stored[name]["caught_by"]):
            stored[name] = runner.try_mutant(mutant)
            if again and stored[name]:
                stored[name]["stage"] = "again"
            RESULTS.write_text(json.dumps(stored, indent=1))
            print(f"{number} of {len(mutants)}: {name}: {stored[name]}", flush=True)
    report({mutant: stored[str(mutant)] for mutant in mutants})


def report(results: dict[Mutant, dict[str, object] | None]) -> None:
    tried = {mutant: result for mutant, result in results.items() if result is not None}
    for mutant, result in tried.items():
        if not result["caught_by"]:
            print(f"\nsurvived: {mutant}", *result["change"], "closest tests:", *result["closest"], sep="\n")
    print(f"\n{len(results) - len(tried)} did not compile")
    for folder in (*FOLDERS, ""):
        stages = [result["stage"] for mutant, result in tried.items() if mutant.path.startswith(f"paleo_lite/{folder}")]
        caught = {stage: stages.count(stage) for stage in ("nearest", "whole", "again") if stage in stages}
        print(f"{folder or 'all':20} {sum(caught.values())} of {len(stages)} caught: {caught}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["try", "again"])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--random-state", type=int, default=2026)
    parser.add_argument("--folders", type=lambda text: text.split(","), default=list(FOLDERS))
    arguments = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    try_sample(sample(arguments.count, arguments.random_state, arguments.folders), arguments.what == "again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
