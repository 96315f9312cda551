"""Published tables: rows of their CSV files, and the devices to which their names refer."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from paleo_lite.errors import BadFile, UsageProblem
from paleo_lite.machines import find_device

_DEVICES = {
    "K80": "k80-die",
    # These sources used a DGX-1 and Amazon's p3 instances.
    "P100": "p100-sxm2",
    "P100-SXM2 (DGX-1)": "p100-sxm2",
    "V100": "v100-sxm2",
    "M60 (1 of 2 GPUs)": "m60-die",
    "GTX TITAN X (Maxwell)": "titanx-maxwell",
    "TITAN X (Pascal)": "titanx-pascal",
}
"""Device names in the sources that differ from ours; sources with a K80 timed one of its two devices."""


@cache
def device_of(name: str) -> str:
    """Return the id of the device to which a name in a source refers."""
    try:
        return find_device(_DEVICES.get(name, name)).id
    except UsageProblem as error:
        raise BadFile(f"a published measurement is of a GPU without a hardware file: {error}") from None


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file, which is decompressed if its name ends with ``.gz``."""
    try:
        with (
            gzip.open(path, "rt", newline="", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(newline="", encoding="utf-8") as file
        ):
            yield from csv.DictReader(file)
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror or error})") from None
    except (EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{path}: damaged, or not a CSV file: {error}") from None
