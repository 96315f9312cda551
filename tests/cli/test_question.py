"""Rows of many combinations, and the best of them, as they are typed.

Tests: cli/best.py, cli/question.py, reporting/sweep.py.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from paleo_lite.cli import main

pytest.importorskip("pyarrow")


def run(*arguments: str, code: int = 0, width: str = "120"):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": width})
    assert result.exit_code == code, result.output
    return result.output


ASKED = ("predict", "alexnet,ResNet-50", "--gpu", "k80-die,Tesla K40m", "--batch-size", "1:64:x2")


def test_rows_then_best(tmp_path) -> None:
    path = tmp_path / "rows.parquet"
    out = json.loads(run(*ASKED, "-o", path, "--format", "json"))
    assert out.pop("seconds") > 0
    assert out == {"output": str(path), "rows": 28, "feasible": 28, "chunks": 1, "resumed": 0}
    rows = json.loads(
        run("best", path, "--maximise", "throughput", "--where", "network = resnet50", "--format", "json")
    )
    assert rows["objective"] == "highest samples per second" and rows["fitting"] == 14 and len(rows["rows"]) == 10
    assert {row["network"] for row in rows["rows"]} == {"resnet50"}
    for width in ("80", "120"):
        page = run("best", path, "--pareto", "time,cost", width=width)
        assert "Pareto front: low hours, low cost of 1 M samples" in page
        lines = [line for line in page.splitlines() if not line.startswith("note: ")]
        assert max(map(len, lines)) <= int(width)
    assert "28 combinations" in run(*ASKED, "-o", path, "--force")


def test_the_best_is_an_output_of_the_question(tmp_path) -> None:
    """The same rows as from the file, whichever way the column is better."""
    path = tmp_path / "rows.csv"
    for column, direction in (("throughput", "--maximise"), ("cost", "--minimise")):
        asked = json.loads(run(*ASKED, "--best", column, "--where", "batch_size > 2", "--format", "json"))
        run(*ASKED, "-o", path, "--force")
        from_file = json.loads(run("best", path, direction, column, "--where", "batch_size > 2", "--format", "json"))
        assert [row["time_s"] for row in asked["rows"]] == pytest.approx([row["time_s"] for row in from_file["rows"]])
    front = json.loads(run(*ASKED, "--pareto", "time_s,cost", "-o", path, "--force", "--format", "json"))
    assert front["objective"] == "Pareto front: low step time, low cost of 1 M samples" and path.is_file()
    energy = json.loads(run(*ASKED, "--site", "carbon-intensity=400", "--best", "co2_g", "--format", "json"))
    best = energy["rows"][0]
    assert best["co2_g"] == pytest.approx(best["kwh"] * 400)


def test_a_price_that_is_given(tmp_path) -> None:
    """A step of 1 sample takes t seconds: a million take t * 1e6 / 3600 hours, at 2 USD each."""
    (row,) = json.loads(
        run("predict", "alexnet", "--gpu", "k40m", "--price", "2 USD/h", "--best", "cost", "--format", "json")
    )["rows"]
    assert row["hours"] == pytest.approx(row["time_s"] * 1e6 / 3600)
    assert row["cost_usd"] == pytest.approx(row["hours"] * 2)


@pytest.mark.thorough
def test_too_large_sweep_is_an_error(tmp_path) -> None:
    """Ten networks on all devices in a hundred thousand batch sizes: counted by hand below."""
    networks = "alexnet,vgg11,vgg13,vgg16,vgg19,resnet18,resnet34,resnet50,squeezenet1_0,squeezenet1_1"
    huge = ("predict", networks, "--gpu", "all", "--precision", "fp32,fp16,bf16", "--phase",
            "inference,training,forward", "--batch-size", "1:100000", "-o", tmp_path / "huge.parquet")  # fmt: skip
    from paleo_lite.machines import list_devices

    devices = [device for device in list_devices() if device.parts is None]  # boards are there as their devices
    size = 10 * len(devices) * 3 * 3 * 100_000
    assert size > 10**9
    out = run(*huge, code=2)
    assert f"the sweep has {size:,} combinations" in out and "--yes" in out and not list(tmp_path.iterdir())
    assert json.loads(run(*huge, "--dry-run", "--format", "json"))["rows"] == size
    assert "28 combinations" in run(*ASKED, "-o", tmp_path / "small.parquet", "--dry-run", width="80")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "k81"), "no GPU is called 'k81'"),
        (("--batch-size", "0"), "`--batch-size` must be an integer >= 1 (got 0)"),
        (("--price", "free"), "must be USD per hour, such as '2.50 USD/h', or a cloud, such as"),
        (("--price", "-2"), "must be > 0"),
        (("--best", "weather"), "no column is called 'weather'"),
        (("--best", "cost", "--pareto", "cost,time_s"), "give only one of `--best`, by one column, and `--pareto`"),
        (("--best", "cost", "--where", "batch_size >> 2"), "syntax error"),
        (("--best", "cost", "--site", "pue=0.5"), "`--site pue` must be a number between 1 and 10"),
        (("--best", "cost", "--site", "wind=3"), "no setting of `--site` is called 'wind'"),
        (("--report", "{folder}/a.html"), "`--report` shows answers, not the rows of a file"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, arguments, message) -> None:
    arguments = [word.format(folder=tmp_path) for word in arguments]
    out = run(*ASKED, *arguments, "-o", tmp_path / "rows.parquet", code=2)
    assert message in out and len(out.strip().splitlines()) == 1
    if "best" not in arguments[0]:
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("--jobs", "2"), ("--yes",), ("--scheduler", "tcp://a:1")])
def test_options_of_rows_need_rows(words, tmp_path) -> None:
    assert "is for rows of many combinations: give `-o FILE`, `--best` or `--pareto` as well" in run(
        *ASKED, *words, code=2
    )
    assert "give `--best COLUMN` or `--pareto COLUMNS` as well" in run(*ASKED, "--where", "time_s < 1", code=2)
    refused = run(*ASKED, "-o", tmp_path / "rows.csv", "--plot", tmp_path / "rows.png", code=2)
    assert "`--plot` draws answers side by side" in refused and not (tmp_path / "rows.csv").exists()


def test_an_output_that_exists(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.touch()
    assert "already exists: choose another name, or `--force` to replace it" in run(*ASKED, "-o", path, code=2)


def test_a_front_or_a_ranking_is_drawn(tmp_path) -> None:
    pytest.importorskip("altair")
    run(*ASKED, "--pareto", "time_s,cost", "--plot", tmp_path / "front.svg")
    assert "Pareto front" in (tmp_path / "front.svg").read_text("utf-8")
    run(*ASKED, "--best", "time_s", "--plot", tmp_path / "ranking.svg")
    assert "is better" in (tmp_path / "ranking.svg").read_text("utf-8")


def test_columns_of_a_foreign_file_are_no_headings(tmp_path) -> None:
    """A varied option is a column; a name that no option has, such as one with control letters, is not printed."""
    path = tmp_path / "rows.csv"
    rows = ["network,gpu,time_s,reason,recompute,\x1b[31m", "vgg16,t4,1,,full,1", "vgg16,t4,2,,none,2"]
    path.write_text("\n".join(rows) + "\n")
    page = run("best", path, "--minimise", "time_s")
    assert "recompute" in page and "full" in page and "\x1b" not in page and "[31m" not in page


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("column", "heading"),
    [
        ("energy_j", "energy"), ("latency", "time"), ("memory", "memory"), ("exposed", "comm."), ("high_s", "(90%)"),
        ("batch_size_per_worker", "worker"),
    ],
)  # fmt: skip
def test_what_is_ranked_is_shown_at_any_width(tmp_path, column, heading) -> None:
    """Of four batch sizes and two devices, whatever else is left out."""
    path = tmp_path / "rows.csv"
    run(*ASKED[:2], "--gpu", "k80-die,k40m", "--batch-size", "1,2", "-o", path)
    page = run("best", path, "--minimise", column, width="60")
    shown, _, left_out = page.partition("not shown at this width")
    table = shown.partition("\n\n")[2]
    assert left_out and heading in table and max(map(len, table.splitlines())) <= 60


def test_the_amount_of_what_is_ranked_is_stated(tmp_path) -> None:
    """A step is shortest with the smallest batch; time, energy and cost are those of the run."""
    path = tmp_path / "rows.csv"
    run("train", "alexnet", "--gpu", "v100-sxm2", "--batch-size", "1,64", "--samples", "52k", "-o", path)
    for word, name in (("time", "hours"), ("energy", "energy"), ("cost", "cost")):
        found = json.loads(run("best", path, "--minimise", word, "--format", "json"))
        assert found["objective"] == f"lowest {name} of 52 k samples" and found["rows"][0]["batch_size"] == 64
    found = json.loads(run("best", path, "--minimise", "latency", "--format", "json"))
    assert found["objective"] == "lowest step time" and found["rows"][0]["batch_size"] == 1


def test_rows_over_the_samples_of_a_prompt() -> None:
    page = run("rl", "qwen3-8b", "--gpu", "h100-sxm", "--workers", "8", "--samples-per-prompt", "8,16", "--dry-run")
    assert "2 combinations" in page
