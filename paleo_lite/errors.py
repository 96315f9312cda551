"""What can go wrong, one class per failure, each with one clear sentence.

Everything paleo-lite raises on purpose derives from `PaleoError`. `UsageProblem` marks the failures that the
caller mends by asking differently (the command line exits with 2 for those and with 1 for the rest).
"""

from __future__ import annotations

from collections.abc import Iterable

from .text import sentence


class PaleoError(Exception):
    """The root of every error that paleo-lite raises on purpose."""

    def __str__(self) -> str:
        return sentence(super().__str__())  # what it quotes may be a file's


class UsageProblem(PaleoError):
    """What was asked cannot be answered as asked: a name, a value, a combination."""


class BadValue(UsageProblem):
    """A value outside what is possible: a batch of 0, a PPP below 0, an image size of text."""


class BadQuantity(UsageProblem):
    """A text that does not read as a number with a unit, such as ``"8.73 TFLOP/s"``."""


class UnknownName(UsageProblem):
    """A network, device, layer, kind, convention or time model that is unknown.

    Attributes
    ----------
    what : str
        What sort of thing was asked for (``"network"``).
    name : str
        The name as given.
    near : list of str
        Known names that look like it, nearest first.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        from difflib import get_close_matches

        known = sorted(set(known))
        self.what, self.name = what, name
        lowered = {candidate.lower(): candidate for candidate in known}
        self.near = [lowered[match] for match in get_close_matches(name[:200].lower(), lowered, n=4, cutoff=0.5)]
        several = name.split(",")
        if len(several) > 1 and lowered.keys() >= {part.strip().lower() for part in several}:
            rest, hint = f"this takes one {what}: say {_either([part.strip() for part in several])}.", ""
        elif self.near:
            rest = f"did you mean {_either(self.near)}?"
        elif len(known) <= 12:
            rest = f"known: {', '.join(known)}."
        else:
            rest = f"none of the {len(known)} that are known is similar."
        super().__init__(f"no {what} is called {name!r}: {rest}" + (f" {hint}" if hint else ""))


class AmbiguousName(UsageProblem):
    """A name that could mean several things; the message lists them."""

    def __init__(self, what: str, name: str, candidates: list[str]) -> None:
        self.candidates = candidates
        super().__init__(f"{name!r} could be more than one {what}: say {_either(candidates)}")


class UnknownPrecision(UsageProblem):
    """The device has no peak for the precision (and unit) that was asked for."""


class UnsupportedPhase(UsageProblem):
    """A convention counts only a forward pass and was asked for another."""


class BadFile(PaleoError):
    """A file that cannot be used as it is: the sentence names file, field and what was expected."""


class BadDevice(BadFile):
    """A hardware TOML that is malformed, misspelt or incomplete."""


class BadDescriptor(BadFile):
    """A network descriptor that is malformed, misspelt or of a newer format."""


class BadProfile(BadFile):
    """A profile that is truncated, corrupted or not what it claims: file, place, and what was expected."""


class NothingOnDevice(BadProfile):
    """A profile of the host alone, where what ran on a device was asked for."""


class UnknownFormat(BadFile):
    """A file that no reader knows as a profile; the sentence lists what is read."""


class CountFailed(PaleoError):
    """A layer whose shapes do not fit its kind, so that no rule can count it."""


class CalibrationFailed(PaleoError):
    """Measurements that cannot be fitted as they are, or a calibration that does not fit what it is used for."""


class DoesNotFit(PaleoError):
    """Not even one sample fits into the device's memory; the sentence says what is needed and what would help."""


class TraceFailed(PaleoError):
    """The module could not be run on the meta device; the sentence carries the module's own error."""


class FactoryFailed(PaleoError):
    """``package.module:factory`` could not be imported, raised, or returned no module."""


class Interrupted(PaleoError):
    """Somebody stopped it; the message says what is kept."""


class SweepStopped(PaleoError):
    """A sweep that could not go on; the sentence says what is kept, and that the same command goes on from there."""


class MissingExtra(PaleoError):
    """An optional library is needed and absent; the sentence gives the pip line that adds it."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs the {extra!r} extra: pip install 'paleo-lite[{extra}]'")


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
