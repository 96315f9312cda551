"""``paleo-lite scaled`` as people use it.

Tests: report/scaled.py.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from measured import DATA
from paleo_lite.cli import main

SURFBOARD = DATA / "surfboard"
NAME = "run_0_config_{}_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"


def run(*arguments, width=80):
    words = [str(argument) for argument in arguments]
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, words, prog_name="paleo-lite")


@pytest.fixture
def folder(tmp_path):
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    for nodes in (1, 8):
        columns = {"Kernel": ["k"], "Sil(ns)": [10], "FLOPs": [25 * 4.29e11], "Bytes": [25 * 1.44e10]}
        pq.write_table(pa.table(columns), profiles / NAME.format(nodes))
    (tmp_path / "durations.csv").write_text("nodes,batch_duration_s\n1,1.0\n8,0.5\n")
    return tmp_path


def test_json(folder):
    result = run(
        "scaled", folder / "profiles", "--gpu", "k40m", "--durations", folder / "durations.csv", "--format", "json"
    )
    answer = json.loads(result.stdout)
    first, second = answer["rows"]
    assert (first["nodes"], second["nodes"]) == (1, 8)
    # a tenth of the peak and a twentieth of the bandwidth in one second, twice that in half a second
    assert first["flops_efficiency"] == pytest.approx(0.1) and first["bandwidth_efficiency"] == pytest.approx(0.05)
    assert second["flops_efficiency"] == pytest.approx(0.2) and second["duration_from"] == "table"
    assert answer["groups"][0]["by"] == ["gradient_precision", "nodes"]
    assert any("under each other's names" in note for note in answer["notes"])


@pytest.mark.parametrize("width", [80, 120])
def test_table_says_that_names_were_swapped(folder, width):
    arguments = ["--gpu", "k40m", "--durations", folder / "durations.csv", "--group-by", "nodes"]
    shown = run("scaled", folder / "profiles", *arguments, width=width).stdout
    assert "10.000000" in shown and "5.000000" in shown and "Means by nodes" in shown
    assert "prints these two columns under each other's names" in shown


@pytest.mark.needs_data
def test_the_notebooks_first_row():
    profile = SURFBOARD / "pyprof_kernels" / NAME.format(1)
    durations = SURFBOARD / "derived" / "cartesius_batch_durations_recovered.csv"
    answer = json.loads(run("scaled", profile, "--gpu", "k40m", "--durations", durations, "--format", "json").stdout)
    # gpu_efficiency.ipynb, row 0: 15.714534 stands under "bandwidth" and is FLOPs, 17.460536 the other way round.
    assert 100 * answer["rows"][0]["flops_efficiency"] == pytest.approx(15.714534, abs=1.5e-6)
    assert 100 * answer["rows"][0]["bandwidth_efficiency"] == pytest.approx(17.460536, abs=1.5e-6)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{folder}/profiles", "--gpu", "k40m"], 2, "--durations"),
        (["{folder}/profiles", "--gpu", "k40m", "--durations", "{folder}/nothing.csv"], 2, "nothing.csv"),
        (["{folder}/nothing", "--gpu", "k40m", "--durations", "{folder}/durations.csv"], 2, "nothing"),
        (["{folder}/profiles", "--gpu", "k40m", "--durations", "{folder}/eight.csv"], 1, "no batch duration"),
        (["{folder}/profiles", "--gpu", "k40m", "--durations", "{folder}/wrong.csv"], 1, "wrong.csv"),
        (["{folder}/profiles", "--gpu", "k40m", "--durations", "{folder}/profiles"], 1, "initialisation"),
        (
            ["{folder}/profiles", "--gpu", "k40m", "--durations", "{folder}/durations.csv", "--group-by", "node"],
            2,
            "nodes",
        ),
    ],
)
def test_one_clear_sentence(folder, arguments, code, message):
    (folder / "eight.csv").write_text("nodes,batch_duration_s\n8,0.5\n")
    (folder / "wrong.csv").write_text("nodes;seconds\n8;0.5\n")
    result = run("scaled", *(argument.format(folder=folder) for argument in arguments))
    assert result.exit_code == code, result.output
    assert message in result.stderr and "Traceback" not in result.stderr and "defect" not in result.stderr
