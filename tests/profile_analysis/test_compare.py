"""Two runs side by side: the notebook's tables to the last printed digit, and a verdict that follows from repeats."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from measured import DATA
from paleo_lite.errors import BadProfile, BadValue, UnknownName
from paleo_lite.profile_analysis.compare import compare, find_repeats, spread
from paleo_lite.profile_analysis.iteration_work import OUTSIDE_MODULES
from paleo_lite.profiles.detect import Profile
from paleo_lite.profiles.pyprof import PyprofParquet
from paleo_lite.profiles.table import batch_of

SURFBOARD = DATA / "surfboard"


def write(path, times_ns, direction="fprop"):
    """A pyprof file with these kernels, one call each."""
    columns = {"Kernel": list(times_ns), "Sil(ns)": list(times_ns.values()), "Direction": [direction] * len(times_ns)}
    pq.write_table(pa.table(columns), path)
    return Profile(path, "pyprof", PyprofParquet())


def by_name(comparison):
    return {row.name: row for row in comparison.kernels}


class Traced:
    """A reader of a few operations: name, params, layer, kernel, duration."""

    def __init__(self, *rows: tuple):
        self.rows = rows

    def batches(self, path, columns):
        names = ("op", "params", "layer", "kernel", "duration_ns")
        for half in (self.rows[::2], self.rows[1::2]):
            given = dict(zip(names, map(list, zip(*half)))) | {"category": ["kernel"] * len(half)}
            yield batch_of(given, len(half), tuple(columns))


def test_times_by_operation_shape_and_module():
    mm, wide = '[[8,4],[4,2]] ["float","float"]', '[[9,4],[4,2]] ["float","float"]'
    a = Traced(
        ("aten::mm", mm, "Net/A", "sgemm", 40.0),
        ("aten::add", None, None, "add", 30.0),
        (None, None, None, "void copy<1>()", 5.0),
    )
    b = Traced(
        ("aten::mm", mm, "Net/A", "sgemm", 41.0),
        ("aten::mm", wide, "Net/B", "hgemm", 7.0),
        ("aten::add", None, None, "add", 10.0),
    )
    sides = [[Profile(Path("a"), "x", a)], [Profile(Path("b"), "x", b)]]

    def rows(by):
        found = compare(*sides, by=by)
        assert found.total.difference_s == pytest.approx(-17e-9)
        return [
            (row.name, *(None if s is None else round(s * 1e9) for s in (row.a_s, row.b_s))) for row in found.kernels
        ]

    # Those that differ most come first.
    assert rows("op") == [("aten::add", 30, 10), ("aten::mm", 40, 48), ("copy", 5, None)]
    assert rows("shape") == [
        ("aten::add", 30, 10), ("aten::mm 9x4 4x2 fp32", None, 7), ("copy", 5, None), ("aten::mm 8x4 4x2 fp32", 40, 41),
    ]  # fmt: skip
    assert rows("module") == [(OUTSIDE_MODULES, 35, 10), ("Net/B", None, 7), ("Net/A", 40, 41)]
    assert rows("kernel")[0] == ("sgemm", 40, 41)
    with pytest.raises(UnknownName, match="no grouping is called 'thread'"):
        rows("thread")


def printed(loader):
    """The notebook's table for a loader: kernel, seconds on 1 node, seconds on 8."""
    text = (SURFBOARD / "notebook_outputs" / "kernels_pyprof.txt").read_text()
    text = text[text.index(f"## {loader}\n") :]
    text = text[text.index("--out--") :]
    text = text[: text.index("\n\n")] if "\n\n" in text else text
    return re.findall(r"^(\S+)\s+(\d+\.\d{6})\s+(\d+\.\d{6})$", text, re.MULTILINE)


@pytest.mark.needs_data
@pytest.mark.parametrize(("loader", "rows"), [("dali-cpu-to-gpu", 56), ("dali-gpu", 66)])
def test_the_notebooks_tables_to_every_printed_digit(loader, rows):
    profiles = []
    for nodes in (1, 8):
        path = (
            SURFBOARD
            / "pyprof_kernels"
            / f"run_0_config_{nodes}_2_ib_nvprof_2_resnet50_{loader}_32_fp16_fp32_ret_0_0.gzip"
        )
        profiles.append(Profile(path, "pyprof", PyprofParquet()))
    result = compare([profiles[0]], [profiles[1]], "fprop")
    table = printed(loader)
    assert len(table) == rows == len(result.in_both)
    for row, (name, one, eight) in zip(result.in_both, table):  # in the notebook's order, too
        assert row.name.startswith(name.removesuffix("..."))
        assert (f"{row.a_s:.6f}", f"{row.b_s:.6f}") == (one, eight), name


def test_difference_ratio_and_kernels_of_one_side(tmp_path):
    a = write(tmp_path / "a", {"shared": 2_000_000, "old": 1_000})
    b = write(tmp_path / "b", {"shared": 3_000_000, "new": 5_000})
    result = compare([a], [b])
    shared = by_name(result)["shared"]
    assert shared.difference_s == pytest.approx(1e-3) and shared.ratio == pytest.approx(1.5)
    assert [row.name for row in result.only_a] == ["old"] and [row.name for row in result.only_b] == ["new"]
    assert by_name(result)["old"].b_s is None and by_name(result)["new"].ratio is None
    assert result.total.a_s == pytest.approx(2.001e-3) and result.total.b_s == pytest.approx(3.005e-3)


def test_kernels_are_sorted_by_their_time_in_a_and_those_of_b_alone_follow(tmp_path):
    a = write(tmp_path / "a", {"short": 2_000, "long": 3_000, "old": 1_000})
    b = write(tmp_path / "b", {"new": 2_500, "short": 9_000, "newest": 4_000, "long": 1_000})
    assert [row.name for row in compare([a], [b]).kernels] == ["long", "short", "old", "newest", "new"]


def test_without_repeats_there_is_no_verdict(tmp_path):
    result = compare([write(tmp_path / "a", {"k": 10})], [write(tmp_path / "b", {"k": 20})])
    assert by_name(result)["k"].verdict is None and by_name(result)["k"].spread_s is None
    assert "one run on each side" in result.notes[0]


def test_verdicts_from_repeats(tmp_path):
    a = [
        write(tmp_path / f"a{i}", {"steady": t, "shaky": s})
        for i, (t, s) in enumerate([(100, 50), (101, 90), (99, 70)])
    ]
    b = [
        write(tmp_path / f"b{i}", {"steady": t, "shaky": s})
        for i, (t, s) in enumerate([(120, 80), (121, 60), (119, 85)])
    ]
    rows = by_name(compare(a, b))
    assert rows["steady"].verdict == "beyond spread" and rows["shaky"].verdict == "within spread"
    assert rows["steady"].a_s == pytest.approx(100e-9)


def test_repeats_of_one_side_are_enough(tmp_path):
    a = [write(tmp_path / f"a{i}", {"k": time}) for i, time in enumerate([100, 102, 98, 101])]
    assert by_name(compare(a, [write(tmp_path / "b", {"k": 150})]))["k"].verdict == "beyond spread"
    assert by_name(compare(a, [write(tmp_path / "c", {"k": 103})]))["k"].verdict == "within spread"


def test_spread_is_students():
    """Two-sample t with pooled variance, n = 3 and 3: t(0.975, 4) = 2.776 (any table of Student's distribution)."""
    a, b = [1.0, 2.0, 3.0], [2.0, 4.0, 9.0]
    pooled = (2 * statistics.variance(a) + 2 * statistics.variance(b)) / 4
    assert spread(a, b) == pytest.approx(2.776 * (pooled * (1 / 3 + 1 / 3)) ** 0.5)
    assert spread([1.0], [2.0]) is None
    assert spread([1.0, 1.0], [2.0]) == 0


@pytest.mark.slow
def test_students_table_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    for freedom in range(1, 31):
        values = [0.0] * freedom + [1.0]
        error = (statistics.variance(values) * (1 / len(values) + 1)) ** 0.5
        assert spread(values, [0.0]) / error == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)


def test_beyond_the_table_students_distribution_is_nearly_normal():
    """scipy.stats: the normal distribution's 0.975 quantile is 1.960, Student's with 120 degrees of freedom 1.980."""
    stats = pytest.importorskip("scipy.stats")
    values = [0.0, 1.0] * 30 + [0.0]
    error = (2 * statistics.variance(values) / len(values)) ** 0.5
    assert spread(values, values) / error == pytest.approx(stats.norm.ppf(0.975), abs=1e-3)


def test_repeated_runs_are_recognised_by_name(tmp_path):
    names = [f"run_{i}_config_1_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip" for i in range(3)]
    for name in (*names, names[0].replace("_32_", "_64_"), "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in find_repeats(tmp_path / names[1])] == names
    assert find_repeats(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]


def test_bad_directions_and_empty_profiles_are_refused(tmp_path):
    good = write(tmp_path / "a", {"k": 10})
    with pytest.raises(BadValue, match="sideways"):
        compare([good], [good], "sideways")
    with pytest.raises(BadProfile, match="bprop"):
        compare([good], [good], "bprop")
    with pytest.raises(BadProfile, match="no rows"):
        compare([good], [write(tmp_path / "empty", {})])
