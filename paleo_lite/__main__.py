"""Entry point of ``paleo-lite`` and of ``python -m paleo_lite``."""

from __future__ import annotations

import sys

_INTERRUPTED = 130  # as `cli.INTERRUPTED`, which is not imported yet


def run() -> None:
    """Run the command line; an interrupt while it is imported is one line, as later."""
    try:
        from .cli import main
    except KeyboardInterrupt:
        sys.stderr.write("paleo-lite: interrupted\n")
        sys.exit(_INTERRUPTED)
    main()


if __name__ == "__main__":
    run()
