"""Print the lowest declared version of every dependency as constraints for pip: ``make lowest`` tests with them."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

_LOWEST = re.compile(r"^([\w-]+)(?:\[[\w,-]+\])?>=([\w.]+)")


def lowest_versions(pyproject: str, extras: list[str]) -> dict[str, str]:
    """Return the lowest declared version by dependency, of the package itself and of extras."""
    project = tomllib.loads(pyproject)["project"]
    optional = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    matches = (_LOWEST.match(requirement) for requirement in requirements)
    return {match[1]: match[2] for match in matches if match}


def main() -> None:
    """Print the constraints of the extras that the command line names, such as ``plots,ui``."""
    versions = lowest_versions((ROOT / "pyproject.toml").read_text("utf-8"), sys.argv[1].split(","))
    for name, version in versions.items():
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
