"""The Python face: what `import paleo_lite as pl` gives, and that it costs nothing until it is used.

Tests: __init__.py.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import paleo_lite as pl


def test_every_name_is_there_and_no_other() -> None:
    for name in pl.__all__:
        assert getattr(pl, name) is not None and name in dir(pl)
    with pytest.raises(AttributeError, match="no attribute 'prediction'"):
        _ = pl.prediction


def test_importing_the_package_imports_no_library() -> None:
    code = "import sys, paleo_lite; print(sorted({'numpy', 'msgspec', 'click', 'torch'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
