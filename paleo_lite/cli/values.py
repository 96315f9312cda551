"""Types of values that only the command line takes: limits, numbers of rows, and files that are executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import BadFile, BadValue
from ..questions.names import parameter_name
from ..questions.values import Quantity


class DecompressedSize(Quantity):
    """Maximum size of a decompressed file, for this process and its worker processes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Set the limit and return it."""
        from ..profiles.detect import set_decompression_limit

        limit = super().convert(value, param, ctx)
        set_decompression_limit(limit)
        return limit


class RowCount(click.ParamType):  # type: ignore[type-arg]
    """A number of rows, or ``all``, which is converted to None."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number of rows; None for all."""
        text = str(value)
        if text == "all":
            return None
        if not text.isdecimal():
            raise BadValue(f"{parameter_name(param)} must be an integer >= 0 or 'all' (got {text!r})")
        return int(text)


class RulesFile(click.Path):
    """A Python file that registers counting rules; it is executed when the option is parsed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Execute the file and return its path."""
        import runpy

        if ctx is None or not ctx.resilient_parsing:
            path = Path(value).absolute()
            try:
                runpy.run_path(str(path))
            except Exception as error:
                if isinstance(error, OSError) and error.filename == str(path):
                    raise BadFile(f"{value}: cannot be read ({error.strerror})") from None
                raise BadFile(f"{value}: {type(error).__name__}: {error}") from error
        return value
