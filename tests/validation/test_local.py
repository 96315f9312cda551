"""Published speeds of llama.cpp, and the fit of its constants."""

from __future__ import annotations

import numpy as np
import pytest

from measured import DATA
from validation.local.fit import TYPICAL, make_constants, predict_s, read_rows


def test_constants_are_named_in_order() -> None:
    constants = make_constants(np.log(TYPICAL["cuda"]))
    assert constants.share == pytest.approx(TYPICAL["cuda"][0])
    assert constants.attention_efficiency == pytest.approx(TYPICAL["cuda"][-1])


@pytest.mark.needs_data
def test_rows() -> None:
    """74 rows of one table; of the two others those whose network, format and device are shipped."""
    rows = read_rows(DATA)
    assert sum(row.source == "XiongjieDai" for row in rows) == 74
    row = next(row for row in rows if (row.device, row.phase, row.weights) == ("rtx3090", "decode", "f16"))
    assert row.seconds == pytest.approx(1 / 46.51)
    assert predict_s(row, make_constants(np.log(TYPICAL["cuda"]))) == pytest.approx(row.seconds, rel=0.3)
