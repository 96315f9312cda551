"""For the Python reference: what numpydoc means and griffe reads otherwise.

``{"a", "b"}`` lists what is allowed, the first is not the default. Names that share a description do not share the
type of the first. Both are written out, so that types and defaults are those of the signature. Before a block of code
Markdown has one colon, not two. A function of a question takes the question's fields.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from griffe import Extension, Module, Object, Parameter, ParameterKind, Parameters

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

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Write out what functions of a question take, as `help` does."""
        for module in pkg["api"].modules.values() if pkg.name == "paleo_lite" else ():
            for function in module.functions.values():
                if any("(asked," in str(decorator.value) for decorator in function.decorators):
                    face = getattr(importlib.import_module(module.path), function.name)
                    function.parameters = Parameters(*map(_shown, inspect.signature(face).parameters.values()))


def _shown(parameter: inspect.Parameter) -> Parameter:
    default = None if parameter.default is parameter.empty else repr(parameter.default)
    return Parameter(
        parameter.name, annotation=parameter.annotation, kind=ParameterKind(parameter.kind.description), default=default
    )
