"""Several predictions in one table: shares of the bounds computed by hand, and rows that equal the predictions."""

from __future__ import annotations

import csv
import io

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.machines import find_device
from paleo_lite.machines.prices import prices_of
from paleo_lite.reporting.side_by_side import comparison_table, describe_bounds, side_by_side_page, time_shares_by_bound
from paleo_lite.reporting.terminal import fit_columns
from paleo_lite.sweeps.comparison import Comparison


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
    assert time_shares_by_bound(prediction) == {"compute": 0.6, "memory": 0.3, "unknown": 0.1}
    assert describe_bounds(prediction) == ("60% of the time compute-bound, 30% memory-bound, 10% with unknown bound")
    with_rest = with_terms(prediction, overhead_s=10.0)
    assert time_shares_by_bound(with_rest)["overhead"] == 0.5
    sentence = describe_bounds(with_rest)
    assert sentence == "30% of the time compute-bound, 15% memory-bound, 5% with unknown bound; 50% overhead"


def test_a_share_that_rounds_to_0_reads_under_1_percent(prediction):
    assert describe_bounds(with_terms(prediction, overhead_s=0.01)).endswith("; under 1% overhead")


def test_layers_without_time_have_no_bound(prediction):
    nothing = with_terms(prediction, layers_s=np.zeros((1, 3)))
    assert describe_bounds(nothing) == "no layer takes time"
    assert comparison_table(Comparison("predict", [nothing])).rows[0]["speedup"] is None
    only_rest = with_terms(nothing, overhead_s=1.0)
    assert describe_bounds(only_rest) == "100% overhead"


def table_of(networks, gpus, **question):
    return comparison_table(pl.predict(networks, gpu=gpus, **question))


def test_one_row_per_device():
    predictions = [pl.predict("alexnet", gpu=gpu, batch_size=8) for gpu in ("v100-sxm2", "k80-die")]
    sheet = table_of(["alexnet"], ["v100-sxm2", "k80-die"], batch_size=[8])
    assert [row["gpu"] for row in sheet.rows] == ["v100-sxm2", "k80-die"]
    assert sheet.rows[1]["speedup"] == pytest.approx(predictions[0].time_s / predictions[1].time_s)
    assert [(row["low_s"], row["high_s"]) for row in sheet.rows] == [each.interval for each in predictions]
    assert sheet.rows[1]["speedup_low"] < sheet.rows[1]["speedup"] < sheet.rows[1]["speedup_high"]
    assert (sheet.rows[0]["speedup"], sheet.rows[0]["speedup_low"]) == (1.0, None)
    assert [column.key for column in sheet.columns][:2] == ["gpu", "time_s"]  # common settings have no column


def test_both_ends_of_an_interval_are_shown_or_neither():
    table = table_of(["resnet50"], ["t4", "v100-sxm2"], batch_size=[8])
    shown = {tuple(layout.column.key for layout in fit_columns(table, width)) for width in range(30, 200)}
    for keys in shown:
        assert ("low_s" in keys) == ("high_s" in keys)
        assert ("speedup_low" in keys) == ("speedup_high" in keys)
    assert any(
        "low_s" in keys and "memory_bytes" not in keys for keys in shown
    )  # intervals are dropped later than memory


def test_settings_that_differ_have_a_column():
    keys = [column.key for column in table_of(["alexnet"], ["t4"], batch_size=[1, 2]).columns]
    assert keys[0] == "batch_size" and "gpu" not in keys
    asked = {"precision": ["fp32", "fp16"], "phase": ["inference", "training"], "batch_size": [2, 4]}
    sheet = table_of(["alexnet", "vgg11"], ["t4", "v100-sxm2"], **asked)
    assert len(sheet.rows) == 32
    assert [column.key for column in sheet.columns][:5] == ["network", "gpu", "precision", "phase", "batch_size"]


def test_bounds_are_not_compared_with_forecasts():
    found = pl.predict("alexnet", gpu=["arc-b580", "t4", "v100-sxm2"])
    sheet = comparison_table(found)
    bound, first, other = sheet.rows
    assert bound["bound_s"] == pl.predict("alexnet", gpu="arc-b580").time_s
    assert {bound[key] for key in ("time_s", "throughput_per_s", "usd_per_million", "speedup")} == {None}
    assert found.baseline.device.id == "t4" and (first["speedup"], other["speedup_low"] is None) == (1.0, False)
    facts = dict(side_by_side_page(found).facts)
    assert "rows without a time" in facts["bounds"] and "alexnet on t4" in facts["speed-up"]
    assert any(note.startswith("arc-b580: a bound, not a forecast") for note in side_by_side_page(found).notes)


def test_the_baseline_of_speed_ups_fits_into_its_memory():
    # FLUX.1-dev takes more than the 24 GB of an RTX 4090: its row has no time that others could be faster than.
    found = pl.diffusion("flux.1-dev", gpu=["rtx4090", "l40s", "h100-sxm"])
    assert isinstance(found, Comparison)
    assert found.baseline.device.id == "l40s"
    assert [row["speedup"] is None for row in found.rows] == [True, False, False]
    assert found.rows[1]["speedup"] == 1.0


def test_bounds_are_compared_with_each_other():
    """By hand: peaks of 8.1 and 15.7 TFLOP/s (data sheets of T4 and V100 SXM2)."""
    sheet = comparison_table(pl.predict(gpu=["t4", "v100-sxm2"], flops="10G"))
    assert sheet.rows[1]["speedup"] == pytest.approx(15.7 / 8.1, rel=1e-2)
    assert sheet.rows[1]["speedup_low"] is None
    assert "memory_bytes" not in {column.key for column in sheet.columns}


def test_the_document_lists_predictions_that_were_left_out():
    page = side_by_side_page(pl.predict("alexnet", gpu=["k40m", "t4"], precision=["fp32", "fp16"]))
    assert page.title == "3 predictions side by side: alexnet, inference, batch 1"
    assert next(iter(page.notes)).startswith("left out: alexnet on k40m in fp16: Tesla K40m has no fp16 peak")
    out = io.StringIO()
    page.write_csv(out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [row["gpu"] for row in rows] == ["k40m", "t4", "t4"] and all(row["version"] for row in rows)


def test_decoding_is_compared_in_tokens():
    asked = {"gpu": ["h100-sxm", "l4"], "precision": "bf16"}
    decode = pl.predict("llama-3-8b", phase=["decode"], **asked).document()
    assert "tokens\nper s" in [column.title for column in decode.tables[0].columns]
    assert dict(decode.facts)["speed-up"].startswith("ratio of tokens/s to llama-3-8b on h100-sxm")
    both = pl.predict("llama-3-8b", phase=["decode", "prefill"], **asked).document()
    assert "samples\nper s" in [column.title for column in both.tables[0].columns]


def test_samples_of_different_lengths_are_compared_in_tokens():
    compared = pl.predict("llama-3-8b", gpu="h100-sxm", phase="prefill", sequence_length=[128, 8192])
    short, long = compared.answers
    page = compared.document()
    (table,) = page.tables
    titles = {column.key: column.title for column in table.columns}
    assert titles["throughput_per_s"] == "tokens\nper s" and "speedup" not in titles
    assert [row["throughput_per_s"] for row in table.rows] == [short.tokens_per_s, long.tokens_per_s]
    costs = [answer.usd_per_million / tokens for answer, tokens in ((short, 128), (long, 8192))]
    assert [row["usd_per_million"] for row in table.rows] == pytest.approx(costs)
    facts = dict(page.facts)
    fastest = max((short.tokens_per_s, 128), (long.tokens_per_s, 8192))
    assert facts["fastest"].startswith(f"sequence length {fastest[1]}: ") and facts["fastest"].endswith(" tokens/s")
    assert facts["cheapest"].endswith("per million tokens") and "speed-up" not in facts


def test_decoding_on_groups_of_devices_is_compared_in_tokens():
    page = pl.predict("llama-3-8b", gpu="h100-sxm", phase="decode", tensor=[2, 4], batch_size=[1, 64]).document()
    keys = {column.key: column.heading for column in page.tables[0].columns}
    assert "throughput_per_s" not in keys and keys["usd_per_million"] == "USD per 1M tokens"
    facts = dict(page.facts)
    assert facts["fastest"].endswith(" tokens/s") and facts["cheapest"].endswith("per million tokens")
    assert "strategy" not in facts


def test_pictures_and_videos_are_not_ranked_together():
    page = pl.diffusion(["sdxl", "wan-2.1-1.3b"], gpu="h100-sxm").document()
    facts = dict(page.facts)
    assert "speedup" not in {column.key for column in page.tables[0].columns} and "speed-up" not in facts
    assert facts["ranking"] == "none: images and videos are different products"
    assert "fastest" not in facts and "cheapest" not in facts


def test_prices_of_each_cloud_are_named():
    compared = pl.predict("alexnet", gpu="h100-sxm", price=["aws", "gcp"])
    facts = dict(compared.document().facts)
    listed = {price.cloud: price.usd_per_h for price in prices_of(find_device("h100-sxm"))}
    for cloud in ("AWS", "Google Cloud"):
        assert f"h100-sxm {listed[cloud]:g} ({cloud})" in facts["USD per million"]


def test_rows_without_a_time_have_no_notes_on_its_range() -> None:
    """Below the data sheet begins the interval of a device whose memory is too small, and its row shows no time."""
    alone = pl.diffusion("wan-2.2-14b", gpu="rtx5090")
    assert not alone.fits and any("interval begins below" in note for note in alone.notes)
    notes = list(pl.diffusion("wan-2.2-14b", gpu=["h100-sxm", "rtx5090"]).document().notes)
    assert not any("the interval" in note for note in notes if "rtx5090" in note.partition(": ")[0])
    assert any("rtx5090: does not fit into memory" in note for note in notes)


def test_equally_good_answers_share_a_conclusion() -> None:
    """At a rate that both carry, servers of one device cost the same per token."""
    compared = pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=1, num_requests=10, kv_cache=["bf16", "fp8"])
    facts = dict(compared.document().facts)
    assert facts["cheapest"].startswith("kv cache bf16 and kv cache fp8: ")
