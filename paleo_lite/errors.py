"""Exceptions raised by paleo-lite, one class per kind of failure.

Every exception that paleo-lite raises on purpose derives from `PaleoError`. `UsageProblem` groups the failures that the
caller can correct by changing the arguments: the command line exits with 2 for these and with 1 for all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .text import clean_message, letters_and_digits

_LISTED_AT_MOST = 16  # a longer list of valid names is not printed in full


class PaleoError(Exception):
    """Base class of all exceptions that paleo-lite raises on purpose."""

    def __str__(self) -> str:
        return clean_message(super().__str__())  # a message may quote the content of a file


class UsageProblem(PaleoError):
    """An invalid argument: an unknown name, an impossible value, or a combination that is not supported."""


class BadValue(UsageProblem):
    """A value outside its valid range, such as a batch size of 0 or a negative PPP."""


class SequenceTooLong(BadValue):
    """A sequence or context with more tokens than a network has positions."""


class BadDegree(BadValue):
    """A degree of parallelism with which a network cannot be divided.

    Parameters
    ----------
    option : str
        The option of the degree, such as ``"--tensor"``, or a setting of one, ``"--engine-settings experts"``.
    degree : int or None
        The degree; None where no degree above 1 is possible.
    reason : str
        The rest of the sentence.
    """

    def __init__(self, option: str, degree: int | None, reason: str) -> None:
        self.option, self.degree, self.reason = option, degree, reason
        separator = "=" if " " in option else " "
        typed = option if degree is None else f"{option}{separator}{degree}"
        super().__init__(f"`{typed}` {reason}")

    def with_options(self, names: Mapping[str, str]) -> BadDegree:
        """Return the error of a command that has other options for some degrees."""
        return BadDegree(names.get(self.option, self.option), self.degree, self.reason)


class BadQuantity(UsageProblem):
    """A text that is not a number with a unit, such as ``"8.73 TFLOP/s"``."""


class UnknownName(UsageProblem):
    """An unknown network, device, layer, layer kind, convention, time model, ...

    Parameters
    ----------
    category : str
        Kind of object, as the message names it (``"network"``).
    name : str
        The unknown name.
    valid_names : iterable of str
        All valid names.
    hint : str
        A further sentence for the message.
    lists_all : bool
        Whether all valid names are listed where none is similar, however many there are.

    Attributes
    ----------
    category : str
        Kind of object.
    name : str
        The unknown name.
    near : list of str
        Valid names that begin with the unknown one, or else look similar, nearest first.
    """

    def __init__(
        self, category: str, name: str, valid_names: Iterable[str], hint: str = "", *, lists_all: bool = False
    ) -> None:
        names = sorted(set(valid_names))
        by_lower_case = {candidate.lower(): candidate for candidate in names}
        self.category = category
        self.name = name
        self.near = nearest_names(name, names)
        parts = [part.strip() for part in name.split(",")]
        is_valid_list = len(parts) > 1 and all(part.lower() in by_lower_case for part in parts)
        if is_valid_list:
            suggestion = f"only one {category} is allowed here: use {join_with_or(parts)}."
            hint = ""
        elif self.near:
            suggestion = f"did you mean {join_with_or(self.near)}?"
        elif lists_all or len(names) <= _LISTED_AT_MOST:
            suggestion = f"valid names: {', '.join(names)}."
        else:
            suggestion = f"none of the {len(names)} valid names is similar."
        message = f"no {category} is called {name!r}: {suggestion}"
        if hint:
            message = f"{message} {hint}"
        super().__init__(message)


def nearest_names(name: str, valid_names: Iterable[str]) -> list[str]:
    """Return up to four valid names that begin with an unknown one, or else look similar, nearest first."""
    from difflib import get_close_matches

    by_lower_case = {candidate.lower(): candidate for candidate in sorted(set(valid_names))}
    matches = [candidate for candidate in sorted(by_lower_case, key=len) if _completes(candidate, name)][:4]
    matches = matches or get_close_matches(name[:200].lower(), by_lower_case, n=4, cutoff=0.5)
    if not matches and len(name) > 1:
        matches = [candidate for candidate in by_lower_case if candidate.startswith(name[:200].lower())][:4]
    return [by_lower_case[match] for match in matches]


def _completes(candidate: str, name: str) -> bool:
    """Return whether a name in lower case has further words behind the given one, whatever separates words."""
    letters = letters_and_digits(name[:200])
    return bool(letters) and re.match("[^a-z0-9]?".join(letters) + "(?![a-z0-9])", candidate) is not None


class AmbiguousName(UsageProblem):
    """A name that matches several objects; the message lists them.

    Parameters
    ----------
    category : str
        Kind of object, as the message names it (``"GPU"``).
    name : str
        The name.
    candidates : list of str
        Names of the objects, the most likely first.
    descriptions : list of str, optional
        The candidates with what tells them apart, as the message lists them.
    """

    def __init__(self, category: str, name: str, candidates: list[str], descriptions: list[str] | None = None) -> None:
        self.candidates = candidates
        listed = descriptions or candidates
        if len(listed) > _LISTED_AT_MOST + 1:
            listed = [*listed[:_LISTED_AT_MOST], f"one of {len(listed) - _LISTED_AT_MOST} others"]
        super().__init__(f"{name!r} matches more than one {category}: use {join_with_or(listed)}")


class UnknownPrecision(UsageProblem):
    """A precision (with an arithmetic unit) for which the device has no peak."""


class UnsupportedPhase(UsageProblem):
    """A phase that a convention or an execution mode does not support."""


class BadFile(PaleoError):
    """A file that cannot be used; the message names the file, the field and the expected content."""


class BadDevice(BadFile):
    """A hardware TOML that is malformed, incomplete or has an unknown field."""


class BadDescriptor(BadFile):
    """A network descriptor that is malformed, has an unknown field or a newer format version."""


class MissingKey(BadDescriptor):
    """A model's config that lacks a key which the record of its type reads."""


class BadProfile(BadFile):
    """A profile that is truncated, corrupted or in another format; the message names the file and the position."""


class NothingOnDevice(BadProfile):
    """A profile without device activity where device activity is required."""


class UnknownFormat(BadFile):
    """A file that no profile reader recognizes; the message lists the supported formats."""


class CountFailed(PaleoError):
    """A layer whose shapes do not match its kind, so that no counting rule applies."""


class CalibrationFailed(PaleoError):
    """Measurements that cannot be fitted, or a calibration for another device, precision or execution mode."""


class DoesNotFit(PaleoError):
    """Not even one sample fits into the device memory; the message gives the required size and possible remedies."""


class TraceFailed(PaleoError):
    """A module that could not be run on the meta device; the message contains the original error."""


class FactoryFailed(PaleoError):
    """A ``package.module:factory`` that could not be imported, raised an error or returned no module."""


class Interrupted(PaleoError):
    """An interrupted computation; the message lists the results that were saved."""


class ClusterLost(PaleoError):
    """A Dask scheduler that ended during a computation, or workers that cannot run it."""


class SweepStopped(PaleoError):
    """A sweep that stopped early; the message lists the saved results and explains how to resume."""


class MissingExtra(PaleoError):
    """A missing optional dependency; the message gives the pip command that installs it."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs the {extra!r} extra: pip install 'paleo-lite[{extra}]'")


def join_with_or(names: list[str]) -> str:
    """Return names as a list in a sentence: a, b or c."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} or {names[-1]}"
