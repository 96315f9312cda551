"""The house has floors: a module imports only from below its own, and twins do not know each other."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "paleo_lite"
VALIDATION = PACKAGE.parent / "validation"
FLOORS = {
    "units": 1, "arguments": 1, "errors": 1, "files": 1, "extras": 1, "executor": 1, "child": 1, "result": 1, "text": 1,
    "version": 1, "formats": 1, "gguf_types": 1, "progress": 1,
    "counting": 2,
    "architectures": 3, "machines": 3, "profiles": 3, "measurement": 3,
    "timing": 4, "profile_analysis": 4, "result_files": 4,
    "distributed": 5, "input_pipeline": 5, "sweeps": 5, "calibration": 5, "paleo": 5,
    "serving": 5, "engines": 5, "own_machines": 5, "reinforcement": 5,
    "reporting": 6, "api": 7, "questions": 7, "cli": 7, "web": 7,
}  # fmt: skip
APART = [{"architectures", "machines", "profiles", "measurement"}, {"timing", "profile_analysis", "result_files"}]
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in FLOORS)


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a statement that hold statements."""


@cache
def statements_of(path: Path) -> list[ast.AST]:
    """The syntax of a module and all its statements, also those of its functions and classes."""
    found: list[ast.AST] = [ast.parse(path.read_text())]
    for node in found:  # grows
        found += [inner for block in BLOCKS for inner in getattr(node, block, ())]
    return found


def imported(path: Path) -> set[str]:
    """Rooms of the house that a module imports from, anywhere in it."""
    found = set()
    package = ["paleo_lite", *path.relative_to(PACKAGE).parts[:-1]]
    for node in statements_of(path):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = base + (node.module.split(".") if node.module else [])
            names = [[*full, alias.name] for alias in node.names] if len(full) < 2 else [full]
            found |= {name[1] for name in names if name[0] == "paleo_lite" and len(name) > 1}
        elif isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            found |= {part[1] for part in parts if part[0] == "paleo_lite" and len(part) > 1}
    return found


def why_not(room: str, other: str) -> str:
    """Why a room may not import from another; empty where it may."""
    if FLOORS[other] > FLOORS[room]:
        return "which is above it"
    if any({room, other} <= twins for twins in APART):
        return "from which it is apart"
    return "" if FLOORS[other] < FLOORS[room] or FLOORS[room] in (1, 5, 7) else "its neighbour"


def test_imports_point_down() -> None:
    assert len(MODULES) > 200
    rooms = {path: path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}
    assert [
        f"{path.relative_to(PACKAGE)} imports {other}, {why}"
        for path, room in rooms.items()
        for other in sorted(imported(path) - {room})
        if (why := why_not(room, other))
    ] == []


def names_imported(path: Path) -> set[str]:
    """Return the root package of each absolute import of a module."""
    statements = statements_of(path)
    found = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in statements if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in found}


def test_package_does_not_import_validation() -> None:
    """What reads published measurements imports the package and the libraries that it has anyway."""
    modules = sorted(VALIDATION.rglob("*.py"))
    assert len(modules) > 20
    beside = set().union(*map(names_imported, modules)) - set(sys.stdlib_module_names)
    assert beside <= {"paleo_lite", "click", "msgspec", "numpy", "pandas", "scipy"}


def test_the_package_does_without_validation() -> None:
    """It is not in the wheel."""
    assert [path for path in PACKAGE.rglob("*.py") if "validation" in names_imported(path)] == []


def test_lazily_imported_names_exist() -> None:
    """A floor may name a function of a higher floor as "package.module:function"; check that it exists."""
    places = [place for path in MODULES for place in re.findall(r'"(paleo_lite(?:\.\w+)+:\w+)"', path.read_text())]
    assert len(places) >= 3
    for place in places:
        module, function = place.split(":")
        source = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
        assert function in {getattr(node, "name", None) for node in statements_of(source)[0].body}, place


def names_of(path: Path) -> str:
    """The dotted name of a module."""
    return ".".join(("paleo_lite", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def modules_imported(path: Path, known: set[str]) -> set[str]:
    """Return the modules of the package that a module imports anywhere, also for types alone."""
    found = set()
    package = names_of(path.parent / "__init__.py").split(".")
    for node in statements_of(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            found |= {full if (full := f"{base}.{alias.name}") in known else base for alias in node.names}
    return found & known - {names_of(path)}


def test_no_circles() -> None:
    paths = {names_of(path): path for path in PACKAGE.rglob("*.py")}
    graph = {name: modules_imported(path, set(paths)) for name, path in paths.items()}
    assert sum(map(len, graph.values())) > len(graph)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other in a circle: {' -> '.join(error.args[1])}")


def modules_loaded(name: str) -> set[str]:
    """Return the modules of the package that are imported with a module, those that functions import left out."""
    paths = {names_of(path): path for path in PACKAGE.rglob("*.py")}
    loaded, pending = set(), [name]
    while pending:
        module = pending.pop()
        if module in loaded or module not in paths:
            continue
        loaded.add(module)
        package = names_of(paths[module].parent / "__init__.py").split(".")
        tree = statements_of(paths[module])[0]
        assert isinstance(tree, ast.Module)
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
                pending += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return loaded


@pytest.mark.parametrize(
    ("name", "rooms"),
    [("distributed.run", {"serving", "own_machines"}), ("calibration.store", {"result_files", "profiles"})],
)
def test_questions_load_no_rooms_without_need(name: str, rooms: set[str]) -> None:
    """Training needs no engine, and a calibration no reader of result files, which cold starts would wait for."""
    loaded = modules_loaded(f"paleo_lite.{name}")
    assert len(loaded) > 20
    assert not {module for module in loaded if module.split(".")[1:2] and module.split(".")[1] in rooms}
