"""Consistency of values that several files of the repository contain."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from paleo_lite import __version__

ROOT = Path(__file__).parent.parent
CALIBRATIONS = ROOT / "calibrations"


def test_citation_and_changelog_name_the_version_and_its_day():
    cited = dict(re.findall(r"^(version|date-released): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    released = dict(re.findall(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    assert cited["version"] == __version__
    assert cited["date-released"] == released[__version__]


def test_shares_are_written_in_one_way():
    """Percentages are written as ``90%`` in output, charts and documentation."""
    folders = ("paleo_lite", "validation", "docs", "notebooks", "hardware")
    paths = [ROOT / "README.md", *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]
    texts = {path: path.read_text() for path in paths if path.suffix in (".py", ".md", ".ipynb", ".html", ".toml")}
    assert [str(path) for path, text in texts.items() if re.search(r"[0-9}] %(?![\w(])", text)] == []


def sources_of(path: Path) -> list[str]:
    """Return the sources that a shipped calibration names."""
    if path.suffix == ".json":
        return [fit["source"] for fit in msgspec.json.decode(path.read_bytes())["fits"]]
    found = msgspec.toml.decode(path.read_bytes())
    sources: list[str] = found.get("provenance", found)["sources"]
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
