"""``python -m paleo_lite.architectures.export FOLDER``: trace every shipped network anew and write its descriptor."""

from __future__ import annotations

import sys
from pathlib import Path

from .catalog import all_names, trace_named
from .descriptor import write_descriptor
from .torch_import import import_torchvision


def main() -> None:
    """Write all descriptors into the folder named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m paleo_lite.architectures.export FOLDER")
    import_torchvision()
    for name in all_names():
        write_descriptor(trace_named(name), Path(sys.argv[1]) / f"{name}.json")


if __name__ == "__main__":
    main()
