"""For the Python reference: what numpydoc means and griffe reads otherwise.

``{"a", "b"}`` lists what is allowed, the first is not the default. Names that share a description do not share the
type of the first. Both are written out, so that types and defaults are those of the signature. Before a block of code
Markdown has one colon, not two.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_CHOICES = re.compile(r"^(\s*[\w, ]+ : )\{([^}]*)\}", re.MULTILINE)
_SHARED = re.compile(r"^( *)(\w+(?:, \w+)+)\n((?:\1 +.*\n)+)", re.MULTILINE)
_LITERAL = re.compile(r"::$", re.MULTILINE)


class AsNumpydocMeans(Extension):
    """Rewrites docstrings before griffe parses them."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            text = _CHOICES.sub(lambda found: found[1] + found[2].replace(", ", " | "), obj.docstring.value)
            text = _SHARED.sub(
                lambda found: "".join(f"{found[1]}{name}\n{found[3]}" for name in found[2].split(", ")), text
            )
            obj.docstring.value = _LITERAL.sub(":", text)
