"""`Dataset`: measured steps of whole networks, as a reader of one source gives them."""

from __future__ import annotations

import msgspec

from paleo_lite.calibration.measurements import Measurement


class Dataset(msgspec.Struct, frozen=True):
    """Published measurements, and the number of excluded rows by reason."""

    measurements: list[Measurement]
    left_out: dict[str, int]
