"""`Result`: what every answer can do, whatever was asked."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, ClassVar

import msgspec

from .extras import need

BOUND = "at least"
"""What documents call the fact that says the bound."""


class Result:
    """An answer: as a dict, as a data frame, as a document, in a notebook. A mixin; what answers differ in they define.

    A class says in `_page` which function of a floor above makes its document, as ``"package.module:function"``.
    """

    __slots__ = ()
    _page: ClassVar[str]

    def document(self, **how: Any) -> Any:
        """The `paleo_lite.reporting.document.Document` that the command prints.

        Parameters
        ----------
        **how
            How much of it, as the command's options of printing say: ``top=20``.
        """
        return resolve_name(self._page)(self, **how)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: stable names, SI units."""
        return dict(msgspec.to_builtins(self))

    def to_frame(self) -> Any:
        """What the command prints as CSV, as a pandas DataFrame; title and facts are in its ``attrs``.

        Raises
        ------
        MissingExtra
            If pandas is not installed.
        """
        pandas = need("pandas", "a data frame", "profiles")
        document = self.document()
        table = document.csv_table
        keys = [column.key for column in table.columns]
        frame = pandas.DataFrame([[row.get(key) for key in keys] for row in table.rows], columns=keys)
        frame.attrs = {"title": document.title, **dict(document.facts)}
        return frame

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        text: str = self.document()._repr_html_()
        return text

    def __repr__(self) -> str:
        """The document's title, which has the answer with its interval, and the bound where it has one."""
        document = self.document()
        bound = dict(document.facts).get(BOUND)
        return f"<{type(self).__name__}: {document.title}{f'; {BOUND} {bound}' if bound else ''}>"
