"""Optional libraries: missed in one sentence, and only where they themselves are missing."""

from __future__ import annotations

import sys

import pytest

from paleo_lite.errors import MissingExtra
from paleo_lite.extras import require


def test_installed_module_is_returned() -> None:
    assert require("xml.dom", "reading", "profiles") is sys.modules["xml.dom"]


@pytest.mark.parametrize("module", ["nobody_has_this", "nobody_has_this.inside"])
def test_missing_module_is_named_with_its_extra(module) -> None:
    with pytest.raises(MissingExtra) as caught:
        require(module, "drawing a chart", "plots")
    assert str(caught.value) == "drawing a chart needs the 'plots' extra: pip install 'paleo-lite[plots]'"


def test_a_library_that_is_there_and_broken_is_not_called_absent(tmp_path, monkeypatch) -> None:
    (tmp_path / "half_installed.py").write_text("import something_of_its_own_that_is_absent")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_of_its_own_that_is_absent"):
        require("half_installed", "drawing a chart", "plots")
