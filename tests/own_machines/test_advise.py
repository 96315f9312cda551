"""Rankings of formats and devices under llama.cpp, placement, watts and cost.

Tests: own_machines/advise.py, own_machines/placement.py, own_machines/energy.py, reporting/charts/local.py.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.api.local import advise_local, predict_local
from paleo_lite.cli import main
from paleo_lite.errors import BadValue, DoesNotFit
from paleo_lite.own_machines.question import LocalQuestion
from paleo_lite.timing.facility import make_facility


def run(*words: str) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    found = CliRunner().invoke(main, ["local", *words, "--engine", "llama.cpp"])
    return found.exit_code, found.output


def test_the_best_format_that_fits() -> None:
    """Every format that fits is larger than the next; 14 billion parameters fit into 12 GB in q5_k_m."""
    advice = advise_local("qwen3-14b", ["rtx3060"])
    whole = [row for row in advice.rows if row.is_whole]
    assert all(first.file_bytes > second.file_bytes for first, second in pairwise(whole))
    assert advice.rows[0] is whole[0] and advice.best_weights[0] == "q5_k_m"
    assert {row.weights for row in advice.rows if not row.is_whole} == {"q6_k", "q8_0", "f16"}


def test_devices_in_one_format() -> None:
    advice = advise_local("llama-3.1-70b", ["rtx3060", "rtx5090", "rtx3090"], LocalQuestion(gpus=2))
    assert [row.device for row in advice.rows] == ["GeForce RTX 5090", "GeForce RTX 3090", "GeForce RTX 3060"]
    assert [row.is_whole for row in advice.rows] == [True, True, False]
    assert {row.weights for row in advice.rows} == {"q4_k_m"}
    narrow = advise_local("llama-3.1-70b", ["rtx3060", "rtx5090", "rtx3090"], LocalQuestion(gpus=2, weights="iq3_xs"))
    assert {row.weights for row in narrow.rows} == {"iq3_xs"}
    assert narrow.best_weights == advice.best_weights


@pytest.mark.thorough
def test_devices_of_ones_own_machine() -> None:
    advice = advise_local("llama-3.1-8b", None, LocalQuestion(weights="q8_0"))
    names = {row.device for row in advice.rows}
    assert {"GeForce RTX 3060", "Apple M4", "Radeon RX 7900 XTX"} <= names
    assert not any(name.startswith(("H100", "A100", "Instinct")) for name in names)


def test_experts_on_the_host_are_faster_than_blocks() -> None:
    """All blocks with the experts of some on the host (``--n-cpu-moe``) beat fewer blocks with their experts."""
    own = predict_local("gpt-oss-120b", "rtx3060", LocalQuestion(weights="mxfp4_moe"))
    blocks = predict_local("gpt-oss-120b", "rtx3060", LocalQuestion(weights="mxfp4_moe", gpu_layers=5))
    assert own.gpu_blocks == 36 and 0 < own.cpu_expert_blocks < 36
    assert own.token_s < blocks.token_s
    assert own.weight_bytes + own.cache_bytes + own.buffer_bytes <= own.usable_bytes


def test_a_cache_on_the_host() -> None:
    own, host = (predict_local("llama-3.1-8b", "rtx3060", LocalQuestion(cpu_cache=flag)) for flag in (False, True))
    assert host.cache_bytes == 0 and host.host_bytes - own.host_bytes == own.cache_bytes
    assert host.token_s > own.token_s and host.largest_context == 131072


def test_the_next_device() -> None:
    found = predict_local("llama-3.1-70b", "rtx3090")
    assert "would hold all 80 blocks" in found.notes[-1]
    assert "would hold" not in predict_local("llama-3.1-8b", "rtx3090").notes[-1]


def test_memory_of_a_mac() -> None:
    """Two thirds of 16 GB; the record has the largest memory."""
    small = predict_local("llama-3.1-8b", "apple-m4", LocalQuestion(device_memory="16GB"))
    assert small.usable_bytes == pytest.approx(16 * 2**30 * 2 / 3)
    assert predict_local("llama-3.1-8b", "apple-m4").usable_bytes > small.usable_bytes


def test_a_mac_has_no_other_memory() -> None:
    """A processor that is named computes what Metal may not have, out of the same memory: 32 GiB of an M4."""
    with pytest.raises(DoesNotFit, match=r"which shares its memory with its processor, may use 22\.9 GB"):
        predict_local("llama-3.1-70b", "apple-m4")
    with pytest.raises(DoesNotFit, match=r"needs 44\.\d GB, and Apple M4 and its processor share 33\.9 GB"):
        predict_local("llama-3.1-70b", "apple-m4", LocalQuestion(cpu="apple-m4"))
    beside = predict_local("llama-3.1-70b", "apple-m4", LocalQuestion(cpu="apple-m4", weights="q2_k"))
    assert not beside.is_whole and beside.memory_bytes + beside.host_bytes < 33.9e9
    advice = advise_local("llama-3.1-8b", ["apple-m4"], LocalQuestion(device_memory="16GB"))
    assert advice.rows[0].weights == "q8_0" and all(row.is_whole for row in advice.rows)
    # 8.03e9 weights without the 0.53e9 of the table, 4096 tokens of 128 KiB and the logits of 512; two thirds of 16 GiB
    assert advice.notes[-1] == "left out, as too large: f16 on Apple M4 (15.8 of 11.5 GB)"


def test_a_ranking_says_what_comes_nearest_where_much_is_left_out() -> None:
    """243 GB of 405e9 weights in q4_k_m are more than any Mac has; three quarters of 192 GiB are the nearest."""
    notes = advise_local("llama-3.1-405b").notes
    (left_out,) = (note for note in notes if note.startswith("left out"))
    assert re.match(r"left out, as too large: \d+ devices, the nearest of them ", left_out)
    assert left_out.endswith("q4_k_m on Apple M2 Ultra (244.3 of 154.6 GB)")
    notes = advise_local("llama-3.1-405b", ["apple-m2-ultra"]).notes
    (left_out,) = (note for note in notes if note.startswith("left out"))
    assert re.match(r"left out, as too large: \d+ formats, the nearest of them \w+ on Apple M2 Ultra ", left_out)
    with pytest.raises(DoesNotFit, match=r"none of 10 fits, .* nearest: llama-3\.1-405b in iq2_xxs needs 109"):
        advise_local("llama-3.1-405b", ["m4-max"])


def test_a_host_has_no_more_memory_than_its_processor_takes() -> None:
    """A Ryzen 9 7950X usually takes 128 GB at most (its record), a Threadripper PRO 7995WX 2 TB."""
    usual, larger = (
        predict_local("llama-3.1-405b", "rtx4090", LocalQuestion(cpu=cpu)) for cpu in (None, "threadripper-pro-7995wx")
    )
    said = "and Ryzen 9 7950X usually takes at most 128 GB: name a processor that takes more with `--cpu`"
    assert usual.host_bytes > 200e9 and any(said in note for note in usual.notes)
    assert not any("the host must hold" in note for note in larger.notes)
    notes = advise_local("llama-3.1-405b", ["rtx4090"]).notes
    (note,) = (note for note in notes if "more than the 128 GB" in note)
    assert "q3_k_m" in note and "iq2_xxs" not in note


def test_a_memory_above_the_one_on_record_is_said() -> None:
    found = predict_local("llama-3.1-8b", "rtx4090", LocalQuestion(device_memory="2TB"))
    assert any("`--device-memory` states 2 TB: GeForce RTX 4090 has 24 GB on record" in note for note in found.notes)
    less = predict_local("llama-3.1-8b", "apple-m4", LocalQuestion(device_memory="16GB"))
    assert not any("on record" in note for note in less.notes)


def test_cost_is_energy_times_price() -> None:
    found = predict_local(
        "llama-3.1-8b", "rtx3060", LocalQuestion(facility=make_facility("0.30 USD/kWh", host_watts="60 W"))
    )
    assert found.energy is not None
    kwh = (found.energy.token_w + 60) * found.token_s * 1e6 / 3.6e6
    assert found.energy.kwh_per_million_tokens == pytest.approx(kwh)
    assert found.energy.usd_per_million_tokens == pytest.approx(0.3 * kwh)
    assert 170 * 0.3 < found.energy.token_w < 170


def test_a_ranking_has_memory_power_energy_and_cost_of_every_answer() -> None:
    facility = make_facility("0.30 USD/kWh")
    advice = advise_local("llama-3.1-8b", ["rtx3060", "rtx3090"], LocalQuestion(gpus=2, facility=facility))
    table = advice.document().tables[0]
    found, row = advice.rows[0], table.rows[0]
    assert found.energy is not None and found.energy.token_w == pytest.approx(2 * row["power_w"])
    assert row["energy_j"] == pytest.approx(found.energy.token_w * found.token_s)
    assert row["memory_bytes"] == found.memory_bytes
    headings = [column.heading for column in table.columns]
    assert headings[-4:] == ["memory", "power", "energy", "electricity USD per 1M"]


def test_two_devices_take_turns_in_power() -> None:
    one, two = (predict_local("llama-3-8b", "rtx3090", LocalQuestion(gpus=gpus)).energy for gpus in (1, 2))
    assert one is not None and two is not None
    assert one.token_w < two.token_w < 2 * one.token_w


def test_unknown_power() -> None:
    assert predict_local("llama-3.1-8b", "apple-m4").energy is None


def test_a_context_that_the_network_does_not_know() -> None:
    with pytest.raises(BadValue, match="knows 131072 positions; a context of 200000 is too long"):
        predict_local("llama-3.1-8b", "rtx3090", LocalQuestion(context=200000))


def test_command() -> None:
    code, output = run("qwen3-14b", "--gpu", "rtx3060", "--advise", "--format", "json")
    answer = json.loads(output)
    assert code == 0 and answer["by"] == "formats" and answer["rows"][0]["weights"] == "q5_k_m"
    code, output = run("qwen3-14b", "--gpu", "rtx3060,rtx4090", "--advise", "--top", "1")
    assert code == 0 and "GeForce RTX 4090" in output and "the best 1 of 2" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llama-3.1-8b", "--gpu", "rtx3060", "--batch-size", "8"), "no option is called `--batch-size`"),
        (("llama-3.1-8b", "--gpu", "rtx3060,rtx3090", "--weights", "q4_k_m,q8_0", "--advise"), "ranked in one format"),
        (("llama-3.1-8b",), "give the device with `--gpu`"),
        (("llama-3.1-8b", "--gpu", "apple-m4", "--device-memory", "16"), "must be at least 1 GB"),
        (("llama-3.1-8b", "--gpu", "rtx3060", "--advise", "--gpu-layers", "3"), "`--gpu-layers` is for one prediction"),
        (("llama-3.1-8b", "--gpu", "rtx3060", "--gpu-layers", "many"), "must be a number of layers or auto"),
        (("llama-3.1-8b", "--gpu", "rtx3060", "--workers", "0"), "`--workers` must be an integer >= 1"),
    ],
)
def test_impossible_options_are_refused(words: tuple[str, ...], message: str) -> None:
    code, output = run(*words)
    assert code != 0 and message in output


def test_several_devices_or_formats_are_ranked() -> None:
    code, output = run("llama-3.1-8b", "--gpu", "rtx3060,rtx4090", "--format", "json")
    assert code == 0 and json.loads(output)["by"] == "devices"
    code, output = run("llama-3.1-8b", "--gpu", "rtx3060", "--weights", "q4_k_m,q8_0", "--format", "json")
    assert code == 0 and {row["weights"] for row in json.loads(output)["rows"]} == {"q4_k_m", "q8_0"}


def test_chart_shows_the_rows() -> None:
    pytest.importorskip("altair")
    from paleo_lite.reporting.charts.local import local_chart

    advice = advise_local("llama-3.1-70b", ["rtx3090", "apple-m3-ultra"])
    spec = local_chart(advice).to_dict()
    [rows] = [panel["data"]["values"] for panel in (spec, *spec["hconcat"]) if "data" in panel][:1]
    assert [row["name"] for row in rows] == ["Apple M3 Ultra", "GeForce RTX 3090"]
    assert [row["answer"] for row in rows] == [row.tokens_per_s for row in advice.rows]
    assert [row["group"] for row in rows] == ["all on the device", "part on the host"]
    assert spec["title"]["text"] == "llama-3.1-70b in q4_k_m: Apple M3 Ultra is the fastest"


def test_networks_and_devices_stand_side_by_side():
    """A ranking is of devices or formats alone; of several networks every combination has a row."""
    compared = pl.local(["llama-3.2-1b", "qwen3-0.6b"], gpu=["rtx4090", "rtx3090"])
    alone = pl.local("qwen3-0.6b", gpu="rtx3090")
    assert [(row["network"], row["gpu"]) for row in compared.rows] == [
        ("llama-3.2-1b", "rtx4090"), ("llama-3.2-1b", "rtx3090"), ("qwen3-0.6b", "rtx4090"), ("qwen3-0.6b", "rtx3090"),
    ]  # fmt: skip
    assert compared.rows[-1]["tokens_per_s"] == pytest.approx(alone.tokens_per_s)
    with pytest.raises(BadValue, match="`--advise` ranks devices or formats for one question: give one value of "):
        pl.local("llama-3.2-1b", gpu="rtx4090", context=[1024, 2048], advise=True)


def test_devices_that_are_compared_are_not_the_cards_of_one_machine() -> None:
    asked = {workers: pl.local("llama-3.1-8b", gpu="rtx3090,rtx4060ti", workers=workers) for workers in (1, 2)}
    assert [any("2 devices of one kind" in note for note in answer.notes) for answer in asked.values()] == [False, True]
