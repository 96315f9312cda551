"""Every kind of question answers with the same fields, which the documentation lists."""

from pathlib import Path

import pytest

import paleo_lite as pl
from paleo_lite.timing.answer import COMMON_FIELDS, as_json

OUTPUT = Path(__file__).parents[2] / "docs/output.md"

QUESTIONS = {
    "step": lambda: pl.predict("resnet50", gpu="v100-sxm2", batch_size=32),
    "step of several": lambda: pl.train("resnet50", gpu="v100-sxm2", workers=4),
    "batch": lambda: pl.diffusion("sdxl", gpu="l40s"),
    "batch of several": lambda: pl.diffusion("flux.1-dev", gpu="h100-sxm", workers=4),
    "token": lambda: pl.local("llama-3-8b", gpu="rtx4090"),
    "request": lambda: pl.serve("llama-3-8b", gpu="h100-sxm", rate=2, num_requests=50),
}


@pytest.mark.parametrize("asked", QUESTIONS)
def test_every_kind_has_the_common_fields(asked: str) -> None:
    result = QUESTIONS[asked]()
    answer = result.to_dict()
    for name in COMMON_FIELDS.keys() - {"notes"}:  # in Python as well; tables put what they assume before their notes
        assert as_json(getattr(result, name)) == answer[name], name
    assert [name for name in answer if name in COMMON_FIELDS] == list(COMMON_FIELDS)
    assert answer["time_of"] == asked.partition(" ")[0]
    low_s, high_s = answer["interval"]
    assert low_s < answer["time_s"] < high_s and answer["fits"] is not False
    if asked != "request":  # whose energy includes that of waiting
        assert answer["energy_j"] == pytest.approx(answer["devices"] * answer["power_w"] * answer["time_s"])


def test_what_differs_between_numbers_of_devices_is_in_the_rows() -> None:
    result = pl.train("resnet50", gpu="v100-sxm2", workers=[1, 2])
    assert result.time_s is None and result.memory_bytes is None
    table = result.to_dict()
    assert table["time_s"] is None and table["network"] == "resnet50"
    assert [row["devices"] for row in table["rows"]] == [1, 2] and all(row["time_s"] > 0 for row in table["rows"])


def test_the_power_of_a_row_is_that_of_its_shares() -> None:
    row = pl.train("llama-3.1-8b", gpu="h100-sxm", workers=8).rows[0]
    assert 0 < row.shares.arithmetic + row.shares.memory <= 1 + 1e-9
    assert (
        pl.train("llama-3.1-8b", gpu="h100-sxm", workers=8, link="ethernet10").rows[0].shares.links > row.shares.links
    )


def test_compared_strategies_answer_with_the_best() -> None:
    table = pl.train("resnet50", gpu="v100-sxm2", workers=4, advise="time").to_dict()
    best = next(row for row in table["rows"] if row["strategy"] == table["best"])
    assert (table["time_s"], table["memory_bytes"]) == (best["time_s"], best["memory_bytes"])


def test_the_documentation_lists_the_common_fields() -> None:
    section = OUTPUT.read_text(encoding="utf-8").partition("## Every answer")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert {name.strip("`"): meaning for name, meaning in rows} == COMMON_FIELDS
