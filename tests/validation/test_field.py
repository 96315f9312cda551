"""Questions of a table of published measurements, asked as people ask them."""

from __future__ import annotations

import csv
import json

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.errors import BadFile, BadValue
from validation.__main__ import main
from validation.field.compare import (
    COLUMNS,
    FieldRow,
    Interval,
    ask,
    compare_field,
    field_page,
    question_of,
    read_field,
    translate,
)

ANSWER = FieldRow(
    source="llama-bench",
    kind="llama.cpp answer",
    device="rtx3090",
    model="llama-2-7b",
    config="q4_0 tg",
    unit="tokens/s",
    command="paleo-lite predict llama-2-7b --gpu rtx3090 --execution llama.cpp --weights q4_0 --context 64",
    measured=160.0,
)


def write_table(folder, lines, columns=COLUMNS):
    """Write a table of measurements into a folder of data."""
    (folder / "field").mkdir()
    with (folder / "field" / "measured_2026_11.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(lines)
    return folder


def changed(row, **changes):
    return msgspec.structs.replace(row, **changes)


def line_of(row):
    return {name: getattr(row, name) for name in COLUMNS}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (ANSWER.command, "local llama-2-7b --gpu rtx3090 --weights q4_0 --context 64"),
        ("paleo-lite predict alexnet --phase training --gpu t4", "train alexnet --gpu t4"),
        (
            "paleo-lite scale vgg16 --scaling strong --workers 8 --batch-size 32",
            "train vgg16 --workers 8 --global-batch-size 32",
        ),
        ("paleo-lite serve qwen3-8b --policy sglang", "serve qwen3-8b --engine sglang"),
    ],
)
def test_words_of_earlier_versions_are_translated(command, words):
    assert translate(command) == words.split()


def test_limits_of_all_ranks_are_divided_among_them():
    """TensorRT-LLM's performance overview states 8,192 tokens a rank, and the row of four ranks 32,768."""
    limits = "--max-batched-tokens 32768 --max-sequences 8192 --attention-data-parallel 4"
    row = changed(ANSWER, source="overview, limits x groups", command=f"paleo-lite serve m {limits}")
    asked = ["serve", "m", "--max-batched-tokens", "8192", "--max-sequences", "2048", "--attention-data-parallel", "4"]
    assert question_of(row) == asked
    assert question_of(changed(row, source="overview")) == translate(row.command)


def test_only_the_command_line_of_the_package_is_asked():
    with pytest.raises(BadValue, match="begins with `paleo-lite`"):
        translate("rm -r data")


def test_the_forecast_is_the_answer_of_the_question():
    asked = ask(ANSWER)
    answer = pl.local("llama-2-7b", gpu="rtx3090", weights="q4_0", context=64)
    assert asked.forecast == pytest.approx((answer.tokens_per_s, 1 / answer.interval[1], 1 / answer.interval[0]))
    assert asked.error == pytest.approx(answer.tokens_per_s / 160 - 1)


def test_a_refusal_has_its_reason():
    asked = ask(changed(ANSWER, command="paleo-lite predict no-such-network --gpu t4"))
    assert asked.forecast is None and "no-such-network" in asked.reason


def test_a_bound_is_no_forecast():
    asked = ask(changed(ANSWER, command="paleo-lite predict alexnet --gpu k80 --time-model roofline"))
    assert asked.forecast is None and asked.reason == "a bound, not a forecast"


def test_the_score_is_the_width_and_twenty_times_the_distance():
    """Gneiting and Raftery 2007, equation 43, with alpha = 0.1."""
    inside = changed(ANSWER, measured=1.0, forecast=Interval(1.0, 0.5, 2.0))
    assert inside.score == pytest.approx(np.log(4))
    outside = changed(inside, measured=4.0)
    assert outside.score == pytest.approx(np.log(4) + 20 * np.log(2)) and not outside.is_inside


def test_tables_are_read_and_selected_by_words(tmp_path):
    data = write_table(tmp_path, [line_of(ANSWER), line_of(changed(ANSWER, model="qwen3-8b", device="a100"))])
    assert [row.model for row in read_field(data)] == ["llama-2-7b", "qwen3-8b"]
    (row,) = compare_field(data, ("A100", "q4_0", "qwen3"))
    assert row.forecast is not None
    with pytest.raises(BadValue, match="no measurement of h100 fp8"):
        compare_field(data, ("h100", "fp8"))


def test_a_bad_table_is_named(tmp_path):
    data = write_table(tmp_path, [{**line_of(ANSWER), "measured": "fast"}])
    with pytest.raises(BadFile, match=r"measured_2026_11.csv, line 2: .*measured"):
        read_field(data)
    (data / "field" / "measured_2026_11.csv").write_text("source,kind\n")
    with pytest.raises(BadFile, match="no column command, config, device"):
        read_field(data)
    (data / "field" / "measured_2026_11.csv").unlink()
    with pytest.raises(BadFile, match="no table field/measured"):
        read_field(data)


def test_the_page_groups_errors_and_names_what_has_no_forecast():
    rows = [
        changed(ANSWER, forecast=Interval(200.0, 150.0, 250.0)),
        changed(ANSWER, kind="serving", reason="a bound, not a forecast"),
    ]
    page = field_page(rows)
    assert page.title == "Published measurements: 1 forecasts of 2 questions"
    by_kind = {row["kind"]: row for row in page.tables[0].rows}
    assert by_kind["llama.cpp answer"]["bias"] == pytest.approx(0.25)
    assert by_kind["serving"] == {"kind": "serving", "points": 0, "unanswered": 1}


def test_the_command_prints_rows(tmp_path):
    data = write_table(tmp_path, [line_of(ANSWER)])
    said = CliRunner().invoke(main, ["field", "--data", str(data), "--format", "json"])
    assert said.exit_code == 0, said.output
    (row,) = json.loads(said.stdout)["rows"]
    assert row["measured"] == 160 and len(row["forecast"]) == 3
