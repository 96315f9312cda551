"""Mutation testing: make small faults in the package, one at a time; the tests must fail.

    python tests/mutants.py cover [PYTEST ARGUMENTS]   run the tests, and record which test runs which line
    python tests/mutants.py try [--count N] [--random-state N] [--folders A,B]   try a sample of mutants, of all folders
        or of those named; resumes after an interruption
    python tests/mutants.py again [the same options]   try its survivors with test files changed since then

cosmic-ray makes the mutants in a copy of the repository, ``build/mutants/mutated``. Only the tests that run the changed
statement are run for each mutant, those of the changed file first. A mutant in a statement that no test runs survives.
A test that fails without a mutant, too, catches none. Code that computes nothing is not mutated: annotations,
decorators, the options ``frozen``, ``eq`` and ``strict``, code for type checkers, and error messages.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import importlib
import json
import multiprocessing
import os
import random
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

USERS = ("api", "cli", "profiles", "questions", "reporting")
"""Folders whose tests use the mutated ones, and are run unless they are slow."""

BUILD = Path(__file__).parents[1] / "build" / "mutants"
TREE = BUILD / "tree"
MUTATED = BUILD / "mutated"
COVERED = BUILD / "covered"
PASSED = BUILD / "passed.json"
RESULTS = BUILD / "results.json"
AGAIN = BUILD / "again.json"
OUTPUT = BUILD / "output.txt"
CAUGHT_BY = BUILD / "caught_by.txt"

FIRST_S = 5
"""Processor seconds of the first batch of tests: those of the mutant's own file and folder, short tests first."""

LONGEST_S = 60
"""Processor seconds of all tests that are run for one mutant."""

CLOSEST = 3
"""Number of tests named for each survivor: those that were run first, of the mutant's own file if there are any."""

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


class Recorder:
    """Records the duration of each passing test, and clears caches of functions between tests.

    Otherwise only the first test that reads a device would be recorded as running the code that reads it.
    """

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.not_passed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        for module in [module for name, module in sys.modules.items() if name.startswith("paleo_lite")]:
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
        if "paleo_lite.timing.workload" in sys.modules:
            sys.modules["paleo_lite.timing.workload"]._CACHE.clear()
        start_s = sum(os.times()[:4])  # of the processor, so that a busy machine does not count
        result = yield
        self.seconds[item.nodeid] = sum(os.times()[:4]) - start_s
        return result

    def pytest_runtest_logreport(self, report):
        if not report.passed:
            self.not_passed.add(report.nodeid)

    def pytest_sessionfinish(self):
        PASSED.write_text(json.dumps({test: s for test, s in self.seconds.items() if test not in self.not_passed}))


class Chosen:
    """Selects tests by their names or files, except some, and records the first failure."""

    def __init__(self, tests, left_out):
        self.tests = set(tests)
        self.left_out = left_out

    def selects(self, item):
        file = item.nodeid.partition("::")[0]
        return item.nodeid not in self.left_out and not self.tests.isdisjoint((item.nodeid, file))

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.note(report)

    pytest_collectreport = pytest_runtest_logreport

    def note(self, report):
        crash = getattr(report.longrepr, "reprcrash", None)
        message = str(crash.message if crash else report.longrepr)
        CAUGHT_BY.write_text(f"{report.nodeid}\n{message[:300]}")

    def pytest_collection_modifyitems(self, config, items):
        config.hook.pytest_deselected(items=[item for item in items if not self.selects(item)])
        items[:] = [item for item in items if self.selects(item)]


def run_tests(arguments: list[str], plugin: object) -> int:
    """Run tests with the same random examples each time and without time limits; return pytest's exit code."""
    from hypothesis import HealthCheck, settings

    options = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}
    settings.register_profile("mutants", **options)
    return pytest.main(
        ["--hypothesis-profile=mutants", "-p", "no:cacheprovider", "--timeout=0", *arguments], plugins=[plugin]
    )


def default_tests() -> list[str]:
    """Return the arguments of pytest for all tests of `FOLDERS`, and the tests of `USERS` that are not slow."""
    return [*(f"tests/{folder}" for folder in FOLDERS + USERS), "-k", f"not (slow and ({' or '.join(USERS)}))"]


def cover(arguments: list[str]) -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    kept = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    for name in kept.split("\0")[:-1]:
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, TREE / name)
    os.environ |= {"PYTHONPATH": str(TREE), "COVERAGE_FILE": str(COVERED), "PYTHONDONTWRITEBYTECODE": "1"}
    # Compiled files are checked by their source's content, not by its time: a mutant cannot be overlooked.
    compileall = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "paleo_lite"]
    subprocess.run([sys.executable, *compileall], check=True, cwd=TREE)
    options = ["--cov=paleo_lite", "--cov-context=test", "--cov-report="]
    recording = [sys.executable, __file__, "_record", *options, *(arguments or default_tests())]
    subprocess.run(recording, check=False, cwd=TREE)


class Places:
    """The statements of one module, and the tests that run them."""

    def __init__(self, path: Path, contexts: dict[int, set[str]], imported: set[int]):
        self.contexts = contexts
        self.imported = imported  # lines that run when the module is imported
        text = (TREE / path).read_text()
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self.skipped: list[ast.AST] = []
        self.inside: list[tuple[int, int]] = []  # first and last lines of functions' bodies
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.inside.append((node.body[0].lineno, node.end_lineno))
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

    def in_function(self, line: int) -> bool:
        return any(first <= line <= last for first, last in self.inside)

    def tests_of(self, line: int) -> set[str] | None:
        """Return the tests that run a statement; None if it runs only when the module is imported."""
        if not self.in_function(line):
            return None
        statements = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.stmt, ast.ExceptHandler)) and node.lineno <= line <= node.end_lineno
        ]
        statement = max(statements, key=lambda node: (node.lineno, -node.end_lineno))
        body = getattr(statement, "body", None)
        last = max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno
        lines = range(statement.lineno, last + 1)
        found = set().union(*(self.contexts.get(n, ()) for n in lines))
        return None if not found and self.imported.intersection(lines) else found

    def tests(self) -> set[str]:
        return set().union(*(found for line, found in self.contexts.items() if self.in_function(line)))


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


def all_mutants(places: dict[str, Places]) -> Iterator[Mutant]:
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator

    operators = {name: get_operator(name)() for name in chosen_operators()}
    for path, place in places.items():
        nodes = list(ast_nodes(get_ast_from_path(TREE / path)))
        for name, operator in operators.items():
            found = ((node, start, end) for node in nodes for start, end in operator.mutation_positions(node))
            for occurrence, (node, start, end) in enumerate(found):
                # A bare * among parameters is not a product, and cosmic-ray cannot replace `module.Error`.
                is_dotted = node.type == "except_clause" and "." in place.lines[start[0] - 1][start[1] : end[1]]
                if not place.is_skipped(start) and node.parent.type != "parameters" and not is_dotted:
                    yield Mutant(path, *start, name, occurrence)


def sample(places: dict[str, Places], count: int, random_state: int) -> list[Mutant]:
    """Draw places at random, each with one of its mutants."""
    of_place = defaultdict(list)
    for mutant in all_mutants(places):
        of_place[mutant.path, mutant.line, mutant.column, mutant.operator.split("_")[0]].append(mutant)
    print(f"{len(of_place)} places, {sum(map(len, of_place.values()))} mutants")
    draw = random.Random(random_state)
    return [draw.choice(of_place[place]) for place in draw.sample(sorted(of_place), count)]


def read_places(folders: list[str]) -> dict[str, Places]:
    from coverage import CoverageData

    data = CoverageData(str(COVERED))
    data.read()
    passed = json.loads(PASSED.read_text())
    of_file = defaultdict(set)
    for test in passed:
        of_file[test.partition("::")[0]].add(test)
    places = {}
    for folder in folders:
        for path in sorted((TREE / "paleo_lite" / folder).rglob("*.py")):
            name = str(path.relative_to(TREE))
            runs, imported = defaultdict(set), set()
            for line, contexts in (data.contexts_by_lineno(name) if name in data.measured_files() else {}).items():
                if "" in contexts:
                    imported.add(line)
                for context in filter(None, contexts):
                    test, _, when = context.rpartition("|")
                    # A fixture of a whole file is recorded for the file's first test.
                    runs[line] |= of_file[test.partition("::")[0]] if when == "setup" else {test} & passed.keys()
            places[name] = Places(Path(name), runs, imported)
    return places


def in_child(tests: list[str], limit_s: int, left_out: set[str]) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
    assert not any(name.split(".")[0] == "paleo_lite" for name in sys.modules), "the mutant would not be loaded"
    with OUTPUT.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(MUTATED)
    sys.path[0] = str(MUTATED)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    os._exit(run_tests(["-x", *files], Chosen(tests, left_out)))


def run_in_child(tests: list[str], limit_s: int, left_out: set[str]) -> str:
    """Return the name and message of the first failing test, or an empty text."""
    CAUGHT_BY.unlink(missing_ok=True)
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(tests, limit_s, left_out))
    child.start()
    child.join(20 * limit_s)  # `limit_s` is processor time; this wall-clock limit stops tests that wait forever
    if child.exitcode is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
        return "waits forever"
    if CAUGHT_BY.exists():
        return CAUGHT_BY.read_text()
    if child.exitcode < 0:
        return f"{signal.Signals(-child.exitcode).name} after {limit_s} s"
    if child.exitcode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):  # all tests may be left out
        sys.exit(f"pytest ended with {child.exitcode} and no failed test: {OUTPUT}")
    return ""


class Runner:
    """Runs tests with one mutant at a time, in `MUTATED`."""

    def __init__(self):
        shutil.rmtree(MUTATED, ignore_errors=True)  # an interrupted run leaves a mutant in it
        shutil.copytree(TREE, MUTATED, symlinks=True)
        self.passing: set[str] = set()
        self.failing: set[str] = set()
        os.environ |= {"PYTHONPATH": str(MUTATED), "PYTHONDONTWRITEBYTECODE": "1"}
        for name in PRELOADED:
            importlib.import_module(name)

    def fails_without_mutant(self, test: str) -> bool:
        if test not in self.passing | self.failing:
            failure = run_in_child([test], LONGEST_S * 10, set())
            (self.failing if failure else self.passing).add(test)
        return test in self.failing

    def catch(self, mutant: Mutant, batches: list[tuple[list[str], int]]) -> tuple[str, list[str]] | None:
        """Return the first failure and the changed lines, of batches with time limits; None if it does not compile."""
        from cosmic_ray.mutating import use_mutation
        from cosmic_ray.plugins import get_operator

        failure = ""
        remaining = [batch for batch in batches if batch[0]]
        while True:
            with use_mutation(MUTATED / mutant.path, get_operator(mutant.operator)(), mutant.occurrence) as texts:
                try:
                    compile(texts[1], mutant.path, "exec")
                except SyntaxError:
                    return None
                while remaining and not failure:
                    tests, limit_s = remaining[0]
                    failure = run_in_child(tests, limit_s, self.failing)
                    if not failure:
                        del remaining[0]
            difference = difflib.unified_diff(*(text.splitlines() for text in texts), lineterm="", n=0)
            changed = list(difference)[3:]
            test = failure.partition("\n")[0]
            if "::" not in test or not self.fails_without_mutant(test):
                return failure, changed
            failure = ""


def mirror(path: str) -> str:
    """Return the file with the tests of a module."""
    folder, name = path.removeprefix("paleo_lite/").rsplit("/", 1)
    return f"tests/{folder}/test_{name}"


def try_mutant(
    mutant: Mutant, places: dict[str, Places], seconds: dict[str, float], runner: Runner
) -> dict[str, object] | None:
    """Return which test fails with a mutant; None if the mutant does not compile."""
    folder = "tests/" + mutant.path.split("/")[1]
    own_file = mirror(mutant.path)
    found = places[mutant.path].tests_of(mutant.line)
    if found is None:
        found = places[mutant.path].tests()
        found = found | {test for test in seconds if test.partition("::")[0] == own_file}  # for a constant
        if not found:
            same_folder = [place for name, place in places.items() if Path(name).parent == Path(mutant.path).parent]
            found = set().union(*(place.tests() for place in same_folder))

    def order(test: str) -> tuple[object, ...]:
        return test.partition("::")[0] != own_file, not test.startswith(folder), seconds[test], test

    ordered = sorted(found, key=order)
    batches: tuple[list[str], list[str]] = ([], [])
    total_s = 0.0
    for test in ordered:
        total_s += seconds[test]
        if total_s <= LONGEST_S:
            batches[total_s > FIRST_S].append(test)
    with_limits = [(sorted(tests), 60 + 10 * round(sum(seconds[test] for test in tests))) for tests in batches]
    caught = runner.catch(mutant, with_limits)
    if caught is None:
        return None
    ran = sum(map(len, batches))
    return {
        "caught_by": caught[0],
        "closest": ordered[:CLOSEST],
        "tests": ran,
        "not_run": len(ordered) - ran,
        "change": caught[1],
    }


def try_sample(count: int, random_state: int, folders: list[str]) -> None:
    places = read_places(folders)
    seconds = json.loads(PASSED.read_text())
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    mutants = sample(places, count, random_state)
    runner = Runner()
    for number, mutant in enumerate(mutants, 1):
        if str(mutant) not in results:
            results[str(mutant)] = try_mutant(mutant, places, seconds, runner)
            RESULTS.write_text(json.dumps(results, indent=1))
            print(f"{number} of {count}: {mutant}: {results[str(mutant)]}", flush=True)
    report({mutant: results[str(mutant)] for mutant in mutants})


def try_again(count: int, random_state: int, folders: list[str]) -> None:
    """Try the survivors of a sample again, in the recorded package, with the test files that changed since then."""
    results = json.loads(RESULTS.read_text())
    mutants = sample(read_places(folders), count, random_state)
    runner = Runner()
    changed = []
    for path in sorted(Path("tests").rglob("*.py")):
        copy = MUTATED / path
        if not copy.exists() or path.read_bytes() != copy.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
            if path.name.startswith("test_"):
                changed.append(str(path))
    for number, mutant in enumerate(mutants, 1):
        result = results[str(mutant)]
        if result and not result["caught_by"]:
            files = sorted(changed, key=lambda file: (file != mirror(mutant.path), file))
            same_folder = [file for file in files if file.startswith("tests/" + mutant.path.split("/")[1])]
            failure, _ = runner.catch(mutant, [([file], LONGEST_S * 5) for file in same_folder]) or ("", [])
            result["caught_by"] = failure
            print(f"{number} of {count}: {mutant}: {result}", flush=True)
    AGAIN.write_text(json.dumps(results, indent=1))
    report({mutant: results[str(mutant)] for mutant in mutants})


def report(results: dict[Mutant, dict[str, object] | None]) -> None:
    tried = {mutant: result for mutant, result in results.items() if result is not None}
    for mutant, result in tried.items():
        if not result["caught_by"]:
            print(f"\nsurvived {result['tests']} tests: {mutant}", *result["change"], sep="\n")
            print("closest tests:", *result["closest"] or ["none"], sep="\n    ")
    print(f"\n{len(results) - len(tried)} did not compile")
    for folder in (*FOLDERS, ""):
        caught = [
            bool(result["caught_by"])
            for mutant, result in tried.items()
            if mutant.path.startswith(f"paleo_lite/{folder}")
        ]
        print(f"{folder or 'all':12} {sum(caught)} of {len(caught)} caught")


def main() -> int:
    if sys.argv[1:2] == ["_record"]:  # runs in the copy, in a process that coverage measures from its start
        return run_tests(sys.argv[2:], Recorder())
    if sys.argv[1:2] == ["cover"]:
        cover(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["try", "again"])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--random-state", type=int, default=2026)
    parser.add_argument("--folders", type=lambda text: text.split(","), default=list(FOLDERS))
    arguments = parser.parse_args()
    run = {"try": try_sample, "again": try_again}[arguments.what]
    run(arguments.count, arguments.random_state, arguments.folders)
    return 0


if __name__ == "__main__":
    sys.exit(main())
