"""Extension of griffe that rewrites docstrings which griffe interprets differently than numpydoc.

In numpydoc ``{"a", "b"}`` lists the allowed values, and the first one is not the default. Several names that share a
description do not share the type of the first name. Both forms are expanded, so that types and defaults come from the
signature. In Markdown, one colon instead of two precedes a block of code.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_CHOICES = re.compile(r"^(\s*[\w, ]+ : )\{([^}]*)\}", re.MULTILINE)
_SHARED = re.compile(r"^( *)(\w+(?:, \w+)+)\n((?:\1 +.*\n)+)", re.MULTILINE)
_LITERAL = re.compile(r"::$", re.MULTILINE)


class AsNumpydocMeans(Extension):
    """Rewrite docstrings before griffe parses them."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            text = _CHOICES.sub(_expand_choices, obj.docstring.value)
            text = _SHARED.sub(_expand_names, text)
            obj.docstring.value = _LITERAL.sub(":", text)


def _expand_choices(match: re.Match[str]) -> str:
    """Return ``name : "a" | "b"`` for ``name : {"a", "b"}``."""
    return match[1] + match[2].replace(", ", " | ")


def _expand_names(match: re.Match[str]) -> str:
    """Repeat the description that several names share, once for each name."""
    indent, names, description = match[1], match[2].split(", "), match[3]
    return "".join(f"{indent}{name}\n{description}" for name in names)
