"""``python -m paleo_lite.architectures.pipelines.export FOLDER``: trace the parts of all pipelines again.

Needs diffusers and transformers; names of descriptors after the folder restrict it to these.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..descriptor import COMPRESSED
from .configs import CONFIGS
from .tracing import write_part


def main() -> None:
    """Write the descriptors to the folder given on the command line."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m paleo_lite.architectures.pipelines.export FOLDER [NAME...]")
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(CONFIGS)
    for name in names:
        class_name, config = CONFIGS[name]
        write_part(name, class_name, config, folder / f"{name}.json{COMPRESSED}")


if __name__ == "__main__":
    main()
