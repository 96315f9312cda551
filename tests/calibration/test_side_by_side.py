"""Comparison of predictions: cost, order, and omitted rows.

Tests: calibration/side_by_side.py.
"""

from __future__ import annotations

import json

import pytest

import paleo_lite as pl
from paleo_lite.errors import UnknownName, UnknownPrecision


def test_combinations_keep_the_requested_order() -> None:
    found = pl.predict_several(["resnet18", "alexnet"], gpus=["t4", "k80"], batch_sizes=[8, 1])
    rows = list(found.rows())
    assert [(row["network"], row["gpu"], row["batch_size"]) for row in rows] == [
        (network, gpu, size) for network in ("resnet18", "alexnet") for gpu in ("t4", "k80-die") for size in (8, 1)
    ]
    assert [row["time_s"] for row in rows[:2]] == [
        pl.predict("resnet18", gpu="t4", batch_size=size).time_s for size in (8, 1)
    ]
    assert found.baseline is found.predictions[0]
    answer = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [each["gpu"] for each in answer["predictions"]] == [row["gpu"] for row in answer["rows"]]
    pandas = pytest.importorskip("pandas")
    assert isinstance(found.to_frame(), pandas.DataFrame)
    assert repr(found).startswith("Predictions(Prediction(network='resnet18'")


def test_cost_of_a_million_samples() -> None:
    """p2.xlarge, one die of a K80: 0.90 USD an hour (hardware/k80-die.toml); no price of a K40m is on record."""
    die, board, unpriced = pl.predict_several(["alexnet"], gpus=["k80-die", "k80", "k40m"]).rows()
    assert die["usd_per_million"] == pytest.approx(1e6 / die["throughput_per_s"] / 3600 * 0.90)
    assert board["usd_per_million"] == die["usd_per_million"]
    assert unpriced["usd_per_million"] is None


def test_rows_that_do_not_fit_are_marked() -> None:
    small, large = pl.predict_several(["vgg16"], gpus=["t4"], phases=["training"], batch_sizes=[1, 4096]).rows()
    assert (small["fits"], large["fits"]) == (True, False)


def test_unpredictable_rows_are_omitted_but_unknown_names_are_an_error() -> None:
    found = pl.predict_several(["alexnet"], gpus=["k40m", "t4"], precisions=["fp16"])
    assert [each.device.id for each in found.predictions] == ["t4"]
    assert "no fp16 peak" in found.left_out[0]
    with pytest.raises(UnknownPrecision):
        pl.predict_several(["alexnet"], gpus=["k40m"], precisions=["fp16"])
    with pytest.raises(UnknownName, match="k40m"):
        pl.predict_several(["alexnet"], gpus=["t4", "k4Om"])
