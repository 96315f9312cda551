"""Rows that several result files have in common, because one was copied or written from the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .findings import Findings, Reading

LEAST_COMMON = 0.5
"""Share of the rows of the smaller file from which they are taken to be those of the larger one.

Single rows of two runs are alike by chance where figures have few digits.
"""


class Repeated(NamedTuple):
    """Rows of a file that an earlier one has to the last digit."""

    findings: Findings
    earlier: Findings
    fingerprints: set[int]  # of the rows that both have

    @property
    def description(self) -> str:
        """How many rows these are, as a sentence without its end."""
        rows = self.findings.readings
        count = sum(_fingerprint(row) in self.fingerprints for row in rows)
        verb = "is" if count == 1 else "are"
        if count == len(rows):
            which = "its only row" if count == 1 else f"all of its {count:,} rows"
        else:
            which = f"{count:,} of its {len(rows):,} rows"
        return f"{which} {verb} also in {self.earlier.name}"


def repeated_rows(files: Sequence[Findings]) -> Iterator[Repeated]:
    """Yield the rows of each file that are also in an earlier one."""
    if len(files) < 2:
        return
    first: dict[int, int] = {}  # number of the first file with a row
    sizes: list[int] = []
    for number, findings in enumerate(files):
        fingerprints_of_file = set(map(_fingerprint, findings.readings))
        sizes.append(len(fingerprints_of_file))
        common: dict[int, set[int]] = defaultdict(set)
        for fingerprint in fingerprints_of_file:
            earlier = first.setdefault(fingerprint, number)
            if earlier < number:
                common[earlier].add(fingerprint)
        for earlier, fingerprints in sorted(common.items()):
            if len(fingerprints) >= LEAST_COMMON * min(sizes[number], sizes[earlier]):
                yield Repeated(findings, files[earlier], fingerprints)


def note_repeated_rows(files: Sequence[Findings]) -> None:
    """Doubt the files that have rows of an earlier one."""
    for repeated in repeated_rows(files):
        repeated.findings.doubt(f"{repeated.description}: they are one measurement")


def leave_out_repeated_rows(files: Sequence[Findings]) -> list[str]:
    """Leave out the rows that an earlier file has; return a sentence about each file that had some."""
    repetitions = list(repeated_rows(files))
    sentences = [f"{repeated.findings.name}: {repeated.description}, counted once" for repeated in repetitions]
    for findings, _, fingerprints in repetitions:
        findings.readings = [row for row in findings.readings if _fingerprint(row) not in fingerprints]
    return sentences


def _fingerprint(reading: Reading) -> int:
    """Return a number that rows of one measurement have in common; a user may have labelled them."""
    return hash((reading.kind, tuple((name, value) for name, value in reading.values.items() if name != "label")))
