"""Consistency of values that several files of the repository contain."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from paleo_lite import __version__

ROOT = Path(__file__).parent.parent
CALIBRATIONS = ROOT / "calibrations"


def test_citation_and_changelog_name_the_version_and_its_day():
    cited = dict(re.findall(r"^(version|date-released): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    released = dict(re.findall(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    assert cited["version"] == __version__
    assert cited["date-released"] == released[__version__]


_SPACE = r"(?:[ \u00a0\u2009\u202f]|\\u00a0|\\u202f|\\xa0|&nbsp;)"
SPACED_SHARE = re.compile(rf"(?:[0-9}}]{_SPACE}|['\"`]{_SPACE})%(?! ?[\w({{\[]+\s?[)\]:,]|[\w(}}]| [a-z]\b)")
"""A number or a placeholder, or the end of a text, then a space and a percent sign; no remainder and no template."""


def test_shares_are_written_in_one_way():
    """In what is printed, drawn and explained: ``90%``, as numbers of axes and tables are.

    Without a space, a no-break space (as a character, an escape or an entity) or a thin one in between.
    """
    folders = ("paleo_lite", "validation", "docs", "notebooks", "hardware", "calibrations", "tests", "benchmarks")
    suffixes = {".py", ".md", ".ipynb", ".html", ".toml", ".js", ".css", ".svg", ".yml", ".yaml", ".cff", ".csv"}
    paths = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]
    paths = [path for path in paths if path.suffix in suffixes and path.is_file() and path != Path(__file__)]
    assert len(paths) > 800
    texts = {path: path.read_text("utf-8") for path in paths}
    # What the changelog says of versions that are released stays as it was.
    texts[ROOT / "CHANGELOG.md"] = texts[ROOT / "CHANGELOG.md"].partition("\n## 0.1.0 ")[0]
    assert [str(path) for path, text in texts.items() if SPACED_SHARE.search(text)] == []


@pytest.mark.parametrize(
    "text",
    ["within 90 %", "{share:.0f} % of", "90\N{NO-BREAK SPACE}%", "90\\u00a0%", "90&nbsp;%", "${value} %`",
     "90\N{NARROW NO-BREAK SPACE}%", "value + ' %'"],
)  # fmt: skip
def test_spaced_shares_are_found(text):
    assert SPACED_SHARE.search(text)


@pytest.mark.parametrize("text", ["90%", "5 % n", "n % 2", "{a: 1} %}", "{% if x == 'a' %}", "{% set version = 1 %}"])
def test_other_percent_signs_are_no_shares(text):
    assert not SPACED_SHARE.search(text)


CODE = re.compile(r"^ *```.*?^ *```|(`+).*?\1", re.DOTALL | re.MULTILINE)
PLACEHOLDER = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\b|\b(?:TODO|FIXME|TBD|XXX)\b")


def placeholders(text: str) -> list[str]:
    """Return words of capitals outside code that stand for a text or a table that is still to be written."""
    return PLACEHOLDER.findall(CODE.sub("", text))


def test_no_page_has_a_placeholder():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 50
    found = {str(page.relative_to(ROOT)): placeholders(page.read_text("utf-8")) for page in pages}
    assert {page: words for page, words in found.items() if words} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [("as follows:\n\nMUTANT_TABLE\n", ["MUTANT_TABLE"]), ("TODO: widths", ["TODO"]),
     ("set `PALEO_LITE_DATA`", []), ("```sh\nexport SOURCE_DATE_EPOCH=0\n```", []), ("ML.ENERGY, VRAM and FP8", [])],
)  # fmt: skip
def test_placeholders_are_told_from_names_in_code(text, found):
    assert placeholders(text) == found


def test_the_readme_lists_the_extras_of_a_user():
    """Extras for building the documentation and for tests are for contributors."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = {name for name in declared if name != "docs" and not name.startswith("test")}
    readme = (ROOT / "README.md").read_text()
    assert set(re.findall(r"\[(\w+)\]`", readme)) == extras
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "how-to" / "install.md").read_text(), re.MULTILINE)
    assert set(rows) == extras


def sources_of(path: Path) -> list[str]:
    """Return the sources that a shipped calibration names."""
    if path.suffix == ".json":
        content = msgspec.json.decode(path.read_bytes())
        return content["sources"] if "sources" in content else [fit["source"] for fit in content["fits"]]
    found = msgspec.toml.decode(path.read_bytes())
    sources: list[str] = found.get("provenance", found.get("kernels", found))["sources"]
    return sources


FILES = sorted(path for ending in ("toml", "json") for path in CALIBRATIONS.rglob(f"*.{ending}"))
NAMED = re.findall(r"^## `(.+)`$", (CALIBRATIONS / "LICENSES.md").read_text(), re.MULTILINE)


def test_whose_measurements_a_calibration_was_learnt_from_is_in_licenses():
    assert len(FILES) > 40
    for path in FILES:
        sources = sources_of(path)
        assert sources, path
        assert [source for source in sources if not source.startswith(tuple(NAMED))] == [], path


def test_licenses_name_nobody_from_whom_nothing_was_learnt():
    sources = [source for path in FILES for source in sources_of(path)]
    assert [name for name in NAMED if not any(source.startswith(name) for source in sources)] == []


def test_tests_of_a_file_share_a_process(request):
    """With several processes, fixtures shared by a file would otherwise be created in each process."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@tests/test_repository.py")


def test_no_class_name_stands_twice():
    """A name is one idea: a reader who searches for a class finds one."""
    places: dict[str, list[str]] = {}
    for path in sorted(path for room in ("paleo_lite", "validation") for path in (ROOT / room).rglob("*.py")):
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_phony_target_of_the_makefile_has_a_rule():
    makefile = (ROOT / "Makefile").read_text()
    names = re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()
    assert "release" in names
    without_rule = [name for name in names if not re.search(rf"^{name}:(?!=)", makefile, re.M)]
    assert not without_rule
