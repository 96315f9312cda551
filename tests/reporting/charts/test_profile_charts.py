"""Charts of profiles: numbers equal to those of the result, and reports of omitted rows.

Tests: reporting/charts/efficiency.py, reporting/charts/profiles.py.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("altair")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from paleo_lite.errors import BadValue
from paleo_lite.machines import find_device
from paleo_lite.profile_analysis.analysis import measure_efficiency
from paleo_lite.profile_analysis.compare import compare
from paleo_lite.profile_analysis.kernels import report_kernels
from paleo_lite.profile_analysis.one_file import ReadOptions
from paleo_lite.profile_analysis.timeline import Timeline
from paleo_lite.profiles.detect import open_profile
from paleo_lite.reporting.charts.comparison import comparison_chart
from paleo_lite.reporting.charts.efficiency import VALUES_AT_MOST, efficiency_chart
from paleo_lite.reporting.charts.profiles import class_chart, kernel_roofline, timeline_chart
from paleo_lite.reporting.charts.render import GROUPS, render

NAMES = ["cudnn::detail::implicit_convolve_sgemm", "cudnn::detail::dgrad_alg1_engine", "elementwise_kernel"]
NAMED = "run_{run}_config_{nodes}_2_ib_nvprof_2_resnet50_dali-gpu_{batch}_fp16_fp32_ret_0_0.gzip"


def write(path, times_ns=(2e6, 3e6, 1e6), flops=(4.29e9, None, 1e6), moved=(1e6, None, 1.44e8), names=NAMES, ops=()):
    columns = {"Kernel": names, "Sil(ns)": times_ns, "FLOPs": flops, "Bytes": moved}
    columns |= {
        "Direction": ["fprop"] * len(names),
        "Op": [*(ops or ("conv2d", "conv2d")), *["relu"] * (len(names) - 2)],
    }
    pq.write_table(pa.table(columns), path)
    return path


def report(path):
    return report_kernels(open_profile(path, None), find_device("k40m"), "fp32")


def data(chart):
    """All inline rows of a chart and its layers and panels."""
    found = []

    def walk(spec):
        if isinstance(spec, dict):
            found.extend(spec.get("data", {}).get("values", []) if isinstance(spec.get("data"), dict) else [])
            for each in spec.values():
                walk(each)
        elif isinstance(spec, list):
            for each in spec:
                walk(each)

    walk(chart.to_dict())
    return found


def subtitle(chart):
    lines = chart.to_dict()["title"]["subtitle"]
    return lines if isinstance(lines, str) else " ".join(lines)


def test_class_shares_add_up_and_have_the_colour_of_their_kind(tmp_path):
    chart = class_chart(report(write(tmp_path / "run")))
    rows = data(chart)
    assert [(row["class"], row["share"]) for row in rows] == [
        ("convolution dgrad", pytest.approx(1 / 2)),
        ("convolution implicit gemm", pytest.approx(1 / 3)),
        ("elementwise", pytest.approx(1 / 6)),
    ]
    assert GROUPS["convolution"].encode().lower() in render(chart, ".svg").lower()
    assert chart.to_dict()["title"]["text"] == "83% of the kernels' time is convolution"
    assert "run on Tesla K40m" in subtitle(chart)


def test_a_matrix_product_has_the_colour_of_the_operation_that_called_it(tmp_path):
    found = report(write(tmp_path / "run", names=["sgemm", "sgemm", "elementwise_kernel"], ops=("conv2d", "linear")))
    rows = {row["class"]: row["group"] for row in data(class_chart(found))}
    assert rows == {"convolution gemm": "convolution", "gemm": "matrix product", "elementwise": "elementwise"}
    drawn = {row["kind"]: row["group"] for row in data(kernel_roofline(found)) if "kind" in row}
    assert drawn == {"convolution_gemm": "convolution", "elementwise": "elementwise"}


def test_position_of_kernels_on_the_roofline(tmp_path):
    chart = kernel_roofline(report(write(tmp_path / "run")))
    placed = {row["name"]: row for row in data(chart) if "name" in row}
    conv = placed["cudnn::detail::implicit_convolve_sgemm"]
    assert conv["x"] == pytest.approx(4290)
    assert conv["y"] == pytest.approx(4.29e9 / 2e-3)
    assert "cudnn::detail::dgrad_alg1_engine" not in placed
    assert "not drawn: 1 of 3 kernels (50.0% of the time)" in subtitle(chart)
    assert {row["origin"] for row in placed.values()} == {"all calls counted"}


def test_kernels_of_which_a_part_is_counted_have_another_shape(tmp_path):
    names = ["sgemm", "sgemm", "elementwise_kernel"]
    chart = kernel_roofline(
        report(write(tmp_path / "run", names=names, flops=[1e9, None, 1e6], moved=[1e6, None, 1e6]))
    )
    origins = {row["name"]: row["origin"] for row in data(chart) if "name" in row}
    drawn = {row["name"]: row["y"] for row in data(chart) if "name" in row}
    assert drawn["sgemm"] == pytest.approx(1e9 / 2e-3)  # of the call that was counted alone
    assert origins == {"sgemm": "some calls counted", "elementwise_kernel": "all calls counted"}


def test_profiles_without_counts_or_times_raise(tmp_path):
    uncounted = report(write(tmp_path / "run", flops=[0.0] * 3, moved=[0.0] * 3))
    with pytest.raises(BadValue, match="nothing to draw: no kernel has FLOPs"):
        kernel_roofline(uncounted)
    with pytest.raises(BadValue, match="nothing to draw"):
        class_chart(report(write(tmp_path / "zero", times_ns=[0.0] * 3)))


def test_a_timeline_draws_shares_of_slices_and_counts_kernels():
    busy = np.array([[1e-3, 0.5e-3], [0.0, 0.25e-3]])
    chart = timeline_chart(Timeline(1e-3, ("gemm", "batch_norm"), busy, 1_234_567), "title")
    rows = data(chart)
    assert [(row["group"], row["busy"], row["low"]) for row in rows] == [
        ("matrix product", 1.0, 0.0),
        ("matrix product", 0.5, 0.0),
        ("normalisation", 0.25, 0.5),
    ]
    assert "1,234,567 kernels in 2 slices of 1 ms" in subtitle(chart)
    assert len(render(chart, ".svg")) < 5e6


def test_two_devices_are_two_rows():
    one = np.array([[1e-3, 0.5e-3]])
    chart = timeline_chart(Timeline(1e-3, ("gemm",), 2 * one, 3, by_device={0: one, 1: one}), "title")
    rows = [row for row in data(chart) if "group" in row]
    assert [(row["busy"], row["low"]) for row in rows] == [(1.0, 0.0), (0.5, 0.0)] * 2  # none of 200%
    assert "device 1" in json.dumps(chart.to_dict())


def efficiency_of(paths, **options):
    return measure_efficiency(paths, find_device("k40m"), ReadOptions("notebook"), jobs=1, **options)


@pytest.fixture
def runs(tmp_path):
    """Return runs in which batch 64 is twice as efficient as batch 32 on any number of nodes, with two repetitions."""
    for run, slower in ((0, 1.0), (1, 1.1)):
        for nodes in (1, 8):
            for batch, faster in ((32, 1), (64, 2)):
                times = [each * slower / faster for each in (2e6, 3e6, 1e6)]
                write(tmp_path / NAMED.format(run=run, nodes=nodes, batch=batch), times)
    return sorted(tmp_path.iterdir())


def test_efficiency_is_the_mean_over_profiles_that_agree_in_a_setting(runs):
    result = efficiency_of(runs)
    rows = [row for row in data(efficiency_chart(result)) if row["quantity"] == "of peak FLOP/s"]
    by_value = {row["value"]: row for row in rows}
    assert list(by_value) == ["1", "8", "32", "64"]
    assert {row["profiles"] for row in rows} == {4}
    for batch in (32, 64):
        shares = [row["flops_efficiency"] for row in result.rows if row["batch_size"] == batch]
        drawn = by_value[str(batch)]
        assert (drawn["low"], drawn["high"]) == (min(shares), max(shares))
        assert drawn["mean"] == pytest.approx(sum(shares) / 4)
    assert by_value["64"]["mean"] == pytest.approx(2 * by_value["32"]["mean"])
    assert by_value["1"]["mean"] == pytest.approx(by_value["8"]["mean"])


def test_efficiency_by_chosen_settings_and_of_one_profile(runs):
    rows = data(efficiency_chart(efficiency_of(runs, group_by=["batch_size", "nodes"])))
    assert [row["value"] for row in rows[::2]] == ["32, 1", "32, 8", "64, 1", "64, 8"]
    assert {row["profiles"] for row in rows} == {2}
    (one,) = {row["value"] for row in data(efficiency_chart(efficiency_of(runs[:1])))}
    assert one == runs[0].name


def test_many_values_are_thinned_and_the_subtitle_reports_it(runs):
    result = efficiency_of(runs[:1])
    rows = [{**result.rows[0], "batch_size": batch} for batch in range(3 * VALUES_AT_MOST)]
    many = type(result)(**{**{name: getattr(result, name) for name in result.__struct_fields__}, "rows": rows})
    chart = efficiency_chart(many)
    assert len({row["value"] for row in data(chart)}) == VALUES_AT_MOST
    assert f"{2 * VALUES_AT_MOST} values of settings are not drawn" in subtitle(chart)


def test_profiles_without_efficiencies_raise(runs):
    result = efficiency_of(runs[:1])
    empty = {"flops_efficiency": None, "bandwidth_efficiency": None}
    for rows in ([], [{**result.rows[0], **empty}]):
        bare = type(result)(**{**{name: getattr(result, name) for name in result.__struct_fields__}, "rows": rows})
        with pytest.raises(BadValue, match="nothing to draw"):
            efficiency_chart(bare)


def test_two_profiles_side_by_side(tmp_path):
    names = [*NAMES, *(f"kernel_{number}" for number in range(30))]
    ones = [1e3] * 30
    a = write(tmp_path / "a", [2e6, 3e6, 1e6, *ones], [1.0] * 33, [1.0] * 33, names)
    b = write(tmp_path / "b", [2e6, 5e6, *ones], [1.0] * 32, [1.0] * 32, [*NAMES[:2], *names[3:]])
    chart = comparison_chart(compare([open_profile(a, None)], [open_profile(b, None)]))
    rows = {row["name"]: row for row in data(chart)}
    longer = rows["cudnn::detail::dgrad_alg1_engine"]
    assert (longer["more"], longer["direction"], longer["label"]) == (pytest.approx(2.0), "longer in B", "+2 ms")
    gone = rows["elementwise_kernel"]
    assert (gone["more"], gone["direction"], gone["b"]) == (pytest.approx(-1.0), "shorter in B", "absent")
    assert [row["more"] for row in rows.values()] == sorted((row["more"] for row in rows.values()), reverse=True)
    assert chart.to_dict()["title"]["text"] == "B takes 16.6% longer than A"  # 7.03 ms and 6.03 ms
    assert "the 2 of 33 with the largest difference" in subtitle(chart)
    assert render(chart, ".png").startswith(b"\x89PNG")
