"""What a file's name says of the run that it profiles."""

from __future__ import annotations

import re
from typing import Any

from ..errors import BadValue

SURFBOARD = (
    r"run_(?P<repetition>\d+)_config_(?P<nodes>\d+)_(?P<gpus_per_node>\d+)_(?P<fabric>[^_]+)_(?P<profiler>[^_]+)"
    r"_(?P<workers>\d+)_(?P<network>[^_]+)_(?P<data_loader>[^_]+)_(?P<batch_size>\d+)_(?P<gradient_precision>[^_]+)"
    r"_(?P<compute_precision>[^_]+)_ret_(?P<return_code>\d+)"
)
"""The pattern of SURFBoard's file names, which is the default."""


def parse_name(name: str, pattern: str | None = None) -> dict[str, Any]:
    """The named groups of a pattern in a file's name; whole numbers become int. Empty where it does not match.

    Parameters
    ----------
    name : str
        The file's name without its folder.
    pattern : str, optional
        A regular expression with named groups, `SURFBOARD` without one.

    Raises
    ------
    BadValue
        If the pattern is not a regular expression or has no named group.
    """
    try:
        compiled = re.compile(pattern or SURFBOARD)
    except re.error as error:
        raise BadValue(f"the name pattern is not a regular expression: {error}") from None
    if not compiled.groupindex:
        raise BadValue("the name pattern has no named group: write groups as (?P<batch_size>\\d+)")
    match = compiled.search(name)
    if match is None:
        return {}
    settings = {key: value for key, value in match.groupdict().items() if value is not None}
    return {key: int(value) if value.isdecimal() else value for key, value in settings.items()}
