"""Isolation of PALEO's folder: other functions of the package do not import it.

Tests: paleo/layers.py.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

ASK = """
import sys
from paleo_lite.cli import main
main(sys.argv[1:], standalone_mode=False)
print([name for name in sys.modules if name.startswith("paleo_lite.paleo")])
"""


@pytest.mark.parametrize(
    ("question", "entered"),
    [
        ("predict vgg16 --gpu k80 --precision fp64", False),
        ("layers paleo_nin", False),
        ("layers paleo_nin --convention paleo", True),
    ],
)
def test_paleo_is_imported_on_demand(question, entered):
    result = subprocess.run([sys.executable, "-c", ASK, *question.split()], capture_output=True, text=True, check=True)
    assert ("paleo_lite.paleo.layers" in result.stdout.splitlines()[-1]) is entered
