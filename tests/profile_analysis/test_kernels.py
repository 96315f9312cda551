"""Kernels of a profile: SURFBoard's table to the last printed digit, and rules for counts that the profiler lacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from measured import DATA
from paleo_lite.errors import BadProfile, BadValue, UnknownPrecision
from paleo_lite.machines import find_device
from paleo_lite.profile_analysis.kernels import mark_device_conflict, report_kernels
from paleo_lite.profile_analysis.recorded_device import MissingDevice
from paleo_lite.profiles.detect import Profile, open_profile, parse_name
from paleo_lite.profiles.pyprof import PyprofParquet
from paleo_lite.profiles.table import batch_of

SURFBOARD = DATA / "surfboard"
RUN = "run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"
K40M = find_device("k40m")  # 4.29 TFLOP/s, 288 GB/s: the ridge point is 14.9 FLOP per byte


class InMemory:
    """A reader of rows given as columns, in batches."""

    name, what = "in-memory", "rows of a test"

    def __init__(self, *batches):
        self._batches = batches

    def recognises(self, path, head):
        return False

    def batches(self, path, columns):
        for batch in self._batches:
            yield batch_of(batch, len(batch["kernel"]), columns)


def profile(*batches, name="run"):
    return Profile(Path(name), "in-memory", InMemory(*batches))


def report(*batches, **options):
    return report_kernels(profile(*batches), K40M, **options)


def by_name(result):
    return {row.name: row for row in result.kernels}


@pytest.fixture(scope="module")
def surfboard():
    path = SURFBOARD / "pyprof_kernels" / RUN
    return report_kernels(Profile(path, "pyprof", PyprofParquet(), parse_name(path.name)), K40M)


def test_kernels_of_another_device_have_no_headroom_below_its_peaks() -> None:
    known = report({"category": ["kernel"], "kernel": ["conv"], "duration_ns": [1e6], "calls": [1], "flops": [1e6],
                    "bytes": [1e6]})  # fmt: skip
    assert known.kernels[0].headroom is not None and known.kernels[0].rank == 1
    (row,) = mark_device_conflict(known, ["it was computed elsewhere"], []).kernels
    assert (row.flops_efficiency, row.bound, row.headroom, row.rank) == (None, None, None, None)


def printed_table():
    """The last table of SURFBoard's gpu_efficiency.ipynb, whole: kernel, nanoseconds, FLOPs, FLOP/s, per cent."""
    text = (SURFBOARD / "notebook_outputs" / "gpu_efficiency.txt").read_text()
    text = text[text.index("#### [12] code") : text.index("#### [13]")]
    rows = {}
    for line in text.splitlines():
        match = re.match(r"(\S+)((?:\s+[\d.]+(?:e[+-]\d+)?)+)\s*$", line)
        if match:
            rows.setdefault(match[1], []).extend(match[2].split())
    return {name: values for name, values in rows.items() if len(values) == 4}


@pytest.mark.needs_data
def test_the_notebooks_table_to_every_printed_digit(surfboard):
    printed = printed_table()
    names = {row.name for row in surfboard.kernels}
    assert len(printed) == len(names) == 66
    for name, (duration, flops, rate, percent) in printed.items():
        full = next(row.name for row in surfboard.kernels if row.name.startswith(name.removesuffix("...")))
        rows = [row for row in surfboard.kernels if row.name == full]  # of whichever operations it worked for
        time_s, counted = sum(row.time_s for row in rows), sum(row.flops or 0 for row in rows)
        assert round(time_s * 1e9) == int(duration), name
        assert f"{counted:.6e}" == flops, name
        assert f"{counted / time_s:.6e}" == rate, name
        assert f"{100 * counted / time_s / surfboard.peak.per_s:.6f}" == percent, name


@pytest.mark.needs_data
def test_the_first_four_of_the_notebook(surfboard):
    best = sorted(surfboard.kernels, key=lambda row: -(row.flops_efficiency or 0))[:4]
    assert [f"{100 * row.flops_efficiency:.6f}" for row in best] == ["34.812331", "32.977376", "30.071315", "14.808427"]


@pytest.mark.needs_data
def test_counts_missing_in_pyprof_are_null(surfboard):
    rows = by_name(surfboard)
    for name in ("cudnn::detail::dgrad_alg1_engine", "cudnn::detail::wgrad_alg1_engine"):
        assert rows[name].flops is None and rows[name].flops_efficiency is None and rows[name].bound is None
    assert surfboard.busy_s is None and surfboard.to_dict()["union_s"] is None
    assert any("no start times" in note for note in surfboard.notes)


def test_roofline_headroom_and_rank():
    result = report(
        {
            "kernel": ["sgemm_a", "bn_fw_b", "sgemm_a", "unknown_c"],
            "duration_ns": [1e9, 1e9, 1e9, 5e8],
            "flops": [4.29e11, 1e6, 4.29e11, None],  # a tenth of the peak
            "bytes": [1e9, 1.44e11, 1e9, None],  # half of the bandwidth
        }
    )
    rows = by_name(result)
    gemm, norm, unknown = rows["sgemm_a"], rows["bn_fw_b"], rows["unknown_c"]
    assert (gemm.bound, norm.bound, unknown.bound) == ("compute", "memory", None)
    assert gemm.flops_efficiency == pytest.approx(0.1) and gemm.headroom == pytest.approx(0.9)
    assert norm.headroom == pytest.approx(0.5)
    assert unknown.headroom is None and unknown.flops is None
    assert gemm.calls == 2 and gemm.share == pytest.approx(2 / 3.5)
    # 2 s x 0.9, 1 s x 0.5; kernels with unknown headroom have no rank
    assert (gemm.rank, norm.rank, unknown.rank) == (1, 2, None)


def test_counted_flops_are_separate():
    (row,) = report(
        {"kernel": ["k"] * 3, "duration_ns": [1e6, 2e6, 4e6], "flops": [5.0, 6.0, None], "bytes": [7.0, None, None]}
    ).kernels
    assert (row.counted_flops, row.counted_bytes, row.counted_s) == (5.0, 7.0, pytest.approx(1e-3))
    assert row.flops == 11 and row.flops_per_s == pytest.approx(11 / 7e-3)


def test_kernels_of_several_profiles_are_summed():
    a = profile({"kernel": ["k", "l"], "start_ns": [0, 5], "duration_ns": [10.0, 10.0], "device": [0, 0]}, name="d/a")
    b = profile({"kernel": ["k", "k"], "start_ns": [0, 90], "duration_ns": [30.0, 5.0], "device": [0, 1]}, name="d/b")
    result = report_kernels([a, b], K40M)
    assert result.path == "2 profiles of d" and result.format == "in-memory"
    assert {row.name: (row.calls, row.time_s) for row in result.kernels} == {
        "k": (3, pytest.approx(45e-9)), "l": (1, pytest.approx(10e-9))
    }  # fmt: skip
    assert result.busy_s == pytest.approx({"a": 15e-9, "b, device 0": 30e-9, "b, device 1": 5e-9})
    tables = {table.title: table for table in result.document().tables}
    assert [row["name"] for row in tables["By profile"].rows] == list(result.busy_s)


def test_unknown_kernels_are_suggested_for_measurement():
    rows = {"kernel": ["a", "b", "memcpy"], "category": ["kernel", "kernel", "memcpy"], "duration_ns": [3.0, 5.0, 9.0]}
    known = {**rows, "flops": [1.0, None, None], "bytes": [1.0, None, None]}
    (table,) = [t for t in report(known).document().tables if t.title.startswith("Kernels to measure next")]
    assert [row["name"] for row in table.rows] == ["b"] and "--next-command nvprof" in table.title
    everything = {**rows, "flops": [1.0, 1.0, None], "bytes": [1.0, 1.0, None]}
    assert not [t for t in report(everything).document().tables if t.title.startswith("Kernels to measure")]


def test_counted_zero_is_not_absent():
    (row,) = report({"kernel": ["copy"], "duration_ns": [10.0], "flops": [0.0], "bytes": [8.0]}).kernels
    assert row.flops == 0 and row.flops_efficiency == 0 and row.bound == "memory"


def test_bound_is_unknown_if_some_calls_have_no_flops():
    result = report(
        {"kernel": ["k"] * 5, "duration_ns": [1e6] * 5, "flops": [1e6, *[None] * 4], "bytes": [1.0, *[None] * 4]}
    )
    (row,) = result.kernels
    assert row.known_share == pytest.approx(0.2) and row.bound is None and row.headroom is None
    assert any("lower bounds" in note for note in result.notes)


@pytest.mark.parametrize(("known", "bound"), [(20, None), (25, "compute"), (30, "compute")])
def test_a_quarter_of_the_time_is_enough_for_a_bound(known, bound):
    """What `KernelRow.bound` promises: None where known calls make up less than a quarter of the time."""
    counts = [1e6] * known + [None] * (100 - known)
    (row,) = report(
        {"kernel": ["k"] * 100, "duration_ns": [1e6] * 100, "flops": counts, "bytes": [c and 1.0 for c in counts]}
    ).kernels
    assert row.bound == bound


@pytest.mark.parametrize(("known", "said"), [(100, False), (98, True), (95, True)])
def test_calls_without_flops_make_rates_lower_bounds(known, said):
    """Of a hundred equal calls only some are counted, so that their FLOP/s are a lower bound."""
    counts = [1e6] * known + [None] * (100 - known)
    result = report({"kernel": ["k"] * 100, "duration_ns": [1e6] * 100, "flops": counts})
    assert any("lower bounds" in note and "100%" in note for note in result.notes) == said


@pytest.mark.parametrize(("unnamed_ns", "share"), [(25.0, "25%"), (2.0, "3%"), (0.5, None), (0.0, None)])
def test_time_of_no_operation_is_noted_for_pyprofs_forward_pass(unnamed_ns, share):
    rows = {
        "kernel": ["a", "b", "c"],
        "op": ["conv2d", None, ""],
        "direction": ["fprop"] * 3,
        "duration_ns": [75.0, unnamed_ns, 0.0],
    }
    for name, direction in (("pyprof", "fprop"), ("pyprof", "all"), ("in-memory", "fprop")):
        made = Profile(Path("run"), name, InMemory(rows))
        notes = [note for note in report_kernels(made, K40M, direction=direction).notes if "no operation" in note]
        expected = share is not None and (name, direction) == ("pyprof", "fprop")
        assert len(notes) == expected
        assert not notes or notes[0].startswith(f"{share} of this time belongs to no operation")


def test_kernels_without_time_have_no_rates():
    rows = by_name(report({"kernel": ["a", "b"], "duration_ns": [0.0, 4.0], "flops": [8.0, 8.0]}))
    assert (rows["a"].known_share, rows["a"].flops_per_s, rows["a"].flops_efficiency) == (0.0, None, None)
    assert (rows["b"].known_share, rows["b"].flops_per_s) == (1.0, 2e9)
    assert rows["b"].flops_efficiency == pytest.approx(2e9 / 4.29e12, rel=1e-3)


def test_occupancy_is_no_headroom():
    """Kernels reach their peak at low occupancy, too (Volkov 2010): it says nothing of what could be saved."""
    result = report(
        {"kernel": ["a", "b"], "duration_ns": [1e6, 1e6], "metric.achieved_occupancy": [0.9, 0.2]},
        {"kernel": ["a", "b"], "duration_ns": [3e6, 1e6], "metric.achieved_occupancy": [0.5, None]},
    )
    rows = by_name(result)
    assert rows["a"].occupancy == pytest.approx((0.9 * 1 + 0.5 * 3) / 4)  # weighted by time
    assert rows["b"].occupancy == pytest.approx(0.2)
    assert [(row.headroom, row.rank) for row in rows.values()] == [(None, None), (None, None)]


def test_overlapping_kernels_count_once_in_the_union():
    result = report(
        {"kernel": ["a", "a"], "start_ns": [0, 50], "duration_ns": [100.0, 100.0], "device": [0, 0]},
        {"kernel": ["a", "a"], "start_ns": [0, 140], "duration_ns": [100.0, 20.0], "device": [1, 0]},
    )
    assert result.time_s == pytest.approx(320e-9)
    assert result.busy_s == pytest.approx({"0": 160e-9, "1": 100e-9})
    assert result.union_s == pytest.approx(260e-9)


def test_templates_are_grouped_unless_full_names_are_requested():
    rows = {"kernel": ["void f<int>(int)", "void f<float>(float)"], "duration_ns": [1.0, 2.0]}
    assert [row.name for row in report(rows).kernels] == ["f"]
    assert [row.name for row in report(rows, full_names=True).kernels] == rows["kernel"][::-1]


def test_host_rows_are_omitted():
    result = report(
        {
            "kernel": ["k", "cudaLaunchKernel", "aten::add"],
            "category": ["kernel", "api", "cpu"],
            "duration_ns": [1, 5, 9],
        }
    )
    assert [row.name for row in result.kernels] == ["k"]


def test_counters_without_durations():
    result = report({"kernel": ["a"], "calls": [7], "metric.ipc": [1.5]})
    (row,) = result.kernels
    assert row.calls == 7 and row.metrics == {"ipc": 1.5}
    assert row.time_s is None and row.share is None and row.rank is None and result.time_s is None
    assert "no durations" in result.notes[0]


@pytest.mark.parametrize(
    ("batches", "options", "error", "message"),
    [
        ([], {}, BadProfile, "no rows"),
        ([{"kernel": [], "duration_ns": []}], {}, BadProfile, "no rows"),
        ([{"kernel": ["k"]}], {}, BadProfile, "duration"),
        ([{"kernel": ["k"], "duration_ns": [float("nan")]}], {}, BadProfile, "nan"),
        ([{"kernel": ["k"], "duration_ns": [-5.0]}], {}, BadProfile, "-5"),
        ([{"kernel": ["x"], "category": ["cpu"], "duration_ns": [1.0]}], {}, BadProfile, "nothing in this"),
        ([{"kernel": ["k"], "duration_ns": [1.0]}], {"direction": "bprop"}, BadProfile, "bprop"),
        ([{"kernel": ["k"], "duration_ns": [1.0]}], {"direction": "sideways"}, BadValue, "sideways"),
        ([{"kernel": ["k"], "duration_ns": [1.0]}], {"precision": "fp16"}, UnknownPrecision, "fp16"),
    ],
)
def test_bad_rows_and_options_are_one_sentence(batches, options, error, message):
    with pytest.raises(error, match=message) as raised:
        report(*batches, **options)
    assert "\n" not in str(raised.value)


def test_json_has_the_documented_fields():
    (row,) = report({"kernel": ["sgemm_sm35_x"], "duration_ns": [1e6], "flops": [1e6], "bytes": [1e3]}).to_dict()[
        "kernels"
    ]
    assert {
        "name",
        "class",
        "calls",
        "time_s",
        "share",
        "flops",
        "flops_per_s",
        "flops_efficiency",
        "bound",
        "rank",
    } <= set(row)
    assert row["class"] == "gemm" and row["time_s"] == pytest.approx(1e-3)


def test_classes_are_sums_of_their_kernels_longest_first():
    rows = {
        "kernel": ["sgemm_a", "sgemm_b", "sgemm_a", "elementwise_kernel"], "calls": [3, 1, 2, 4],
        "duration_ns": [3.0, 2.0, 1.0, 24.0],
    }  # fmt: skip
    first, second = report(rows).by_class()
    assert (first["kernels"], first["calls"], first["share"]) == (1, 4, pytest.approx(24 / 30))
    assert (second["class"], second["kernels"], second["calls"]) == ("gemm", 2, 6)
    assert (second["time_s"], second["share"]) == (pytest.approx(6e-9), pytest.approx(6 / 30))
    (untimed,) = report({"kernel": ["sgemm_a"], "calls": [7], "metric.ipc": [1.5]}).by_class()
    assert (untimed["calls"], untimed["time_s"], untimed["share"]) == (7, 0.0, None)


def test_the_throughput_of_device_memory_gives_the_bound_without_a_device(tmp_path):
    # Nsight Compute's "GPU Speed Of Light Throughput" of two kernels of vLLM on an L4 generation card
    path = tmp_path / "sol.txt"
    section = """\
  {name} (32, 1, 32)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 8.9
    Section: GPU Speed Of Light Throughput
    ----------------------- ------------- ------------
    Metric Name               Metric Unit Metric Value
    ----------------------- ------------- ------------
    DRAM Throughput                     %        {share}
    Duration                      usecond        {time}
    ----------------------- ------------- ------------

"""
    path.write_text(
        section.format(name="paged_attention_v2_kernel", share="94.59", time="272.16")
        + section.format(name="paged_attention_v2_reduce_kernel", share=" 4.59", time="  3.36")
    )
    report = report_kernels(open_profile(path), MissingDevice(path))
    assert [(row.bound, row.headroom) for row in report.kernels] == [
        ("memory", pytest.approx(0.0541)),
        (None, pytest.approx(0.9541)),
    ]
    document = report.document()
    assert document.title.endswith("paged_attention_v2_kernel at 94.6% of the peak memory bandwidth")
    assert not any("measure next" in table.title for table in document.content)
