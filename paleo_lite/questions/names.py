"""Types of names that options take, from lists of the package and of frameworks; and how messages name options."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable
from typing import Any

import click

from ..errors import BadValue, UnknownName


def import_object(source: str) -> Any:
    """Return the object named by ``"module:NAME"``, with the module relative to the package."""
    module, _, name = source.partition(":")
    return getattr(importlib.import_module(f"paleo_lite{module}"), name)


class Names(click.Choice):  # type: ignore[type-arg]
    """A name from one or several lists of the package, which are imported only when they are needed.

    The category is the kind of name for error messages, such as ``"time model"``. The sources are lists as
    ``"module:LIST"``, or functions that return a list; the module is relative to the package.
    """

    name = "choice"

    def __init__(self, category: str, *sources: str) -> None:
        self.category = category
        self.sources = sources
        self.case_sensitive = True

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, whatever the case of its letters.

        Raise BadValue for one of earlier versions, and UnknownName for any other unknown one.
        """
        text = str(value)
        if param is not None and text == param.default:
            return text  # the default is valid: do not import the lists
        if text not in self.choices:
            listed = next((name for name in self.choices if name.lower() == text.lower()), None)
            if listed is not None:
                return listed
            from .upgrade import MOVED_NAMES

            moved = MOVED_NAMES.get(self.category, {}).get(text)
            if moved is not None:
                raise BadValue(moved)
            raise UnknownName(self.category, text, self.choices, lists_all=True)
        return text

    @functools.cached_property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """All names, in the order of their lists."""
        names: dict[str, None] = {}
        for source in self.sources:
            listed = import_object(source)
            if callable(listed):
                listed = listed()
            names.update(dict.fromkeys(listed))
        return tuple(names)


class ListedNames(Names):
    """One of some names that are given."""

    def __init__(self, category: str, names: Iterable[str]) -> None:
        super().__init__(category)
        self.choices = tuple(names)


class CombinedNames(Names):
    """A name, or several joined by plus signs in any order, from lists that have every combination once."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the combination as it is listed; raise UnknownName if there is no such one."""
        parts = sorted(str(value).lower().split("+"))
        listed = next((name for name in self.choices if sorted(name.lower().split("+")) == parts), value)
        return super().convert(listed, param, ctx)


class FormatNames(Names):
    """A format of numbers, also under the names of vLLM, SGLang and the files of Unsloth (``UD-Q4_K_XL``)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; raise UnknownName if there is no such format."""
        name = str(value).lower().removeprefix("ud-")
        name = _FORMATS_OF_ENGINES.get(name, name)
        return super().convert(name if name in self.choices else value, param, ctx)


class LocalFormatNames(FormatNames):
    """A format on one's own machine, also by the end of its name, as repositories of MLX and EXL2 have it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; raise UnknownName if there is no such format."""
        from ..gguf_types import EXL2_MIXTURES, MLX_MIXTURES

        text = str(value).lower()
        ends = {name.partition("-")[2]: name for name in (*MLX_MIXTURES, *EXL2_MIXTURES)}
        is_known = text in self.choices or text in _FORMATS_OF_ENGINES
        return super().convert(value if is_known else ends.get(text, value), param, ctx)


class StrategyNames(Names):
    """A way to divide a training step, also under the names of PyTorch, transformers and DeepSpeed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; raise UnknownName if there is no such strategy."""
        text = str(value).lower().replace("_", "-")
        return super().convert(_STRATEGIES_OF_FRAMEWORKS.get(text, text), param, ctx)


class OptimizerNames(Names):
    """An optimizer, also under the names of transformers (``--optim``)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; raise UnknownName if there is no such optimizer."""
        return super().convert(_OPTIMIZERS_OF_FRAMEWORKS.get(str(value).lower(), value), param, ctx)


_OPTIMIZERS_OF_FRAMEWORKS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_32bit": "adamw",
    "adamw_hf": "adamw",
    "adamw_bnb_8bit": "adamw-8bit",
    "adamw_8bit": "adamw-8bit",
    "paged_adamw": "paged-adamw",
    "paged_adamw_32bit": "paged-adamw",
    "paged_adamw_8bit": "paged-adamw-8bit",
    "lion_32bit": "lion",
}
_STRATEGIES_OF_FRAMEWORKS = {
    "dp": "data",
    "fsdp": "full-shard",
    "fsdp2": "full-shard",
    "zero1": "zero-1",
    "zero2": "zero-2",
    "zero3": "zero-3",
}
_FORMATS_OF_ENGINES = {
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "bitsandbytes": "nf4",
}
_PRECISIONS_OF_ENGINES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
}


class PrecisionNames(Names):
    """A precision; where the command takes it, also a format in which both operands of a product are stored.

    The names of PyTorch and vLLM are accepted as well.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; raise BadValue if it is a format for which the command has the option `--weights`."""
        text = _PRECISIONS_OF_ENGINES.get(str(value), str(value))
        is_default = param is not None and text == param.default
        if not is_default and text not in self.choices and ctx is not None and has_option(ctx.command, "weights"):
            from ..formats import split_format

            precision, weights = split_format(text, None)  # an error says what to give for weights alone
            if weights is not None:
                raise BadValue(f"`--precision {text}` stores weights as well: give `--precision {precision} "
                               f"--weights {weights}`")  # fmt: skip
        if text == "auto":
            raise BadValue(f"{parameter_name(param)} is the usual one of the network where it is left out (got auto)")
        return super().convert(text, param, ctx)


def has_option(command: click.Command, name: str) -> bool:
    """Return whether a command has a parameter of this Python name."""
    return any(parameter.name == name for parameter in command.params)


class OffloadNames(Names):
    """A place of gradients and optimizer state, ``activations:FRACTION``, or both joined by a plus sign."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; raise UnknownName if a part is not a place, and BadValue if a share is not a number."""
        for part in str(value).split("+"):
            name, _, share = part.partition(":")
            if name != ACTIVATIONS:
                super().convert(part, param, ctx)
            elif not re.fullmatch(r"0?\.\d+", share):
                raise BadValue(
                    f"{parameter_name(param)} activations:FRACTION takes a share below 1, such as activations:0.5 "
                    f"(got {quote(part)})"
                )
        return str(value)


ACTIVATIONS = "activations"
"""What `OffloadNames` takes besides places."""


def documented_name(option: click.Option) -> str:
    """Return the name of an option in documentation and messages: its first long name."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])


def parameter_name(param: click.Parameter | None) -> str:
    """Return the name of a parameter for a message; "the value" outside a command line."""
    if param is None:
        return "the value"
    if isinstance(param, click.Option):
        return f"`{documented_name(param)}`"
    return f"`{param.human_readable_name}`"


def quote(text: str) -> str:
    """Return a number unchanged, and any other text in quotes."""
    is_number = re.fullmatch(r"-?\d[\d.,]{0,20}", text)
    return text if is_number else repr(text)
