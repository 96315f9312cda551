"""`MeasuredSteps`: measured steps of whole networks, as returned by the reader of a source."""

from __future__ import annotations

import msgspec

from paleo_lite.calibration.measurements import Measurement


class MeasuredSteps(msgspec.Struct, frozen=True):
    """Published measurements, and the number of omitted rows by reason."""

    measurements: list[Measurement]
    left_out: dict[str, int]
