"""`Dataset`: measured steps of whole networks, as a reader of one source gives them."""

from __future__ import annotations

import msgspec

from paleo_lite.calibration.measurements import Measurement


class Dataset(msgspec.Struct, frozen=True):
    """Published measurements, and what of a file was left out and why: reason to number of rows."""

    measurements: list[Measurement]
    left_out: dict[str, int]
