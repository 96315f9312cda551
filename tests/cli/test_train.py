"""``paleo-lite train`` on several devices, from outside.

Tests: reporting/scale.py, distributed/request.py, distributed/run.py, distributed/table.py.
"""

from __future__ import annotations

import json
import re
import shlex

import pytest
from click.testing import CliRunner

from asked import scaling
from paleo_lite.cli import main
from paleo_lite.units import format_hours

K80 = ("train", "resnet50", "--gpu", "k80-die", "--link", "ethernet20")
DOCUMENTED = [
    "workers", "batch_size", "compute_s", "communication_s", "exposed_s", "update_s", "time_s", "throughput_per_s",
    "speedup", "efficiency", "memory_bytes", "cost_usd",
]  # fmt: skip
"""From the command's specification."""


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def answer(*arguments):
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_json(scaling):
    batch = ("--batch-size", "32") if scaling == "weak" else ("--global-batch-size", "4096")
    found = answer(*K80, "--workers", "1,2,4,...,128", *batch)
    assert [row["workers"] for row in found["rows"]] == [1, 2, 4, 8, 16, 32, 64, 128]
    batches = [32 * 2**n for n in range(8)] if scaling == "weak" else [32 * 128] * 8
    assert [row["batch_size"] for row in found["rows"]] == batches
    for row in found["rows"]:
        assert list(row)[: len(DOCUMENTED)] == DOCUMENTED
        assert row["time_s"] == pytest.approx(row["compute_s"] + row["exposed_s"] + row["update_s"])
        assert row["cost_usd"] is None and row["interval"][0] < row["time_s"] < row["interval"][1]
    assert found["rows"][0]["communication_s"] == 0


def test_hours_and_cost():
    (row,) = answer(*K80, "--workers", "8", "--samples", "1.28M", "--epochs", "90", "--price", "0.9 USD/h")["rows"]
    assert row["hours"] == pytest.approx(1.28e6 * 90 / row["throughput_per_s"] / 3600)
    assert row["cost_usd"] == pytest.approx(row["hours"] * 8 * 0.9)


def test_a_topology_names_device_and_workers():
    found = answer("train", "resnet50", "--topology", "2x k40m @ pcie3, 16 nodes @ infiniband-fdr")
    assert found["gpu"] == "k40m" and [row["workers"] for row in found["rows"]] == [32]


def test_advice():
    found = answer("train", "vgg16", "--gpu", "p100-sxm2", "--link", "nvlink1-x4", "--workers", "8", "--advise", "time")
    assert found["best"] == found["rows"][0]["strategy"] and found["runner_up"] == found["rows"][1]["strategy"]
    assert found["best"] in found["why"] and len(found["rows"]) == 8


@pytest.mark.parametrize(("batch_size", "is_shown"), [("4096", False), ("32", True)])
def test_what_does_not_fit_has_no_speed_up(batch_size: str, is_shown: bool) -> None:
    """A speed-up over one worker that cannot run either is none of the headline, nor of the table."""
    shown = run("train", "vgg16", "--gpu", "k80-die", "--link", "ethernet10", "--workers", "2,4", "-b", batch_size)
    assert ("speed-up" in shown.output) == is_shown and ("does not fit into memory" in shown.output) != is_shown


def test_advice_says_what_asks_for_the_best_row_alone() -> None:
    asked = ("resnet18", "--gpu", "a100-sxm-80gb", "--link", "ethernet10", "--workers", "2", "--batch-size", "1")
    found = answer("train", *asked, "--advise")
    (row,) = answer(*shlex.split(found["command"])[1:])["rows"]
    for figure in ("strategy", "collective", "time_s", "interval", "memory_bytes"):
        assert row[figure] == found["rows"][0][figure]


def test_the_first_line_of_advice_says_what_the_run_takes() -> None:
    asked = ("train", "resnet18", "--gpu", "a100-sxm-80gb", "--workers", "8", "--samples", "1.28e6", "--epochs", "90")
    (best, *_) = answer(*asked, "--advise")["rows"]
    first_line = CliRunner().invoke(main, [*asked, "--advise"]).stdout.splitlines()[0]
    assert f"; the run takes {format_hours(best['hours'])} and costs " in first_line
    assert best["hours"] == pytest.approx(90 * 1.28e6 / best["throughput_per_s"] / 3600)


@pytest.mark.spread(2)
@pytest.mark.slow
@pytest.mark.parametrize("style", ["table", "markdown", "csv"])
@pytest.mark.parametrize("width", ["80", "120"])
def test_pages(style, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    for more in (("--workers", "1,2,4"), ("--workers", "4", "--advise", "time")):
        result = run(*K80, *more, "--format", style, "--samples", "1M")
        assert result.exit_code == 0, result.output
        if style == "table":
            table = result.stdout.split("limited by")[1].split("not shown")[0]
            assert max(map(len, table.splitlines())) <= int(width)


def test_paleo_s_answer_comes_in_the_same_columns():
    asked = ("--gpu", "TITAN_X", "--link", "ethernet20", "--workers", "1,2", "--time-model", "paleo")
    found = answer("train", "paleo_alex_v2", *asked)
    assert all(list(row)[: len(DOCUMENTED)] == DOCUMENTED for row in found["rows"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--workers", "0"), "`--workers` must be an integer >= 1 (got 0)"),
        (("--workers", "8", "--global-batch-size", "4"), "must be >= 8, one sample per worker"),
        (
            ("--workers", "3", "--global-batch-size", "100"),
            "divisible by the 3 workers: give `--global-batch-size 99` or 102 (got 100)",
        ),
        (
            ("--workers", "2,4", "--advise", "time"),
            "`--advise` needs a single number of workers, such as `--workers 4` (got 2, 4)",
        ),
        (
            ("--workers", "2", "--topology", "2x k40m @ pcie3"),
            "give only one of `--link` and `--platform`",
        ),
        (("--workers", "2", "--epochs", "3"), "give `--samples 52k`"),
        (("--workers", "2", "--communication", "bucket=0"), "bucket: the value must be > 0"),
        (("--workers", "2", "--time-model", "paleo", "--advise", "time"), "PALEO has no `--advise`"),
        (("--workers", "2", "--time-model", "paleo", "--precision", "fp16"), "PALEO has no `--precision`"),
        (("--workers", "2", "--time-model", "paleo", "--optimizer", "adam"), "PALEO has no `--optimizer`"),
        (("--workers", "2", "--time-model", "paleo", "--power-limit", "100W"), "PALEO has no `--power-limit`"),
        (("--workers", "2", "--time-model", "paleo", "--site", "pue=1.2"), "PALEO has no `--site`"),
        (
            ("--workers", "2", "--time-model", "paleo", "--communication", "overlap=no"),
            "PALEO has no `--communication overlap`",
        ),
        ((), "options of several devices need their number: give `--workers`"),
        (
            ("--workers", "2", "--schedule", "micro-batches=4"),
            "`--schedule micro-batches` is for `--strategy pipeline-gpipe` and `pipeline-1f1b`, not data: leave it out",
        ),
    ],
)
def test_wrong_options_are_refused(arguments, says):
    result = run(*K80, *arguments)
    assert result.exit_code == 2 and says in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gpu", "k40m", "--workers", "2"), "need a link, and no usual computer of Tesla K40m is on record: give"),
        (("--gpu", "k40m", "--workers", "2", "--link", "nonsense"), "no link is called 'nonsense'"),
        (("--gpu", "k40m", "--workers", "2", "--link", "0 GB/s"), "> 0 (got"),
        (("--topology", "two GPUs somewhere @ pcie3"), "two GPUs somewhere"),
        (("--topology", "2x k40m @ pcie3", "--workers", "4"), "`--workers` must be <= 2"),
        (("--topology", "2x k40m @ pcie3, 16 nodes @ infiniband", "--workers", "3"), "must be a multiple of 2"),
        (("--gpu", "rtx4090", "--workers", "4", "--sharding", "zero-3"), "'4x rtx4090 @ pcie4-x16'"),
        (("--topology", "2x k40m @ pcie3", "--gpu", "k80-die"), "must be k40m, the device of the topology"),
        (("--topology", "2x @ pcie3"), "give `--gpu`"),
    ],
)  # fmt: skip
def test_incomplete_machines_are_refused(arguments, says):
    result = run("train", "resnet50", *arguments)
    assert result.exit_code == 2 and says in result.stderr and "Traceback" not in result.output


def test_ranked_strategies_are_cut_and_show_what_ranks_them():
    asked = ("train", "vgg16", "--gpu", "p100-sxm2", "--link", "nvlink1-x4", "--workers", "4", "--advise")
    by_time, by_energy = (run(*asked, by, "--top", "2").stdout for by in ("time", "joules"))
    assert "Strategies, the best 2 of " in by_time
    assert "kWh per million" in by_time.partition("not shown")[2]
    assert "kWh per" in by_energy.partition("Strategies, the best 2 of ")[2].partition("not shown")[0]


def test_the_strategy_of_least_energy_says_what_it_saves_and_takes():
    """Against the strategy that advice on time recommends, both in the table."""
    asked = ("train", "vgg16", "--gpu", "p100-sxm2", "--link", "nvlink1-x4", "--workers", "4", "--advise")
    usual, found = answer(*asked, "time")["rows"][0], answer(*asked, "joules")
    best = found["rows"][0]
    assert best["strategy"] != usual["strategy"]
    joules = [row["kwh_per_million"] for row in (best, usual)]
    says = re.search(r"([0-9.]+)% less than (.*), which takes ([0-9.]+)% (more|less) time", found["why"])
    assert says is not None and says[2] == usual["strategy"]
    assert float(says[1]) / 100 == pytest.approx(1 - joules[0] / joules[1], abs=6e-4)
    longer = usual["time_s"] / best["time_s"] - 1
    assert (float(says[3]) / 100, says[4]) == (pytest.approx(abs(longer), abs=6e-4), "more" if longer > 0 else "less")


def test_message_gives_the_largest_batch_that_fits():
    def asked(batch_size):
        table = scaling("vgg16", gpu="k80-die", link="ethernet20", workers=[2], batch_size=batch_size)
        return table[0].fits, [note for note in table.notes if "does not fit" in note]

    fits, (note,) = asked(4096)
    assert not fits and note.startswith("a batch of 4096 per worker does not fit into ")
    largest = int(note.rpartition("the largest batch that fits is ")[2])
    assert asked(largest) == (True, []) and asked(largest + 1)[0] is False


def test_python_face():
    table = scaling("alexnet", gpu="k80-die", link="ethernet20", workers=[1, 4])
    assert len(table) == 2 and table[1].workers == 4 and [row.workers for row in table] == [1, 4]


def test_a_strategy_that_divides_no_blocks_names_the_option_that_does():
    words = ("train", "gpt2", "--topology", "2x v100-sxm2 @ nvlink2-x6", "--batch-size", "32")
    refused = run(*words, "--strategy", "tensor")
    assert refused.exit_code == 2
    assert "gpt2 has no column-parallel and row-parallel pair of layers: use `--tensor`" in refused.output
    assert run(*words, "--tensor", "2").exit_code == 0


def test_micro_batches_of_3d_parallelism_are_set_by_their_size():
    result = run(
        "train", "llama-3-8b", "--platform", "dgx-h100", "--workers", "8", "--pipeline", "2", "--precision", "bf16",
        "--schedule", "micro-batches=4",
    )  # fmt: skip
    assert result.exit_code == 2 and "`--micro-batch` sets the samples of each" in result.stderr


def test_efficiencies_above_100_percent_have_a_reason():
    """A step of eight devices decodes eight times the sequences, and reads each weight once for all of them."""
    asked = {"gpu": "h100-sxm", "link": "nvlink4-x18", "workers": "1,8", "precision": "bf16", "phase": "decode"}
    weak = scaling("llama-3-8b", **asked, batch_size=8, scaling="weak").document()
    assert any("efficiencies above 100%: in weak scaling" in note for note in weak.notes)
    words = ("llama-3-8b", "--gpu", "h100-sxm", "--link", "nvlink4-x18", "--tensor", "1,8", "--precision", "bf16")
    strong = run("predict", *words, "--phase", "decode", "--batch-size", "8")
    assert strong.exit_code == 0 and "above 100%" not in strong.stdout


def test_a_power_limit_is_noted():
    result = run(
        "train",
        "resnet50",
        "--gpu",
        "a100-sxm-80gb",
        "--link",
        "nvlink3-x12",
        "--workers",
        "2",
        "--power-limit",
        "200W",
    )
    assert "note: the power limit 200 W leaves" in result.stdout
