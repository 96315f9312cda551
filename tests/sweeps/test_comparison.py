"""Comparison of predictions: cost, order, and omitted rows."""

from __future__ import annotations

import json

import pytest

import paleo_lite as pl
from paleo_lite.errors import UnknownName, UnknownPrecision
from paleo_lite.machines import find_device
from paleo_lite.sweeps.rows import RowTerms, answer_rows


def test_combinations_keep_the_requested_order() -> None:
    found = pl.predict(["resnet18", "alexnet"], gpu=["t4", "k80"], batch_size=[8, 1])
    rows = list(found.rows)
    assert [(row["network"], row["gpu"], row["batch_size"]) for row in rows] == [
        (network, gpu, size) for network in ("resnet18", "alexnet") for gpu in ("t4", "k80-die") for size in (8, 1)
    ]
    assert [row["time_s"] for row in rows[:2]] == [
        pl.predict("resnet18", gpu="t4", batch_size=size).time_s for size in (8, 1)
    ]
    assert found.baseline is found.answers[0]
    answer = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [each["gpu"] for each in answer["answers"]] == [row["gpu"] for row in answer["rows"]]
    pandas = pytest.importorskip("pandas")
    assert isinstance(found.to_frame(), pandas.DataFrame)
    assert repr(found) == "<Comparison: 8 predictions side by side: fp32, inference>"


def test_cost_of_a_million_samples() -> None:
    """p2.xlarge, one die of a K80: 0.90 USD an hour (hardware/k80-die.toml); no price of a K40m is on record."""
    die, board, unpriced = pl.predict("alexnet", gpu=["k80-die", "k80", "k40m"]).rows
    assert die["usd_per_million"] == pytest.approx(1e6 / die["throughput_per_s"] / 3600 * 0.90)
    assert board["usd_per_million"] == die["usd_per_million"]
    assert unpriced["usd_per_million"] is None


def test_rows_that_do_not_fit_are_marked() -> None:
    small, large = pl.predict("vgg16", gpu=["t4"], phase=["training"], batch_size=[1, 4096]).rows
    assert (small["fits"], large["fits"]) == (True, False)


def test_what_does_not_fit_has_its_time_and_is_not_chosen() -> None:
    """A step of 8B with AdamW in bf16 needs 64 GB for its state alone, 8 bytes per weight; an RTX 4090 has 24."""
    compared = pl.train("llama-3-8b", gpu=["rtx4090", "h200-sxm", "b200"], precision="bf16")
    small, *fitting = compared.rows
    assert (small["fits"], *(row["fits"] for row in fitting)) == (False, True, True)
    assert small["time_s"] == compared.answers[0].time_s and small["low_s"] < small["time_s"] < small["high_s"]
    assert all(small.get(name) is None for name in ("speedup", "throughput_per_s", "cost_usd", "energy_j"))
    assert dict(compared.document().facts)["fastest"].startswith("b200")
    (only,) = pl.predict("resnet50", gpu="t4", phase="training", batch_size=[4096, 8192]).document().tables
    assert not {row.get("speedup") for row in only.rows} - {None}


def test_unpredictable_rows_are_omitted_but_unknown_names_are_an_error() -> None:
    found = pl.predict("alexnet", gpu=["k40m", "t4"], precision=["fp16"])
    assert [each.device.id for each in found.answers] == ["t4"]
    assert "no fp16 peak" in found.left_out[0]
    with pytest.raises(UnknownPrecision):
        pl.predict("alexnet", gpu=["k40m"], precision=["fp16"])
    with pytest.raises(UnknownName, match="k40m"):
        pl.predict("alexnet", gpu=["t4", "k4Om"])


def test_pipelines_stand_beside_each_other() -> None:
    """The H100 is faster than an RTX 4090 beyond the errors of both; each row is the prediction asked alone."""
    found = pl.diffusion("sdxl", gpu=["rtx4090", "h100-sxm"], precision="fp16", steps=4, image_size=1024)
    rows = found.rows
    alone = pl.diffusion("sdxl", gpu="h100-sxm", precision="fp16", steps=4, image_size=1024)
    assert [row["gpu"] for row in rows] == ["rtx4090", "h100-sxm"]
    assert rows[1]["time_s"] == alone.time_s and rows[1]["energy_j"] == alone.energy_j
    assert rows[1]["memory_bytes"] == alone.memory.total_bytes and rows[1]["fits"]
    assert 1 < rows[1]["speedup_low"] < rows[1]["speedup"] < rows[1]["speedup_high"]
    assert "images\nper s" in [column.title for column in found.document().tables[0].columns]


def test_cost_of_pictures_is_that_of_all_devices() -> None:
    (row,) = answer_rows(pl.diffusion("flux.1-dev", gpu="h100-sxm", precision="bf16", ulysses=2, steps=4), RowTerms())
    price = find_device("h100-sxm").rent_usd_per_h
    assert row["usd_per_million"] == pytest.approx(2 * price * row["time_s"] / 3600 * 1e6)


def test_a_comparison_is_a_sequence_of_answers() -> None:
    comparison = pl.predict("resnet50", gpu=["t4", "v100-sxm2", "l4"])
    assert [answer.device.id for answer in comparison] == ["t4", "v100-sxm2", "l4"]
    assert len(comparison) == 3 and comparison[1] is comparison.answers[1] and len(comparison[1:]) == 2
    advice = pl.local("qwen3-8b", gpu=["rtx4090", "rtx3060"], advise=True)
    assert [row.gpu for row in advice] == [advice[index].gpu for index in range(len(advice))]


def test_a_note_names_the_option_of_a_number() -> None:
    comparison = pl.predict("efficientnet_b0", gpu=["jetson-thor", "rtx4060"], precision="fp16", batch_size=[1, 16])
    assert comparison.describe([1, 3]) == "batch size 16" and comparison.describe([0, 1]) == "jetson-thor"
    assert comparison.describe([0, 1, 2, 3]) == ""


def test_rows_without_a_time_are_explained_where_there_are_any() -> None:
    bounds = pl.predict("resnet50", gpu=["xeon-8480", "raspberry-pi-5"])
    mixed = pl.predict("resnet50", gpu=["t4", "raspberry-pi-5"])
    facts = [dict(comparison.document().facts) for comparison in (bounds, mixed)]
    assert ["bounds" in stated for stated in facts] == [False, True]
