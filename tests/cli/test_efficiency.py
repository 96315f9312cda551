"""`paleo-lite efficiency` as people use it: four formats, exit codes, one bad file among good ones, Ctrl-C.

Tests: reporting/efficiency.py.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import paleo_lite as pl
from measured import DATA
from paleo_lite.cli import main
from paleo_lite.profile_analysis import runs
from paleo_lite.profiles.pyprof import PyprofParquet

CONV = "N=2,C=4,H=8,W=8,K=6,P=8,Q=8,R=3,S=3,ph=1,pw=1,U=1,V=1,dh=1,dw=1,g=1,fp32,"
NAME = "run_0_config_{nodes}_2_ib_nvprof_2_resnet50_dali-gpu_{batch}_fp16_fp32_ret_0_0.gzip"


def write(folder: Path, nodes: int, batch: int) -> Path:
    rows = [
        (1, "fprop", "conv2d", "winograd", CONV, 1000 * batch, 0.0, 0.0),
        (2, "bprop", "conv2d", "cudnn::wgrad_alg1_engine", CONV, 2000 * batch, 0.0, 0.0),
        (1, "fprop", "add_", "elementwise_kernel", "T=[(5,)],fp32,", 100, 5.0, 40.0),
    ] * 6
    names = ("TId", "Direction", "Op", "Kernel", "Params", "Sil(ns)", "FLOPs", "Bytes")
    path = folder / NAME.format(nodes=nodes, batch=batch)
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows))))), path)
    return path


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    for nodes in (16, 1):
        for batch in (32, 64):
            write(folder, nodes, batch)
    return folder


def run(*arguments: object, width: int = 80) -> Result:
    words = ["efficiency", *map(str, arguments), "--gpu", "k40m"]
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, words, prog_name="paleo-lite")


def test_json_of_the_steady_method(folder):
    result = run(folder, "--group-by", "batch_size,nodes", "--format", "json", "--jobs", 1)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (answer["device"], answer["method"]) == ("k40m", "steady")
    assert [(row["nodes"], row["batch_size"]) for row in answer["rows"]] == [(1, 32), (1, 64), (16, 32), (16, 64)]
    row = answer["rows"][0]
    conv = 2 * 2 * 6 * 8 * 8 * 4 * 3 * 3  # two per multiply-accumulate; backward is weight gradients alone
    assert row["forward_s"] == pytest.approx(32e-6) and row["backward_s"] == pytest.approx(64e-6)
    assert row["flops"] == 2 * conv + 5
    assert row["flops_per_s"] == pytest.approx(row["flops"] / 96.1e-6)
    assert row["flops_efficiency"] == pytest.approx(row["flops_per_s"] / 4.29e12)
    assert row["bandwidth_efficiency"] == pytest.approx(row["bandwidth_bytes_per_s"] / 288e9)
    assert row["conv_of_peak_forward"] == pytest.approx(conv / 32e-6 / 4.29e12)
    assert row["compute_efficiency"] == pytest.approx(1.0)
    assert [(group["batch_size"], group["nodes"], group["files"]) for group in answer["groups"]] == [
        (32, 1, 1), (32, 16, 1), (64, 1, 1), (64, 16, 1),
    ]  # fmt: skip


def test_json_of_the_notebook_method(folder):
    result = run(folder, "--method", "notebook", "--group-by", "nodes", "--format", "json")
    answer = json.loads(result.stdout)
    row = answer["rows"][1]
    total_s = (64_000 + 128_000 + 100) * 6e-9
    assert row["compute_efficiency"] == pytest.approx(600e-9 / total_s)
    assert row["flops_per_s"] == pytest.approx(30 / total_s)
    assert row["bandwidth_bytes_per_s"] == pytest.approx(240 / total_s)
    mean = sum(row["flops_per_s"] for row in answer["rows"][:2]) / 2
    assert answer["groups"][0]["flops_per_s"] == pytest.approx(mean)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("method", ["steady", "notebook"])
def test_tables_fit(folder, width, method):
    for paths in ([folder], [next(folder.iterdir())]):
        result = run(*paths, "--method", method, "--group-by", "nodes", width=width)
        assert result.exit_code == 0, result.output
        tables = result.stdout.partition("\nnote:")[0].splitlines()[1:]
        assert max(map(len, tables)) <= width
        assert "Means by nodes" in result.stdout


def test_csv_and_markdown(folder):
    rows = list(csv.DictReader(io.StringIO(run(folder, "--format", "csv").stdout)))
    assert len(rows) == 4 and float(rows[0]["forward_s"]) == pytest.approx(32e-6)
    assert "| nodes | batch |" in run(folder, "--format", "markdown").stdout


def test_columns_come_from_the_name_pattern(folder):
    result = run(folder, "--name-pattern", r"config_(?P<machines>\d+)", "--group-by", "machines", "--format", "json")
    assert [group["machines"] for group in json.loads(result.stdout)["groups"]] == [1, 16]


def test_durations_take_the_place_of_kernel_times(folder, tmp_path):
    table = tmp_path / "durations.csv"
    table.write_text("nodes,batch_size,duration_s\n1,32,0.001\n")
    rows = json.loads(run(folder, "--durations", table, "--format", "json").stdout)["rows"]
    assert rows[0]["flops_per_s"] == pytest.approx(rows[0]["flops"] / 0.001)
    assert [row["time_basis"] for row in rows[:2]] == ["batch duration", "sum of kernel times"]


@pytest.fixture
def timed(tmp_path):
    """A run on 1 node and one on 8, of 25 batches each, with a table of how long a batch took."""
    profiles = tmp_path / "timed"
    profiles.mkdir()
    for nodes in (1, 8):
        columns = {"Kernel": ["k"], "Sil(ns)": [10], "FLOPs": [25 * 4.29e11], "Bytes": [25 * 1.44e10]}
        pq.write_table(pa.table(columns), profiles / NAME.format(nodes=nodes, batch=32))
    (tmp_path / "durations.csv").write_text("nodes,batch_duration_s\n1,1.0\n8,0.5\n")
    return tmp_path


def over_durations(profiles, durations, *further, width=80):
    return run(profiles, "--method", "notebook", "--durations", durations, *further, width=width)


def test_the_notebooks_method_over_batch_durations(timed):
    result = over_durations(timed / "timed", timed / "durations.csv", "--group-by", "nodes", "--format", "json")
    first, second = json.loads(result.stdout)["rows"]
    assert (first["nodes"], second["nodes"]) == (1, 8)
    # a tenth of the peak and a twentieth of the bandwidth in one second, twice that in half a second
    assert first["flops_efficiency"] == pytest.approx(0.1) and first["bandwidth_efficiency"] == pytest.approx(0.05)
    assert second["flops_efficiency"] == pytest.approx(0.2)
    assert (second["duration_from"], second["time_basis"]) == ("table", "25 batch durations")
    halved = over_durations(timed / "timed", timed / "durations.csv", "--batches", 50, "--format", "json")
    assert json.loads(halved.stdout)["rows"][0]["flops_efficiency"] == pytest.approx(0.05)


@pytest.mark.parametrize("width", [80, 120])
def test_table_states_that_names_were_swapped(timed, width):
    shown = " ".join(
        over_durations(timed / "timed", timed / "durations.csv", "--group-by", "nodes", width=width).stdout.split()
    )
    assert "10.000000" in shown and "5.000000" in shown and "Means by nodes" in shown
    assert "prints these two columns under each other's names" in shown and "rates over 25 batch durations" in shown


@pytest.mark.needs_data
def test_the_notebooks_first_row_over_batch_durations():
    surfboard = DATA / "surfboard"
    profile = surfboard / "pyprof_kernels" / NAME.format(nodes=1, batch=32)
    durations = surfboard / "derived" / "cartesius_batch_durations_recovered.csv"
    (row,) = json.loads(over_durations(profile, durations, "--format", "json").stdout)["rows"]
    # gpu_efficiency.ipynb, row 0: 15.714534 stands under "bandwidth" and is FLOPs, 17.460536 the other way round.
    assert 100 * row["flops_efficiency"] == pytest.approx(15.714534, abs=1.5e-6)
    assert 100 * row["bandwidth_efficiency"] == pytest.approx(17.460536, abs=1.5e-6)


@pytest.mark.parametrize(
    ("durations", "further", "code", "message"),
    [
        ("nothing.csv", [], 2, "nothing.csv"),
        ("eight.csv", [], 1, "no batch duration"),
        ("wrong.csv", [], 1, "wrong.csv"),
        ("timed", [], 1, "initialisation"),
        ("durations.csv", ["--group-by", "node"], 2, "nodes"),
        ("durations.csv", ["--steps", "3"], 2, "cannot be used with --method notebook"),
    ],
)
def test_durations_that_do_not_fit_are_one_sentence(timed, durations, further, code, message):
    (timed / "eight.csv").write_text("nodes,batch_duration_s\n8,0.5\n")
    (timed / "wrong.csv").write_text("nodes;seconds\n8;0.5\n")
    result = over_durations(timed / "timed", timed / durations, *further)
    assert result.exit_code == code, result.output
    assert message in result.stderr and "Traceback" not in result.stderr and "defect" not in result.stderr


def test_initialisation_without_durations_is_an_error(timed):
    result = run(timed / "timed", "--tau-init", timed / "durations.csv")
    assert result.exit_code == 2 and "`--tau-init` requires `--durations`" in result.stderr


def test_a_bad_file_among_good_ones(folder):
    bad = folder / "zz_broken.gzip"
    bad.write_bytes(b"PAR1 and no more")
    stopped = run(folder)
    assert stopped.exit_code == 1
    assert str(bad) in stopped.stderr and stopped.stdout == ""
    assert stopped.stderr.count("\n") == 1
    going = run(folder, "--keep-going", "--jobs", 2)
    assert going.exit_code == 1
    assert str(bad) in going.stderr and "4 profiles" in going.stdout
    answer = json.loads(run(folder, "--keep-going", "--format", "json").stdout)
    assert len(answer["rows"]) == 4
    assert [failure["file"] for failure in answer["failed"]] == [str(bad)]


def test_no_more_operations_than_memory_holds(folder, monkeypatch):
    monkeypatch.setattr(runs, "MAX_RUNS", 10)
    result = run(folder, "--jobs", 1)
    assert result.exit_code == 1 and "more than 10 operations: profile fewer iterations" in result.stderr


def test_whatever_one_file_does_the_others_are_read(folder, monkeypatch):
    recognised = PyprofParquet.recognises

    def broken(self, path, head):
        if "config_16" in path.name:
            raise KeyError("a defect of a reader")
        return recognised(self, path, head)

    monkeypatch.setattr(PyprofParquet, "recognises", broken)
    result = run(folder, "--keep-going", "--jobs", 1, "--format", "json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, len(answer["rows"]), len(answer["failed"])) == (1, 2, 2)
    assert all("internal error, KeyError" in failure["error"] for failure in answer["failed"])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--group-by", "machines"], 2, "no column is called 'machines'"),
        (["--group-by", "node"], 2, "did you mean nodes"),
        (["--name-pattern", "("], 2, "not a regular expression"),
        (["--name-pattern", "run"], 2, "has no named group"),
        (["--precision", "fp8"], 2, "has no fp8 peak"),
        (["--jobs", "0"], 2, "integer >= 1"),
        (["--method", "other"], 2, "no method is called 'other': valid names: notebook, steady"),
        (["--scheduler", "nonsense"], 2, "a Dask scheduler must be such as tcp://host:8786"),
    ],
)
def test_mistakes_are_one_sentence(folder, arguments, code, says):
    if "--scheduler" in arguments:
        pytest.importorskip("distributed")
    result = run(folder, *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr and "Traceback" not in result.stderr


def test_a_folder_without_files_is_refused(tmp_path):
    result = run(tmp_path)
    assert result.exit_code == 2 and "no files in" in result.stderr


def test_failing_files_alone_give_an_error_and_no_table(tmp_path):
    (tmp_path / "a").write_text("nothing that anybody reads")
    result = run(tmp_path, "--keep-going")
    assert result.exit_code == 1 and "not a profile that paleo-lite reads" in result.stderr and result.stdout == ""


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc, which only Linux has")
def test_interrupt_exits_130_and_leaves_no_files(folder):
    columns = {"Kernel": [f"k{i % 50}" for i in range(400_000)], "Sil(ns)": list(range(400_000))}
    pq.write_table(pa.table(columns), folder / "large")
    for number in range(1000):  # more work than anybody waits for
        os.link(folder / "large", folder / f"large_{number}")
    command = [sys.executable, "-m", "paleo_lite", "efficiency", str(folder), "--gpu", "k40m", "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    while sum(reads(pid, folder) for pid in members(process.pid)) < 2 and process.poll() is None:  # both workers
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate()
    assert (process.returncode, output) == (130, b""), errors
    assert errors == b"paleo-lite: interrupted\n"
    while members(process.pid):  # a process that stays is ended, and the test failed, by the limit of every test
        time.sleep(0.05)


def reads(pid: int, folder: Path) -> bool:
    """Whether a process has a file of the folder open."""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        return any(str(file.readlink()).startswith(str(folder)) for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


def members(group: int) -> list[int]:
    """Processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.needs_data
def test_rate_is_unknown_if_little_work_is_counted():
    """This trace of a sleeping host contains a single copy of 512 bytes."""
    (path,) = (DATA / "profiles/torch_chrome_trace").glob("critical_path__simple_add*")
    title = pl.efficiency(path, gpu="a100-sxm-80gb", jobs=1).document().title
    assert title.endswith("no share of peak: too little of its work is counted")


def test_a_printed_table_is_a_whole_profile_and_no_steady_iteration(tmp_path):
    rule = "-" * 20 + "  " + "  ".join(["-" * 12] * 5)
    names = ("Self CPU", "CPU total", "Self CUDA", "CUDA total", "# of Calls")
    cells = ("10.000ms", "20.000ms", "21.000ms", "21.000ms", "200")
    lines = [f"{name:>20}  " + "  ".join(f"{cell:>12}" for cell in own)
             for name, own in (("Name", names), ("aten::addmm", cells))]  # fmt: skip
    path = tmp_path / "table.txt"
    path.write_text("\n".join([rule, lines[0], rule, lines[1], rule, "Self CUDA time total: 21.000ms"]))
    printed = run(path).output
    assert "steady" not in printed.lower()
    assert "the whole profile, in which no iterations were found" in " ".join(printed.split())
    assert "Whole profile, by summed kernel time" in printed and "all kernels" in printed


def test_a_note_of_some_profiles_names_them(folder) -> None:
    found = pl.efficiency(folder, gpu="k40m")
    rows = [dict(row, notes=["for all", *(["for some"] if place else [])]) for place, row in enumerate(found.rows)]
    few = msgspec.structs.replace(found, rows=rows[:2])
    assert f"for some ({rows[1]['file']})" in few.document().notes and "for all" in few.document().notes
    many = msgspec.structs.replace(found, rows=[dict(row, file=str(place)) for place, row in enumerate(rows + rows)])
    assert "for some (1, 2, 3 and 3 more, of 8)" in many.document().notes


@pytest.mark.needs_data
def test_a_profile_of_copies_says_so_in_its_table_and_its_headline() -> None:
    """Half a second of a profile of two GPUs in which 98% are copies; nsys's own database has their times."""
    path = DATA / "profiles/nsys_sqlite/h100_2gpu_1s.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database:
        ((copied_ns,),) = database.execute("select sum(end - start) from CUPTI_ACTIVITY_KIND_MEMCPY")
        ((devices,),) = database.execute("select count(distinct deviceId) from CUPTI_ACTIVITY_KIND_MEMCPY")
    shown = run(path).stdout
    assert devices == 2 and "summed over 2 devices" in shown.splitlines()[0]
    row = json.loads(run(path, "--format", "json").stdout)["rows"][0]
    assert row["exposed_copy_s"] <= copied_ns * 1e-9
    assert f"{row['exposed_copy_s'] / row['window_s']:.1%} in copies alone" in shown.splitlines()[0]
    longest = row["operators"][0]
    (line,) = [line for line in shown.splitlines() if line.startswith("aten::copy_") and "98.4%" in line]
    assert longest["op"] == "aten::copy_" and f"{longest['calls']}" in line


@pytest.mark.needs_data
def test_device_times_that_do_not_add_up_are_not_denied() -> None:
    """A table of PyTorch 1.0 has `CUDA total` of each operation, and 13.82 ms below it."""
    refused = run(DATA / "profiles/small_texts/ka_old.txt")
    assert refused.exit_code and "do not add up" in refused.stderr and "ran on a device" not in refused.stderr
