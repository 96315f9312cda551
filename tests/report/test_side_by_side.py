"""Predictions side by side: shares of the bounds by hand, and rows that are the predictions'."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.networks import find_network
from paleo_lite.report.side_by_side import bound_sentence, shares_by_bound, side_by_side


@pytest.fixture(scope="module")
def prediction():
    """Three layers of 6, 3 and 1 s, the second bound by memory, the last of a kind that no rule counts."""
    alexnet = find_network("alexnet")
    first, second, third = alexnet.layers[:3]
    three = alexnet._replace(layers=(first, second, third._replace(kind="aten.sort")))
    return with_terms(
        pl.predict(three, gpu="titan-rtx", time_model="roofline"), layers_s=np.array([[6.0, 3.0, 1.0]]),
        compute_s=np.array([[6.0, 1.0, 0.0]]), memory_s=np.array([[2.0, 3.0, 1.0]]),
    )  # fmt: skip


def with_terms(prediction, **changes):
    return msgspec.structs.replace(prediction, terms=msgspec.structs.replace(prediction.terms, **changes))


def test_shares_of_the_bounds(prediction):
    assert shares_by_bound(prediction) == {"compute": 0.6, "memory": 0.3, "unknown": 0.1}
    assert bound_sentence(prediction) == "compute bounds 60% of the time, memory 30%, unknown 10%"
    with_rest = with_terms(prediction, overhead_s=10.0)
    assert shares_by_bound(with_rest)["overhead"] == 0.5
    said = bound_sentence(with_rest)
    assert said == "compute bounds 30% of the time, memory 15%, unknown 5%; 50% is overhead"


def test_a_share_that_rounds_to_nothing_is_not_0(prediction):
    assert bound_sentence(with_terms(prediction, overhead_s=0.01)).endswith("; under 1% is overhead")


def test_what_takes_no_time_is_bound_by_nothing(prediction):
    nothing = with_terms(prediction, layers_s=np.zeros((1, 3)))
    assert bound_sentence(nothing) == "no layer takes time"
    assert side_by_side([nothing]).rows[0]["relative"] is None
    only_rest = with_terms(nothing, overhead_s=1.0)
    assert bound_sentence(only_rest) == "100% is overhead"


def test_one_row_per_device():
    predictions = [pl.predict("alexnet", gpu=gpu, batch_size=8) for gpu in ("v100-sxm2", "k80-die")]
    sheet = side_by_side(predictions)
    assert [row["gpu"] for row in sheet.rows] == ["v100-sxm2", "k80-die"]
    assert sheet.rows[1]["relative"] == predictions[1].time_s / predictions[0].time_s
    assert [(row["low_s"], row["high_s"]) for row in sheet.rows] == [each.interval for each in predictions]
    assert "relative" in {column.key for column in sheet.columns}


def test_one_row_per_batch_size():
    sheet = side_by_side([pl.predict("alexnet", gpu="t4", batch_size=n) for n in (1, 2)])
    assert [row["batch_size"] for row in sheet.rows] == [1, 2]
    keys = {column.key for column in sheet.columns}
    assert "batch_size" in keys and "relative" not in keys
