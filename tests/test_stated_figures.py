"""Figures that a text takes from a table on its own page or another: both must be the same."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
ACCURACY = "docs/accuracy.md"


class Cell(NamedTuple):
    """Where the figure of a table stands."""

    page: str
    section: str  # the heading above the table, without #
    row: str  # how its line begins, without the first bar
    column: str | int  # the heading of the column, or its position where two have one heading


class Stated(NamedTuple):
    """A sentence with figures (each written {}), and the cells from which they come in this order."""

    page: str
    sentence: str
    cells: tuple[Cell, ...]


def networks(row: str, column: str = "error") -> Cell:
    return Cell(ACCURACY, "Whole networks", row, column)


def published_servers(row: str, column: str) -> Cell:
    return Cell(ACCURACY, "Serving", row, column)


def pools(figure: str, column: str) -> Cell:
    return Cell(ACCURACY, "Split pools", f"{figure} | all |", column)


def known_rows(row: str, column: int) -> Cell:
    return Cell(ACCURACY, "Servers and machines of which some measurements are known", row, column)


def fresh(row: str, column: str) -> Cell:
    return Cell(ACCURACY, "What people measured in autumn 2026", f"{row} |", column)


def energy(row: str, column: str = "error") -> Cell:
    return Cell(ACCURACY, "Energy", row, column)


NEW_NETWORK, NEW_FAMILY, NEW_DEVICE = (
    "a new network, on a measured device",
    "a network of a family without measurements",
    "a device without measurements |",
)
INSIDE = "inside the 90% interval"
H100_STEPS = Cell(ACCURACY, "Training language models on H100", "all | all |", "Mean error")
CLUSTERS = Cell("docs/scale.md", "", "a cluster |", "mean error")
THROUGHPUT = published_servers("all | throughput |", "Median error")
WATTS_MEASURED, WATTS_FORECAST = "power of a device, with the measured time", "the same, with forecast times"
JOULES = "joules per output token, picture or video, with forecast times"
WATTS_AT_THE_WALL = "watts of 26 machines with GDDR cards"
UNKNOWN_RECIPE = tuple(
    Cell("docs/training.md", "", f"device | {device}, recipe not given |", "MAPE")
    for device in ("gb200", "h100-sxm", "b200", "gb300")
)

STATED = (
    Stated(
        "README.md",
        "error is {}% for a network that the device's fit has not seen, {}% for a family without measurements, and {}% "
        "for a device without measurements",
        (networks(NEW_NETWORK), networks(NEW_FAMILY), networks(NEW_DEVICE)),
    ),
    Stated("README.md", "are predicted with an error of {}% on average, and", (H100_STEPS,)),
    Stated("README.md", "published serving throughput with one of {}% in the median", (THROUGHPUT,)),
    Stated("README.md", "on clusters without measurements is off by {} percentage points", (CLUSTERS,)),
    Stated(ACCURACY, "**On a measured device, the error for a new network is {}%.**", (networks(NEW_NETWORK),)),
    Stated(ACCURACY, "The interval contains {} of 100 measured times", (networks(NEW_NETWORK, INSIDE),)),
    Stated(ACCURACY, "**On a device without measurements, the error is {}%.**", (networks(NEW_DEVICE),)),
    Stated(
        ACCURACY,
        "If other devices were measured on the same host, the error is {}%.",
        (networks("a device without measurements, on a host"),),
    ),
    Stated(
        ACCURACY,
        "they contain {}% and {}% of the measurements instead of 90%",
        (networks(NEW_FAMILY, INSIDE), networks("another range of batch sizes", INSIDE)),
    ),
    Stated(ACCURACY, "**The median error of throughput is {}%**", (THROUGHPUT,)),
    Stated(ACCURACY, "TTFT is {}% off in the median, and", (published_servers("all | ttft |", "Median error"),)),
    Stated(ACCURACY, "still too narrow: it holds {}% of the rows instead of 90%", (pools("TTFT", "within 90%"),)),
    Stated(
        ACCURACY,
        "The mean falls from {}% to {}%, and the interval is two thirds as wide",
        (known_rows("step of training | 1 |", 7), known_rows("step of training | 1 |", 8)),
    ),
    Stated(
        "docs/limits.md",
        "The mean error is {}% for a new network on such a device, {}% for a network of a new family, and {}% for "
        "a device without measurements",
        (networks(NEW_NETWORK), networks(NEW_FAMILY), networks(NEW_DEVICE)),
    ),
    Stated(
        "docs/limits.md",
        "The power of a device is {}% off in the median with a model held out at measured times, and {}% at forecast "
        "times",
        (energy(WATTS_MEASURED), energy(WATTS_FORECAST)),
    ),
    Stated("docs/limits.md", "measured at the wall, are {}% off in the median", (energy(WATTS_AT_THE_WALL),)),
    Stated(
        "docs/model.md",
        "26 such machines are {}% off in the median, 11.6% in the mean, with {}% inside",
        (energy(WATTS_AT_THE_WALL), energy(WATTS_AT_THE_WALL, INSIDE)),
    ),
    Stated(
        "docs/model.md",
        "| all | 649 | {}% | {}% | {}% | {}% |",
        (energy(WATTS_FORECAST), energy(WATTS_FORECAST, INSIDE), energy(JOULES), energy(JOULES, INSIDE)),
    ),
    Stated("CHANGELOG.md", "the power of a device is {}% off in the median", (energy(WATTS_MEASURED),)),
    Stated(
        "docs/serving.md",
        "237 rows with known settings are predicted {}% off in the time per token and {}% off in the time to the first "
        "token (medians), with {}% and {}% inside the 90% intervals",
        (pools("TPOT", "median"), pools("TTFT", "median"), pools("TPOT", "within 90%"), pools("TTFT", "within 90%")),
    ),
    Stated("docs/serving.md", "The table of autumn 2026 is {}% off in the mean", (fresh("all", "mean error"),)),
    Stated(
        "docs/local.md",
        "the median error of answers went from 29% to {}%, and of prompts from 18% to {}%",
        (fresh("llama.cpp, answers", "median error"), fresh("llama.cpp, prompts", "median error")),
    ),
    Stated("docs/training.md", "it is {}%, {}%, {}% and {}% now", UNKNOWN_RECIPE),
    Stated(
        "CHANGELOG.md",
        "takes the median error of its other times per token from {} to {}%",
        (
            known_rows("time per token of servers | 1 |", 9),
            known_rows("time per token of servers | 1 |", 10),
        ),
    ),
    Stated(
        "docs/how-to/calibrate-from-result-files.md",
        "from {}% to {}% for the time per token of servers, and from {}% to {}% for tokens of own machines",
        (
            known_rows("time per token of servers | 1 |", 9),
            known_rows("time per token of servers | 1 |", 10),
            known_rows("token of an answer, own machines | 1 |", 9),
            known_rows("token of an answer, own machines | 1 |", 10),
        ),
    ),
)  # fmt: skip


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def figure_of(cell: Cell) -> float:
    """Return the first number in a cell of a table."""
    text = text_of(cell.page)
    if cell.section:
        text = re.split(r"^## ", text.split(f"\n## {cell.section}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = text.splitlines()
    at = [number for number, line in enumerate(lines) if line.startswith(f"| {cell.row}")]
    assert len(at) == 1, f"{len(at)} rows of {cell.page} begin with {cell.row!r}"
    column = cell.column
    if isinstance(column, str):
        rule = max(number for number in range(at[0]) if lines[number].startswith("| :--"))
        headings = [heading.strip() for heading in lines[rule - 1].strip("|").split("|")]
        assert headings.count(column) == 1, f"{headings.count(column)} columns of {cell.page} are called {column!r}"
        column = headings.index(column)
    return float(re.search(r"[\d.]+", lines[at[0]].strip("|").split("|")[column])[0])


@pytest.mark.parametrize("stated", STATED, ids=lambda stated: f"{stated.page}: {stated.sentence[:40]}")
def test_a_stated_figure_is_that_of_its_table(stated):
    """A figure may be stated with fewer digits than the table has."""
    pattern = re.escape(stated.sentence).replace(r"\{\}", r"(\d+(?:\.\d+)?)").replace(r"\ ", r"\s+")
    found = re.findall(pattern, text_of(stated.page))
    assert len(found) == 1, f"{stated.page} states {len(found)} times: {stated.sentence}"
    figures = (found[0],) if isinstance(found[0], str) else found[0]
    assert len(figures) == len(stated.cells)
    for figure, cell in zip(figures, stated.cells, strict=True):
        digits = len(figure.partition(".")[2])
        assert figure == f"{figure_of(cell):.{digits}f}", f"{cell} has {figure_of(cell)}"


def test_the_readme_has_the_least_and_the_largest_share_inside_of_all_splits():
    summary = text_of(ACCURACY).split("<!-- summary -->")[1].split("<!-- end of summary -->")[0]
    shares = [int(row.split("|")[4].strip().rstrip("%")) for row in summary.strip().splitlines()[2:]]
    assert len(shares) > 5
    assert f"{min(shares)} to {max(shares)}% of measurements lie in their 90% interval" in " ".join(
        text_of("README.md").split()
    )
