"""The knee of a front: by hand, for power limits, and in the chart.

Tests: sweeps/front.py.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.sweeps.front import find_knee


def test_the_knee_is_furthest_from_the_line_between_the_ends() -> None:
    """Of 1, 10, 100 against 100, 2, 1 the middle one, and none on a hyperbola, whose logarithms are a line."""
    assert find_knee([1, 10, 100], [100, 2, 1]) == 1
    assert find_knee([1, 2, 10, 100], [100, 10, 5, 1]) == 1
    times = np.geomspace(1, 2, 9)
    knee = find_knee(list(times), list(1 + 1 / times**8))
    assert knee is not None and 0 < knee < 8
    assert find_knee([1, 2], [2, 1]) is None and find_knee([0, 1, 2], [3, 2, 1]) is None
    assert find_knee([1, 10, 100], [100, 50, 1]) is None


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("limits") / "limits.csv"
    limits = "120W,150W,180W,210W,240W,270W,300W"
    question = pl.Predict(
        "resnet50", gpu="v100-sxm2", precision="fp32", phase="training", batch_size=128, power_limit=limits
    )
    pl.sweep(question, path, jobs=1)
    return path


def test_a_sweep_over_power_limits_has_a_knee(limits, tmp_path) -> None:
    best = pl.best(limits, pareto="time_s,energy_j")
    assert best.knee is not None and best.knee in best.rows
    assert 120 < best.knee["power_limit_w"] < 300
    assert best.knee["energy_j"] < best.rows[0]["energy_j"] and best.knee["time_s"] > best.rows[0]["time_s"]
    words = ["best", str(limits), "--pareto", "time_s,energy_j"]
    assert "knee" in CliRunner().invoke(main, words).output
    assert json.loads(CliRunner().invoke(main, [*words, "--format", "json"]).output)["knee"] == best.knee
    pytest.importorskip("altair")
    picture = tmp_path / "front.svg"
    assert CliRunner().invoke(main, [*words, "--plot", str(picture)]).exit_code == 0
    assert "ring: the knee" in picture.read_text("utf-8")
    lowest = min(best.rows, key=lambda row: row["energy_j"])["power_limit_w"]
    assert f"and {lowest:g} W has the lowest energy" in picture.read_text("utf-8")


@pytest.mark.thorough
def test_the_knee_of_servers(tmp_path) -> None:
    path = tmp_path / "servers.csv"
    asked = {"precision": "bf16", "concurrency": 4, "input_tokens": 64, "output_tokens": 64, "num_requests": 8}
    limits = "250W,300W,350W,400W,450W,500W,600W,700W"
    pl.sweep(pl.Serve("llama-3.1-8b", gpu="h100-sxm", power_limit=limits, **asked), path, jobs=1)
    best = pl.best(path, pareto="latency_p99_s,joules_per_million_output_tokens")
    assert best.knee is not None
    words = ["best", str(path), "--pareto", "latency_p99_s,joules_per_million_output_tokens"]
    assert re.search(rf"knee +{best.knee['power_limit_w']:g} W", CliRunner().invoke(main, words).output)


def test_ranking_by_joules_is_minimising_the_energy(limits) -> None:
    assert pl.best(limits, by="joules").rows == pl.best(limits, minimise="kwh").rows
    with pytest.raises(pl.PaleoError, match="no ranking is called 'weather'"):
        pl.best(limits, by="weather")
