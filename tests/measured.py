"""Published measurements that tests read: a folder outside the repository, described in CONTRIBUTING.md.

A test that reads them is marked `needs_data`; `conftest.py` skips it where `why_absent` says why.
"""

from __future__ import annotations

import os
from pathlib import Path

NAMED = os.environ.get("PALEO_LITE_DATA", "")
DATA = Path(NAMED).resolve()
REFERENCES = DATA.parent / "references"
"""Tables to compare with: PALEO's networks and times of layers, and GPUs."""

FOLDERS = (*(DATA / name for name in ("measured", "paleo", "profiles", "surfboard")), REFERENCES)


def why_absent() -> str:
    """Why tests cannot read them; empty where they can."""
    if not NAMED:
        return "reads published measurements; name their folder in PALEO_LITE_DATA (CONTRIBUTING.md says what is in it)"
    absent = ", ".join(str(folder) for folder in FOLDERS if not folder.is_dir())
    return absent and f"reads published measurements; PALEO_LITE_DATA is {NAMED}, but there is no {absent}"
