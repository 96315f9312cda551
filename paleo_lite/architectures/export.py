"""``python -m paleo_lite.architectures.export FOLDER``: trace every shipped network and write its descriptor."""

from __future__ import annotations

import sys
from pathlib import Path

from .catalog import exportable_names, trace_named
from .descriptor import write_descriptor
from .torch_import import import_torchvision


def main() -> None:
    """Write all descriptors to the folder given on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m paleo_lite.architectures.export FOLDER")
    folder = Path(sys.argv[1])
    import_torchvision()
    for name in exportable_names():
        write_descriptor(trace_named(name), folder / f"{name}.json")


if __name__ == "__main__":
    main()
