"""Every command and the function of its name are asked the same question, and give the same answer.

Tests: api/calibrations.py, api/catalogue.py, api/feeding.py, api/gemm.py, api/sweeps.py.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.calibration.measurements import TEMPLATE
from paleo_lite.cli import main

K40M = {"gpu": "k40m"}


def asked(command: str) -> Any:
    """What a command prints as JSON."""
    result = CliRunner().invoke(main, [*shlex.split(command), "--format", "json"], prog_name="paleo-lite")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def csv_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("same") / "measured.csv"
    path.write_text(TEMPLATE)
    return path


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("predict alexnet --gpu k40m --batch-size 8", lambda: pl.predict("alexnet", batch_size=8, memory=True, **K40M)),
        ("layers alexnet --convention macs", lambda: pl.layers("alexnet", convention="macs")),
        ("scale alexnet --gpu k80-die --link ethernet20 --workers 1,2 --bucket-size 1MiB",
         lambda: pl.scale("alexnet", gpu="k80-die", link="ethernet20", workers=[1, 2],
                          settings=pl.Settings(bucket_bytes=2**20))),
        ("gemm 512 64 512 --count 8 --into 2 --gpu titanx-maxwell --tile 128x64",
         lambda: pl.gemm(512, 64, 512, count=8, into=2, gpu="titanx-maxwell", tile="128x64")),
        ("feeding alexnet --gpu p100-sxm2 --no-pinned --storage hdd --sample-bytes 50k",
         lambda: pl.feeding("alexnet", gpu="p100-sxm2", pinned=False, storage="hdd", sample_bytes=50_000)),
        ("networks list", pl.networks),
        ("networks show alexnet", lambda: pl.networks("alexnet")),
        ("hardware list", pl.hardware),
        ("hardware show k80", lambda: pl.hardware("Tesla K80")),
        ("hardware links", pl.links),
        ("hardware links --move 1PB", lambda: pl.links(move=10**15)),
        ("hardware audit", pl.audit),
        ("calibrate --suggest 2 --gpu k80 --network alexnet --batch-size 8 --phase training",
         lambda: pl.calibrate(suggest=2, gpu="k80", network="alexnet", batch_size=8, phase="training")),
        ("calibrations list", pl.calibrations),
        ("calibrations show k40m-fp32", lambda: pl.calibrations("k40m-fp32")),
    ],
    ids=lambda value: value.split(" --")[0] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_command_and_its_function_agree(command, answer) -> None:
    found = answer()
    assert asked(command) == json.loads(json.dumps(found.to_dict()))
    assert found._repr_html_().startswith(("<b>", "<table>")) and type(found).__name__ in repr(found)


def test_frames_have_the_rows_of_the_tables() -> None:
    pytest.importorskip("pandas")
    assert list(pl.networks().to_frame()["name"]) == [row["name"] for row in pl.networks().to_dict()["networks"]]
    assert len(pl.calibrations("k40m-fp32").to_frame()) == len(pl.calibrations("k40m-fp32").parameters)


@pytest.mark.parametrize("time_model", ["calibrated", "ppp"])
def test_calibrating_gives_what_the_command_gives(time_model, csv_file, tmp_path) -> None:
    """Also as files, and as what is predicted with them."""
    pytest.importorskip("scipy")
    pytest.importorskip("tomli_w")
    found = pl.calibrate(csv_file, time_model=time_model, output=tmp_path / "function.toml", **K40M)
    said = asked(f"calibrate {csv_file} --gpu k40m --time-model {time_model} -o {tmp_path / 'command.toml'}")
    assert said == json.loads(json.dumps(found.to_dict()))
    assert (tmp_path / "function.toml").read_bytes() == (tmp_path / "command.toml").read_bytes()
    times = [pl.predict("vgg16", batch_size=32, calibration=known, **K40M).time_s
             for known in (found, str(tmp_path / "command.toml"))]  # fmt: skip
    assert times[0] == times[1]


def test_a_sweep_and_its_best_rows_agree(tmp_path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    done = pl.sweep("alexnet", ["k80-die", "k40m"], tmp_path / "a.parquet", batch_sizes="1:4:x2", jobs=1)
    words = "--networks alexnet --gpus k80-die,k40m --batch-sizes 1:4:x2"
    said = asked(f"sweep {words} -o {tmp_path / 'b.parquet'} --jobs 1")
    apart = {"seconds", "output"}
    assert {**done.to_dict(), **dict.fromkeys(apart)} == {**said, **dict.fromkeys(apart)} and said["rows"] == 6
    assert list(done.to_frame()["batch_size"]) == [1, 2, 4] * 2
    best = pl.best(tmp_path / "a.parquet", maximise="throughput_per_s", top=2)
    assert best.to_dict() == asked(f"best {tmp_path / 'b.parquet'} --maximise throughput_per_s --top 2")
    size = pl.sweep("alexnet", "k80-die,k40m", tmp_path / "c.parquet", batch_sizes=[1, 2], dry_run=True)
    assert size.to_dict()["rows"] == 4 and not (tmp_path / "c.parquet").exists()


def test_validating_agrees(tmp_path) -> None:
    pytest.importorskip("scipy")
    head, *rows = TEMPLATE.splitlines()
    path = tmp_path / "measured.csv"
    path.write_text("\n".join([head, *(row.replace("resnet50", name) for name in ("resnet50", "vgg16", "alexnet")
                                       for row in rows)]))  # fmt: skip
    assert asked(f"validate --data {path}") == json.loads(json.dumps(pl.validate(path).to_dict()))
