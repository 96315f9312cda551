"""`Result`, the methods shared by everything that the functions of paleo-lite return, and `ResultList`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import msgspec

from .errors import join_with_or, nearest_names
from .extras import require

LOWER_BOUND_FACT = "at least"
"""Name of the fact of a document that gives the lower bound of a time."""

_Item = TypeVar("_Item")


class Result:
    """Mixin that converts a result to a dict, a data frame, a document or the output of a notebook.

    A subclass either overrides `document` or names the function that makes the document in `_page`, as
    ``"package.module:function"``: that function is in a module that imports the subclass.
    """

    __slots__ = ()
    _page: ClassVar[str]

    def document(self, **options: Any) -> Any:
        """Return the `paleo_lite.reporting.document.Document` that the command prints.

        Parameters
        ----------
        **options
            Output options of the command, such as ``top=20``.
        """
        module, _, name = self._page.partition(":")
        make_document = getattr(importlib.import_module(module), name)
        return make_document(self, **options)

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON: stable names, SI units."""
        return dict(msgspec.to_builtins(self))

    def to_frame(self) -> Any:
        """Return the table that the command prints as CSV, as a pandas DataFrame.

        The title and the facts of the document are in its ``attrs``.

        Raises
        ------
        MissingExtra
            If pandas is not installed.
        """
        pandas = require("pandas", "a data frame", "profiles")
        document = self.document()
        table = document.csv_table
        keys = [column.key for column in table.columns]
        rows = [[row.get(key) for key in keys] for row in table.rows]
        frame = pandas.DataFrame(rows, columns=keys)
        frame.attrs = {"title": document.title, **dict(document.facts)}
        return frame

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError for an attribute that does not exist, with those whose names are nearest."""
            kind = type(self)
            if hasattr(kind, name):  # a property that itself raised AttributeError, with a message of its own
                object.__getattribute__(self, name)
            message = f"{kind.__name__} has no attribute {name!r}"
            if not name.startswith("_"):
                near = nearest_names(name, (known for known in dir(kind) if not known.startswith("_")))
                message += (
                    f": did you mean {join_with_or([f'.{known}' for known in near])}?"
                    if near
                    else ": dir() lists those that it has"
                )
            raise AttributeError(message)

    def _repr_html_(self) -> str:
        """Return the document as HTML, for notebooks."""
        html: str = self.document()._repr_html_()
        return html

    def __repr__(self) -> str:
        """Return the title of the document, with the lower bound of the time if it has one."""
        document = self.document()
        text = document.title
        bound = dict(document.facts).get(LOWER_BOUND_FACT)
        if bound:
            text = f"{text}; {LOWER_BOUND_FACT} {bound}"
        return f"<{type(self).__name__}: {text}>"


class TableOfAnswers(Result):
    """Mixin for a table of several answers, each of which has a time of its own; `answers_in` names where they are."""

    __slots__ = ()
    answers_in: ClassVar[str]

    @property
    def time_s(self) -> NoReturn:
        """Raise AttributeError, which says where the times are."""
        raise AttributeError(
            f"{type(self).__name__} is a table of several answers, each of which has a time: "
            f".{self.answers_in}[0].time_s, or a column of .to_frame()"
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(getattr(self, self.answers_in))

    def __getitem__(self, index: Any) -> Any:
        return getattr(self, self.answers_in)[index]

    def __len__(self) -> int:
        return len(getattr(self, self.answers_in))

    def __bool__(self) -> bool:
        return True  # an answer, even one without rows


class ResultList(Result, list[_Item]):
    """A list that a notebook shows as a table, with the methods of `Result`.

    Parameters
    ----------
    items : iterable
        Items of the list.
    name : str
        Plural noun for the items, the key of the rows in `to_dict`.
    make_document : callable
        Function from a list of items, and output options, to a `paleo_lite.reporting.document.Document` with one row
        per item.
    """

    def __init__(self, items: Iterable[_Item], name: str, make_document: Callable[..., Any]) -> None:
        super().__init__(items)
        self._name = name
        self._make_document = make_document

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        if isinstance(index, slice):
            return ResultList(item, self._name, self._make_document)
        return item

    def document(self, **options: Any) -> Any:
        """Return the list as a `paleo_lite.reporting.document.Document`."""
        return self._make_document(list(self), **options)

    def to_dict(self) -> dict[str, Any]:
        """Return the rows of the table under the name of the list."""
        return {self._name: list(self.document().csv_table.rows)}

    def __reduce__(self) -> Any:
        return ResultList, (list(self), self._name, self._make_document)
