"""Nsight Compute CSV: real files of a row per metric, and the raw page built from the vendor's description of it."""

from __future__ import annotations

import csv
import io
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import read_head
from paleo_lite.profiles.ncu import NcuCsv
from strategies import ACCIDENTS, damaged

# The real files, and the rows of timing_from_cuda_events.csv that ran with the same grid and block: kernel, variant,
# problem size, block or tile.
REAL = {
    "saxpy": ("saxpy", "base", "16777216", "256"),
    "transpose_naive": ("transpose", "naive", "2048", "32"),
    "gemm_naive": ("gemm", "naive", "2048", "32"),
    "gemm_register_blocked": ("gemm", "register_blocked", "2048", "32"),
}


def read(path, columns=None) -> list[dict]:
    assert NcuCsv().recognises(path, read_head(path))
    return pa.Table.from_batches(list(NcuCsv().batches(path, columns))).to_pylist()


@pytest.mark.needs_data
@pytest.mark.parametrize("name", REAL)
def test_values_match_the_file(data_folder, name):
    path = data_folder / "profiles" / "ncu_csv" / f"{name}.csv"
    text = path.read_text("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text[text.index('"ID"') :])))
    (row,) = read(path)
    printed = {one["Metric Name"]: float(one["Metric Value"].replace(",", "")) for one in rows}
    assert {key.removeprefix("metric."): value for key, value in row.items() if key.startswith("metric.")} == printed
    assert row["duration_ns"] == printed["gpu__time_duration.sum"]
    assert row["bytes"] == printed["dram__bytes_op_read.sum"] + printed["dram__bytes_op_write.sum"]
    assert row["flops"] is None  # no counter of instructions was collected
    assert row["kernel"] == rows[0]["Kernel Name"]
    assert f"({row['grid']})".replace(",", ", ") == rows[0]["Grid Size"]
    assert f"({row['block']})".replace(",", ", ") == rows[0]["Block Size"]
    assert (row["category"], row["calls"], row["stream"], row["device"]) == ("kernel", 1, 7, 0)


@pytest.mark.needs_data
@pytest.mark.parametrize("name", REAL)
def test_durations_match_cuda_events(data_folder, name):
    """The program's own timings are a second opinion; ncu fixes clocks and flushes caches, so only the size agrees."""
    folder = data_folder / "profiles" / "ncu_csv"
    kernel, variant, size, block = REAL[name]
    with (folder / "timing_from_cuda_events.csv").open() as file:
        (timed,) = [
            row for row in csv.DictReader(file)
            if (row["kernel"], row["variant"], row["problem_size"]) == (kernel, variant, size)
            and block in (row["block_size"], row["tile_dim"])
        ]  # fmt: skip
    ratio = read(folder / f"{name}.csv")[0]["duration_ns"] / (float(timed["median_ms"]) * 1e6)
    assert 0.75 < ratio < 1.25


@pytest.mark.needs_data
def test_other_timings_are_not_recognised_as_ncu(data_folder):
    path = data_folder / "profiles" / "ncu_csv" / "timing_from_cuda_events.csv"
    assert not NcuCsv().recognises(path, read_head(path))


ABOUT = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
    '"Block Size","Grid Size","Device","CC"'
)
LONG = (
    '==PROF== Connected to process 5 (/bin/a)\n==PROF== Profiling "k" - 0: 0%....100% - 9 passes\nown output, of\n'
    + ABOUT
    + ',"Section Name","Metric Name","Metric Unit","Metric Value"\n'
)  # fmt: skip
RAW_UNITS = {
    "gpu__time_duration.sum": "usecond",
    "dram__bytes.sum": "Mbyte",
    "dram__bytes.sum.per_second": "Gbyte/second",
    "sm__cycles_elapsed.avg.per_second": "cycle/nsecond",
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": "inst",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": "inst",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": "inst",
    "launch__func_cache_config": "",
}


def raw_page(*kernels: list[str]) -> str:
    """As ``ncu --csv --page raw`` prints it: units in the line below the heading, a row per kernel."""
    quoted = [",".join(f'"{value}"' for value in values) for values in (list(RAW_UNITS), list(RAW_UNITS.values()))]
    lines = [f"{ABOUT},{quoted[0]}", ",".join(['""'] * 11) + f",{quoted[1]}"]
    for index, values in enumerate(kernels):
        about = f'"{index}","5","a","127.0.0.1","k<{index}>(int, int)","1","7","(64, 1, 1)","(8, 2, 1)","0","9.0"'
        lines.append(about + "," + ",".join(f'"{value}"' for value in values))
    return "==PROF== Connected to process 5\n" + "\n".join(lines) + "\n==PROF== Disconnected from process 5\n"


RAW = raw_page(
    ["12.5", "1.25", "100.5", "1.41", "1,000", "2,000", "30,000", "CachePreferNone"],
    ["2,000.75", "0", "n/a", "1.41", "0", "0", "0", "CachePreferNone"],
)


def row_of(kernel: str, metric: str, unit: str, value: str) -> str:
    about = f'"{kernel}","5","a","127.0.0.1","k{kernel}()","1","7","(64, 1, 1)","(8, 2, 1)","0","9.0"'
    return f'{about},"S","{metric}","{unit}","{value}"\n'


def read_text(tmp_path, text: str) -> list[dict]:
    path = tmp_path / "ncu.csv"
    path.write_text(text)
    return read(path)


def test_raw_page(tmp_path):
    first, second = read_text(tmp_path, RAW)
    assert first["kernel"] == "k<0>(int, int)"
    assert (first["grid"], first["block"], first["duration_ns"]) == ("8,2,1", "64,1,1", 12500.0)
    assert (first["bytes"], first["flops"]) == (1250000.0, 2 * 30000 + 1000 + 2000)
    assert first["metric.dram__bytes.sum.per_second"] == 100.5e9
    assert first["metric.sm__cycles_elapsed.avg.per_second"] == 1.41e9
    assert (second["duration_ns"], second["bytes"], second["flops"]) == (2000750.0, 0.0, 0.0)
    assert second["metric.dram__bytes.sum.per_second"] is None
    assert "metric.launch__func_cache_config" not in first


def test_a_page_with_fewer_columns(tmp_path):
    """Scripts cut columns out, here as in the input of a public analyser of ncu's CSV."""
    first, second = read_text(
        tmp_path,
        '==PROF== Connected to process 1\n"ID","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum"\n'
        '"","","ns","byte"\n"0","skinny_kernel<2, 1>(...)","220000","47185920"\n'
        '"1","skinny_kernel<2, 1>(...)","230000","47657779"\n==PROF== Disconnected\n',
    )
    assert (first["kernel"], first["duration_ns"], second["duration_ns"]) == ("skinny_kernel<2, 1>(...)", 2.2e5, 2.3e5)
    assert second["metric.dram__bytes_read.sum"] == 47657779
    text = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","a","Duration","us","2"\n'
    first, second = read_text(tmp_path, text + '"1","a","Duration","us","3"\n')
    assert (first["duration_ns"], second["duration_ns"]) == (2000.0, 3000.0)


def test_a_row_per_metric_of_several_kernels(tmp_path):
    text = LONG + (
        row_of("0", "gpu__time_duration.sum", "ns", "1,234,567")
        + row_of("0", "launch__waves", "", "1.5")
        + row_of("1", "Duration", "msecond", "2")
        + row_of("1", "", "", "")
    )
    first, second = read_text(tmp_path, text)
    assert (first["kernel"], first["duration_ns"], first["metric.launch__waves"]) == ("k0()", 1234567.0, 1.5)
    assert (second["kernel"], second["duration_ns"], second["metric.launch__waves"]) == ("k1()", 2e6, None)


def test_flops_are_null_where_other_instructions_ran(tmp_path):
    name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    counted = "".join(row_of("0", name.format(op), "inst", "10") for op in ("dfma", "dadd", "dmul"))
    assert read_text(tmp_path, LONG + counted)[0]["flops"] == 40
    assert read_text(tmp_path, LONG + counted.replace("dmul", "other"))[0]["flops"] is None
    for metric in (name.format("hfma"), "sm__inst_executed_pipe_tensor.sum"):
        assert read_text(tmp_path, LONG + counted + row_of("0", metric, "inst", "1"))[0]["flops"] is None
        assert read_text(tmp_path, LONG + counted + row_of("0", metric, "inst", "0"))[0]["flops"] == 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RAW.replace('"12.5"', '"-12.5"'), r"line 4: gpu__time_duration.sum is '-12.5' 'usecond', expected a duration"),
        (RAW.replace('"12.5"', '"nan"'), "line 4: gpu__time_duration.sum is 'nan', expected a number"),
        (RAW.replace('"usecond"', '"week"'), "'week', expected a duration"),
        (RAW.replace('"12.5"', '"1e308"'), "sum is '1e308' 'usecond', expected a duration from 0 to 2"),
        (RAW.replace('"1.25"', '"-1.25"'), "line 4: dram__bytes.sum is '-1.25' 'Mbyte', expected a number from 0"),
        (RAW.replace('"100.5"', '"1e308"'), "per_second is '1e308' 'Gbyte/second', expected a number from -2"),
        (RAW.replace('"30,000"', '"1e308"'), "ffma_pred_on.sum is '1e308' 'inst', expected a number from 0"),
        (RAW[:-80], "line 5: "),
        (RAW.replace('"Kernel Name"', '"Name"'), "lacks Kernel Name"),
        (RAW.replace('"dram__bytes.sum"', '"gpu__time_duration.sum"'), "appears twice"),
        (raw_page(), "without a kernel below it"),
        (LONG, "without a kernel below it"),
        (LONG + "program output\n", "line 5: 1 columns, expected 15"),
        (LONG.replace('"Metric Value"', '"Value"') + row_of("0", "a", "b", "1"), "lacks Metric Value, which"),
        (LONG.replace('"Metric Unit"', '"Unit"') + row_of("0", "a", "b", "1"), "lacks Metric Unit, which `ncu --csv`"),
        ('"ID","Kernel Name"\n"0","k"\n', "expected at least the columns ID, Kernel Name and a metric"),
        (re.sub('\n"",.*', "", RAW), "line 3: a kernel where Nsight Compute prints the units of the columns"),
    ],
)
def test_the_error_of_a_damaged_table_names_the_damage(tmp_path, text, message):
    with pytest.raises(BadProfile, match=message):
        read_text(tmp_path, text)


@given(ACCIDENTS, st.sampled_from([RAW, LONG + row_of("0", "gpu__time_duration.sum", "ns", "1") * 3]))
def test_damaged_files_give_a_table_or_our_error(tmp_path, table_or_our_error, happened, whole):
    path = tmp_path / "ncu.csv"
    path.write_bytes(damaged(whole.encode(), happened))
    table_or_our_error(path, NcuCsv())
