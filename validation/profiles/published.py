"""Published profiles."""

from __future__ import annotations

from pathlib import Path

import msgspec


class ProfileSet(msgspec.Struct, frozen=True):
    """Profiles of one network on one device, in a subfolder of the data."""

    folder: str
    gpu: str
    network: str
    precision: str

    def path(self, data: Path) -> Path:
        """Return the path of the profiles inside the data folder."""
        return data / self.folder


PROFILE_SETS = (ProfileSet("surfboard/pyprof_kernels", "k40m", "resnet50", "fp32"),)
"""SURFBoard's runs on Cartesius."""
