"""Entry point of ``python -m paleo_lite``."""

from .cli import main

main()
