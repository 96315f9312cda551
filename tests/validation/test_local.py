"""Published speeds of llama.cpp, and the fit of its constants."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from measured import DATA
from paleo_lite.engines.records import BACKENDS
from validation.local import cards, offloaded
from validation.local.fit import NOISE, SHARED_NOISE, TYPICAL, make_constants, predict_s, whitening_of
from validation.local.published import PUBLISHED, LocalMeasurement, read_rows


def test_constants_are_named_in_order() -> None:
    constants = make_constants("cuda", np.log(TYPICAL["cuda"]))
    assert constants.share == pytest.approx(TYPICAL["cuda"][0])
    assert constants.expert_rows == pytest.approx(TYPICAL["cuda"][-1])


def test_rows_of_a_source_count_together() -> None:
    """The error that a hundred rows of one source and device share counts no more than that of the source itself."""
    row = LocalMeasurement("a table", "apple-m1", 1, "llama-2-7b", "q4_0", "decode", 128, 0, 0.07, "metal")
    assert whitening_of([row])[0, 0] == pytest.approx(1 / np.hypot(NOISE, SHARED_NOISE))
    assert np.square(whitening_of([row] * 100).sum(1)).sum() == pytest.approx(1 / SHARED_NOISE**2, rel=0.01)
    apart = whitening_of([row._replace(source=f"table {number}") for number in range(2)])
    assert apart[1, 0] == apart[0, 1] == 0


def test_published_rows_name_their_sources() -> None:
    lines = list(csv.DictReader(PUBLISHED.open(encoding="utf-8")))
    assert all(len(line["source"]) > 20 and float(line["tokens_per_s"]) > 0 for line in lines)
    assert {line["backend"] for line in lines} == set(BACKENDS)
    row = next(line for line in lines if line["device"] == "ryzen-9-7950x" and line["weights"] == "q8_0")
    assert row["phase"] == "prompt" and float(row["tokens_per_s"]) == 141.3


def test_what_is_on_the_host() -> None:
    """Nothing was fitted to these speeds: with hosts that their sources name, forecasts are within a quarter."""
    lines = list(csv.DictReader(offloaded.PUBLISHED.open(encoding="utf-8")))
    named = [line for line in lines if line["host"].startswith("named")]
    assert len(named) == 4
    for line in named:
        assert offloaded.predict_rate(line) == pytest.approx(float(line["tokens_per_s"]), rel=0.25)


def test_different_cards_in_one_machine() -> None:
    """Nothing was fitted to these speeds; Qwen3-Next was slow in llama.cpp until its recurrent layers had kernels."""
    speeds = [cards.predict_speed(line) for line in csv.DictReader(cards.PUBLISHED.open(encoding="utf-8"))]
    usual = [speed for speed in speeds if speed.network != "qwen3-next-80b-a3b"]
    assert len(usual) == 6 and all(speed.is_inside and abs(speed.error) < 0.12 for speed in usual)
    assert all(speed.rate_per_s > 3 * speed.measured_per_s for speed in speeds if speed not in usual)


@pytest.mark.needs_data
def test_rows() -> None:
    """74 rows of one table; of the others those whose network, format and device are shipped."""
    rows = read_rows(DATA)
    assert sum(row.source == "XiongjieDai" for row in rows) == 74
    row = next(row for row in rows if (row.device, row.phase, row.weights) == ("rtx3090", "decode", "f16"))
    assert row.seconds == pytest.approx(1 / 46.51)
    assert predict_s(row, make_constants("cuda", np.log(TYPICAL["cuda"]))) == pytest.approx(row.seconds, rel=0.3)
