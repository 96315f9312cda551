"""Calibrations on disk and on the command line.

Tests: calibration/measurements.py, calibration/store.py, cli/calibrations.py, cli/validate.py,
reporting/calibrations.py.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import paleo_lite as pl
from paleo_lite.calibration.measurements import COLUMNS, TEMPLATE, read_measurements
from paleo_lite.calibration.store import read_calibration, shipped_calibrations
from paleo_lite.cli import main
from paleo_lite.errors import BadFile, BadValue, CalibrationFailed
from result_samples import VLLM_SERVE

pytest.importorskip("scipy")
pytest.importorskip("tomli_w")


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "100", "PALEO_LITE_DATA": None}).invoke(
        main, list(arguments), prog_name="paleo-lite"
    )


HEAD = ",".join(COLUMNS)
ROWS = [
    "titan-rtx,resnet50,12,inference,fp32,0.0301", "titan-rtx,vgg16,12,inference,fp32,0.0411",
    "titan-rtx,mobilenet_v2,12,inference,fp32,0.0121", "titan-rtx,densenet121,12,inference,fp32,0.0302",
]  # fmt: skip


@pytest.fixture
def csv_file(tmp_path: Path) -> Path:
    path = tmp_path / "measured.csv"
    path.write_text("\n".join([HEAD, *ROWS]) + "\n")
    return path


def test_a_name_that_is_too_long_is_reported_as_such() -> None:
    name = "x" * 300
    answer = run("calibrate", name, "--gpu", "k40m")
    assert answer.exit_code == 1
    assert answer.stderr.endswith("cannot be read (File name too long)\n")


@pytest.mark.parametrize(
    ("text", "further", "message"),
    [
        # What nvidia-smi writes with --query-gpu=timestamp,utilization.gpu --format=csv,nounits.
        ("timestamp, utilization.gpu [%]\n2024/05/01 10:00:00.123, 98\n", [], "timestamp, utilization.gpu [%]"),
        ("device,model,batch,ms\nk40m,resnet50,32,235\n", ["--network", "resnet50"], "device,model,batch,ms"),
        (f"{HEAD}\n".replace("time_s", "time_ms") + "k40m,resnet50,32,inference,fp32,235\n", [], "precision,time_ms"),
    ],
)
def test_a_table_of_other_columns_is_told_those_that_are_needed(
    text: str, further: list[str], message: str, tmp_path: Path
) -> None:
    table = tmp_path / "wrong.csv"
    table.write_text(text)
    answer = run("calibrate", str(table), "--gpu", "k40m", *further)
    assert answer.exit_code != 0 and answer.stderr.count("\n") == 1
    assert f"needs the columns {', '.join(COLUMNS)}, and the first line is " in answer.stderr
    assert answer.stderr.endswith(f"{message}\n") and len(answer.stderr) < 400


def test_bytes_are_not_shown_as_columns(tmp_path: Path) -> None:
    table = tmp_path / "wrong.csv"
    table.write_bytes(b"\x89PNG\r\n\x1a\n\0")
    answer = run("calibrate", str(table), "--gpu", "k40m")
    assert answer.stderr.endswith(f"needs the columns {', '.join(COLUMNS)}\n")


@pytest.mark.slow
def test_calibrate_write_show_predict(tmp_path: Path, csv_file: Path) -> None:
    target = tmp_path / "mine.toml"
    made = run("calibrate", str(csv_file), "--gpu", "TITAN RTX", "-o", str(target), "--date", "2020-05-01")
    assert made.exit_code == 0, made.stderr
    shown = run("calibrations", "show", str(target))
    assert shown.exit_code == 0
    assert "efficiency_conv_3x3" in shown.stdout and "4 measurements of 4 networks" in shown.stdout
    answer = json.loads(
        run(
            "predict",
            "resnet50",
            "--gpu",
            "titan-rtx",
            "--batch-size",
            "12",
            "--calibration",
            str(target),
            "--format",
            "json",
        ).stdout
    )
    assert answer["time_model"] == "calibrated"
    low, high = answer["interval"]
    assert low < answer["time_s"] < high
    assert low < 0.0301 < high  # what was measured
    again = run("calibrate", str(csv_file), "--gpu", "titan-rtx", "-o", str(target))
    assert again.exit_code == 2 and "already exists" in again.stderr


def test_a_shipped_calibration_is_the_default_and_is_named() -> None:
    name = next(iter(shipped_calibrations()))
    device, _, precision = name.rpartition("-")
    prediction = pl.predict("resnet50", gpu=device, precision=precision)
    assert prediction.model.name == "calibrated"
    assert prediction.interval is not None
    assert prediction.time_s == pytest.approx(
        sum(row["time_s"] for row in prediction.rows()) + prediction.terms.overhead_s
    )
    text = run("predict", "resnet50", "--gpu", device, "--precision", precision).stdout
    assert f"calibrated ({device} {precision}" in text and "at 90%" in text
    bare = pl.predict("resnet50", gpu=device, precision=precision, time_model="roofline")
    assert bare.model.name == "roofline" and bare.interval is None


def test_every_shipped_calibration_reads() -> None:
    for name, path in shipped_calibrations().items():
        found = read_calibration(path)
        assert name == f"{found.device}-{found.precision}"
        assert all(p.low <= p.value <= p.high for p in found.parameters.values())


def test_measurements_of_two_files_count_once(tmp_path: Path, csv_file: Path) -> None:
    more = tmp_path / "more.csv"
    more.write_text("\n".join([HEAD, *ROWS[:2], "titan-rtx,alexnet,12,inference,fp32,0.0051"]) + "\n")
    answer = run("calibrate", str(csv_file), str(more), "--gpu", "titan-rtx")
    assert answer.exit_code == 0, answer.stderr
    assert "5 measurements of 5 networks" in answer.stdout
    assert "2 measurements of" in answer.stdout and "which count once" in answer.stdout
    ppp = run("calibrate", str(csv_file), str(csv_file), "--gpu", "titan-rtx", "--time-model", "ppp")
    assert "4 measurements" in ppp.stdout and "which count once" in ppp.stdout


@pytest.mark.parametrize("model", ["calibrated", "ppp"])
def test_measurements_of_other_devices_are_named(csv_file: Path, model: str) -> None:
    others = ["t4,resnet50,32,inference,fp32,0.11", "titan-rtx,resnet50,12,inference,fp16,0.02"]
    csv_file.write_text("\n".join([HEAD, *ROWS, *others]) + "\n")
    output = run("calibrate", str(csv_file), "--gpu", "titan-rtx", "--time-model", model).output
    note = "2 measurements of other devices or precisions left out: 1 of t4 in fp32, 1 of titan-rtx in fp16"
    assert note in " ".join(output.split())
    csv_file.write_text("\n".join([HEAD, *ROWS]) + "\n")
    assert "left out" not in run("calibrate", str(csv_file), "--gpu", "titan-rtx", "--time-model", model).output


def test_calibration_of_another_device_is_an_error() -> None:
    name = next(iter(shipped_calibrations()))
    with pytest.raises(CalibrationFailed, match="not for k80"):
        pl.predict("resnet50", gpu="k80", calibration=name)
    with pytest.raises(BadValue, match="time model of its own"):
        pl.predict("resnet50", gpu="k80", calibration=name, ppp=0.5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("titan-rtx,vgg16,12,inference,fp32,0.0411", "titan-rtx,vgg16,12,inference,fp32,-1", "line 3: time_s is '-1'"),
        (
            "titan-rtx,vgg16,12,inference,fp32,0.0411",
            "titan-rtx,vgg16,12,inference,fp32,nan",
            "line 3: time_s is 'nan'",
        ),
        ("titan-rtx,vgg16,12,inference", "titan-rtx,vgg16,0,inference", "line 3: batch_size is '0'"),
        ("titan-rtx,vgg16,12,inference", "titan-rtx,vgg16,12,thinking", "line 3: phase is 'thinking'"),
        ("vgg16,12,inference,fp32", "vgg16,12,inference,fp31", "line 3: precision is 'fp31'"),
        ("titan-rtx,vgg16", "titan-rtx,", "line 3: network is empty"),
        ("time_s", "seconds", "line 1: no column time_s"),
    ],
)
def test_a_bad_measurement_is_named_with_its_line(csv_file: Path, old: str, new: str, message: str) -> None:
    csv_file.write_text(csv_file.read_text().replace(old, new, 1))
    with pytest.raises(BadFile, match=message):
        read_measurements(csv_file)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["calibrate"], 2, "needs result files of benchmarks, profiles or measurements CSVs;"),
        (["calibrate", "--gpu", "t4"], 2, "needs result files of benchmarks, profiles or measurements CSVs;"),
        (["calibrate", "--suggest", "2"], 2, "`calibrate` needs `--gpu`;"),
        (["calibrate", "absent.csv", "--gpu", "k80"], 1, "cannot be read"),
        (["calibrations", "show", "nothing"], 2, "no calibration is called 'nothing'"),
        (["validate", "--data", "absent"], 1, "cannot be read"),
        (["validate"], 2, "Missing option '--data'"),
        (["validate", "--data", ".", "--split", "months"], 2, "no split is called 'months'"),
        (["predict", "vgg16", "--gpu", "xeon-8380", "--time-model", "calibrated"], 2, "needs a calibration"),
    ],
)
def test_mistakes_get_one_sentence(arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr


def test_a_device_that_was_not_measured_is_named(csv_file: Path) -> None:
    result = run("calibrate", str(csv_file), "--gpu", "k80")
    assert result.exit_code == 1
    assert "no measurement of k80 in fp32 among 4: there are titan-rtx fp32" in result.stderr


def test_the_template_reads(tmp_path: Path) -> None:
    path = tmp_path / "template.csv"
    path.write_text(run("calibrate", "--template").stdout)
    assert path.read_text() == TEMPLATE
    assert [m.phase for m in read_measurements(path)] == ["inference", "training"]


def test_a_single_point_has_no_rank(tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    path.write_text("\n".join([HEAD, *ROWS, "titan-rtx,resnet50,12,training,fp32,0.0901"]) + "\n")
    answer = run("validate", "--data", str(path), "--format", "json")
    ranks = {row["phase"]: row["rank_correlation"] for row in json.loads(answer.stdout)["rows"]}
    assert ranks["training"] is None
    assert -1 <= ranks["inference"] <= 1


def test_validate_prints_the_table_of_truth(csv_file: Path) -> None:
    answer = json.loads(run("validate", "--data", str(csv_file), "--format", "json").stdout)
    (row,) = answer["rows"]
    fields = "split gpu precision phase points mape median p90 bias rank_correlation coverage_80 coverage_90 width_90"
    assert {*fields.split(), "baselines"} <= set(row)
    assert row["points"] == 4 and set(row["baselines"]) == {"one_ppp", "roofline", "per_class_ppp"}
    stored = csv_file.with_suffix(".json")
    stored.write_text(json.dumps(answer))
    assert json.loads(run("validate", "--data", str(stored), "--format", "json").stdout) == answer
    assert "no measurement of k80" in run("validate", "--data", str(stored), "--gpu", "k80").stderr
    stored.write_text('{"split": 1}')
    assert "`$.split`" in run("validate", "--data", str(stored)).stderr


def test_a_profile_needs_the_network_s_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    result = run("calibrate", str(path), "--gpu", "k40m")
    assert result.exit_code == 2 and "for profiles give `--network`" in result.stderr
    path = tmp_path / "run.sqlite"
    path.write_bytes(b"SQLite format 3\0")
    result = run("calibrate", str(path), "--gpu", "k40m", "--network", "resnet50")
    assert result.exit_code == 1 and str(path) in result.stderr
    result = run("calibrate", str(tmp_path / "absent"), "--gpu", "k40m")
    assert result.exit_code == 1 and "cannot be read" in result.stderr


def test_one_measurement_is_enough_and_its_file_is_on_record(tmp_path: Path, csv_file: Path) -> None:
    """With too few networks to hold one out, the file has no held-out error; other parameters stay at the prior."""
    csv_file.write_text("\n".join([HEAD, ROWS[0]]) + "\n")
    target = tmp_path / "one.toml"
    assert run("calibrate", str(csv_file), "--gpu", "titan-rtx", "-o", str(target)).exit_code == 0
    found = read_calibration(target)
    assert found.held_out_error is None
    assert found.provenance.inputs == [f"measured.csv sha256 {hashlib.sha256(csv_file.read_bytes()).hexdigest()}"]
    assert found.parameters["efficiency_conv_depthwise"].moved == 0


def test_a_source_is_predicted_from_the_others(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    lines = [f"{row},224,pytorch,{source}" for row in ROWS for source in ("one", "two")]
    path.write_text("\n".join([f"{HEAD},image_size,framework,source", *lines]) + "\n")
    rows = json.loads(run("validate", "--data", str(path), "--split", "source", "--format", "json").stdout)["rows"]
    assert [row["source"] for row in rows] == ["one", "two"]
    assert [row["points"] for row in rows] == [4, 4]
    alone = run("validate", "--data", str(path), "--split", "gpu")
    assert alone.exit_code == 2 and "nothing to hold out" in alone.stderr


WITHOUT_PROFILES = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
sys.meta_path.insert(0, Absent())
import json
from click.testing import CliRunner
from paleo_lite.cli import main
runner = CliRunner(env={"COLUMNS": "200"})
done = [runner.invoke(main, words, prog_name="paleo-lite") for words in json.loads(sys.argv[1])]
print(json.dumps([(one.exit_code, one.stdout, one.stderr) for one in done]))
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_calibrating_from_csv_does_not_import_profile_readers(tmp_path: Path, csv_file: Path) -> None:
    """In a process of its own, which has neither pandas nor pyarrow."""
    asked, models = [["calibrate", "--template"]], ("calibrated", "ppp")
    for time_model in models:
        kept = str(tmp_path / f"{time_model}.toml")
        asked.append(["calibrate", str(csv_file), "--gpu", "titan-rtx", "--time-model", time_model, "-o", kept])
        asked.append(["predict", "resnet50", "--gpu", "titan-rtx", "--calibration", kept, "--format", "json"])
        asked.append(["calibrations", "show", kept])
    asked += [["calibrations", "list"], ["validate", "--data", str(csv_file)]]
    asked.append(["calibrate", str(tmp_path), "--gpu", "k40m", "--network", "vgg16"])
    command = [sys.executable, "-c", WITHOUT_PROFILES, json.dumps(asked)]
    answers = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for words, (code, _, said) in zip(asked[:-1], answers):
        assert code == 0, (words, said)
    shown = [out for _, out, _ in answers]
    assert shown[0].startswith("gpu,network,batch_size")
    assert [json.loads(shown[at])["time_model"] for at in (2, 5)] == [*models]
    assert "k40m-fp32" in shown[7] and "resnet50" in shown[8]
    code, _, refused = answers[9]
    assert code == 1 and "pip install 'paleo-lite[profiles]'" in refused


def test_result_files_are_evidence(tmp_path: Path) -> None:
    """Two files make one calibration; a file is written, and shown again by its name."""
    for name, tpot_ms in (("a.json", "20.0"), ("b.json", "22.0")):
        text = VLLM_SERVE.replace('"mean_tpot_ms": 20.0', f'"mean_tpot_ms": {tpot_ms}')
        (tmp_path / name).write_text(text.replace('"mean_ttft_ms": 1000.0', '"mean_ttft_ms": 100.0'))
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    output = str(tmp_path / "server.toml")
    answer = run("calibrate", *files, "--gpu", "h100-sxm", "-o", output, "--format", "json")
    assert answer.exit_code == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert [text.partition(" ")[0] for text in found["provenance"]["inputs"]] == ["a.json", "b.json"]
    assert {one["figure"] for one in found["observations"]} == {"tpot_s", "ttft_s"}
    shown = run("calibrations", "show", output)
    assert shown.stdout.startswith("Calibration by 4 measured figures of servers")
    again = run("calibrate", *files, "--gpu", "h100-sxm", "-o", output)
    assert again.exit_code == 2
    assert "already exists" in again.stderr


def test_a_file_that_does_not_exist_is_named_before_the_device_is_asked_for(tmp_path: Path) -> None:
    answer = run("calibrate", str(tmp_path / "missing.json"))
    assert answer.exit_code == 1
    assert answer.stderr.endswith("missing.json: cannot be read (No such file or directory)\n")


def test_files_that_are_nothing_are_said_to_be(tmp_path: Path) -> None:
    """Also without a device: what is wrong is the file."""
    path = tmp_path / "wrong.json"
    for text, said in (("", "the file is empty"), ('{"a": 1}', "not a result file that paleo-lite reads")):
        path.write_text(text)
        for more in ((), ("--gpu", "k40m")):
            result = run("calibrate", str(path), *more)
            assert result.exit_code == 1 and said in result.stderr, result.stderr
        for more in ((), ("--gpu", "k40m")):
            result = run("compare", str(path), *more)
            assert result.exit_code == 1 and said in result.stderr, result.stderr
