"""``sweep`` and ``best`` as they are typed.

Tests: cli/best.py, reporting/sweep.py.
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


SWEEP = ("sweep", "--network", "alexnet,ResNet-50", "--gpu", "k80-die,Tesla K40m", "--batch-size", "1:64:x2")


def test_sweep_then_best(tmp_path) -> None:
    path = tmp_path / "sweep.parquet"
    out = json.loads(run(*SWEEP, "-o", path, "--format", "json"))
    assert out.pop("seconds") > 0
    assert out == {"output": str(path), "rows": 28, "feasible": 28, "chunks": 1, "resumed": 0}
    rows = json.loads(
        run("best", path, "--maximise", "throughput", "--where", "network = resnet50", "--format", "json")
    )
    assert rows["objective"] == "highest samples per second" and rows["fitting"] == 14 and len(rows["rows"]) == 10
    assert {row["network"] for row in rows["rows"]} == {"resnet50"}
    for width in ("80", "120"):
        page = run("best", path, "--pareto", "time,cost", width=width)
        assert "Pareto front: low step time, low cost" in page
        assert max(map(len, page.splitlines())) <= int(width)
    assert "28 combinations" in run(*SWEEP, "-o", path, "--force")


def test_price_and_power_that_are_given(tmp_path) -> None:
    """A step of 1 sample takes t seconds: a million take t * 1e6 / 3600 hours, at 2 USD and 100 W each."""
    path = tmp_path / "sweep.parquet"
    run("sweep", "--network", "alexnet", "--gpu", "k40m", "--price", "2 USD/h", "--power", "100 W", "-o", path)
    (row,) = json.loads(run("best", path, "--minimise", "cost", "--format", "json"))["rows"]
    assert row["hours"] == pytest.approx(row["time_s"] * 1e6 / 3600)
    assert row["cost"] == pytest.approx(row["hours"] * 2)
    assert row["energy_j"] == pytest.approx(row["time_s"] * 1e6 * 100)


@pytest.mark.slow
def test_too_large_sweep_is_an_error(tmp_path) -> None:
    """20 networks by a million million: counted by hand below."""
    huge = ("sweep", "--network", "all", "--gpu", "all", "--precision", "all", "--phase", "all", "--batch-size",
            "1:100000", "--workers", "1:64", "--link", "pcie3-x16", "-o", tmp_path / "huge.parquet")  # fmt: skip
    from paleo_lite.architectures import network_names
    from paleo_lite.machines import list_devices

    devices = [device for device in list_devices() if device.parts is None]  # boards are there as their devices
    size = len(network_names()) * len(devices) * 8 * 5 * 100_000 * 64
    assert size > 10**12
    out = run(*huge, code=2)
    assert f"the sweep has {size:,} combinations" in out and "--yes" in out and not list(tmp_path.iterdir())
    assert json.loads(run(*huge, "--dry-run", "--format", "json"))["rows"] == size
    assert "28 combinations" in run(*SWEEP, "-o", tmp_path / "small.parquet", "--dry-run", width="80")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "k81"), "no GPU is called 'k81'"),
        (("--batch-size", "0"), "`--batch-size` must be an integer >= 1 (got 0)"),
        (("--workers", "1,2"), "give `--link`"),
        (("--link", "pcie3-x16"), "`--link` needs several workers: give `--workers`"),
        (("--samples", "0"), "`--samples` must be > 0"),
        (("--price", "free"), "'free' is not a quantity"),
        (("--network", "alexnet,AlexNet"), "duplicate networks: alexnet"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, arguments, message) -> None:
    out = run(*SWEEP, *arguments, "-o", tmp_path / "sweep.parquet", code=2)
    assert message in out and len(out.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_an_output_that_exists(tmp_path) -> None:
    path = tmp_path / "sweep.csv"
    path.touch()
    assert "already exists: choose another name, or `--force` to replace it" in run(*SWEEP, "-o", path, code=2)
