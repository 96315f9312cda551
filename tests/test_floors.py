"""The house has floors: a module imports only from below its own, and twins do not know each other."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

PACKAGE = Path(__file__).parent.parent / "paleo_lite"
VALIDATION = PACKAGE.parent / "validation"
FLOORS = {
    "units": 1, "errors": 1, "files": 1, "extras": 1, "counting": 2,
    "networks": 3, "hardware": 3, "profiles": 3, "measure": 3,
    "timing": 4, "efficiency": 4, "scaling": 5, "calibration": 5, "paleo": 5, "report": 6, "api": 7, "cli": 7, "ui": 7,
}  # fmt: skip
APART = [{"networks", "hardware", "profiles", "measure"}, {"timing", "efficiency"}]
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in FLOORS)


def imported(path: Path) -> set[str]:
    """Rooms of the house that a module imports from, anywhere in it."""
    found = set()
    package = ["paleo_lite", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = base + (node.module.split(".") if node.module else [])
            names = [[*full, alias.name] for alias in node.names] if len(full) < 2 else [full]
            found |= {name[1] for name in names if name[0] == "paleo_lite" and len(name) > 1}
        elif isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            found |= {part[1] for part in parts if part[0] == "paleo_lite" and len(part) > 1}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for other in imported(path) - {room, "__version__"}:
        assert FLOORS[other] <= FLOORS[room], f"{room} imports {other}, which is above it"
        assert not any({room, other} <= twins for twins in APART), f"{room} and {other} are apart"
        assert FLOORS[other] < FLOORS[room] or FLOORS[room] in (1, 5, 7), f"{room} imports its neighbour {other}"


def names_imported(path: Path) -> set[str]:
    """What stands at the root of each absolute import of a module."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in found}


def test_validation_stands_beside_the_package() -> None:
    """What reads published measurements imports the package and the libraries that it has anyway."""
    modules = sorted(VALIDATION.rglob("*.py"))
    assert len(modules) > 20
    beside = set().union(*map(names_imported, modules)) - set(sys.stdlib_module_names)
    assert beside <= {"paleo_lite", "click", "msgspec", "numpy"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_package_does_without_validation(path: Path) -> None:
    """It is not in the wheel."""
    assert "validation" not in names_imported(path)


def test_what_is_named_to_be_imported_later_exists() -> None:
    """A floor may name a function of a floor above as "package.module:function"; nothing else checks such a text."""
    places = [place for path in MODULES for place in re.findall(r'"(paleo_lite(?:\.\w+)+:\w+)"', path.read_text())]
    assert len(places) >= 3 and all(callable(resolve_name(place)) for place in places)
