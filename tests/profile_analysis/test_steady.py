"""Steady iterations: figures of SURFBoard's files, counting rules compared with pyprof's counts, synthetic loops.

Tests: profile_analysis/analysis.py, profile_analysis/figures.py, profile_analysis/one_file.py,
profile_analysis/parameters.py, profile_analysis/iteration_work.py.
"""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counted import MOST_WHEN_DOUBLED, counted, elements_of
from measured import DATA
from paleo_lite.errors import BadProfile, BadValue
from paleo_lite.machines import find_device
from paleo_lite.profile_analysis import GROUPINGS, steady
from paleo_lite.profile_analysis.analysis import measure_efficiency
from paleo_lite.profile_analysis.durations import read_durations
from paleo_lite.profile_analysis.figures import Peaks, _operator_row, steady_figures
from paleo_lite.profile_analysis.iteration_work import OUTSIDE_MODULES, OperatorWork, _infer_shapes
from paleo_lite.profile_analysis.one_file import ReadOptions, analyse_file
from paleo_lite.profile_analysis.parameters import (
    UNKNOWN,
    CountedOperation,
    count_printed,
    input_shape,
    parse_parameters,
)
from paleo_lite.profile_analysis.runs import COLUMNS, FIELDS, Runs, Signature, concatenate_runs, find_runs
from paleo_lite.profile_analysis.steady import analyse_steady_state, find_iterations, parse_steps
from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.table import batch_of
from strategies import CUTS, pieces

pytestmark = pytest.mark.slow

SURFBOARD = DATA / "surfboard"
FOLDER = SURFBOARD / "pyprof_kernels"
ONE = FOLDER / "run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"
PEAK = 4.29e12
CONV = "N=2,C=4,H=8,W=8,K=6,P=8,Q=8,R=3,S=3,ph=1,pw=1,U=1,V=1,dh=1,dw=1,g=1,fp32,"
CONV_FORWARD = 2 * 2 * 6 * 8 * 8 * 4 * 3 * 3  # two per multiply-accumulate
LINEAR = "M=5,N=2,K=6,fp32,"


@pytest.fixture(scope="module")
def surfboard():
    durations = read_durations([SURFBOARD / "derived" / "cartesius_batch_durations_recovered.csv"])
    device = find_device("k40m")
    files = sorted(FOLDER.glob("run_0_config_8_*"))  # on eight nodes; the notebook reads all 64
    return measure_efficiency(files, device, ReadOptions(durations=durations), group_by=["batch_size"])


@pytest.mark.thorough
@pytest.mark.needs_data
@pytest.mark.slow
def test_times_of_every_file(surfboard):
    expected = {32: ((0.2345, 0.2375), (0.5205, 0.5275)), 64: ((0.4235, 0.4305), (0.9215, 0.9385))}
    assert len(surfboard.rows) == 16
    for row in surfboard.rows:
        forward, backward = expected[row["batch_size"]]
        assert forward[0] <= row["forward_s"] <= forward[1], row["file"]
        assert backward[0] <= row["backward_s"] <= backward[1], row["file"]
        assert (row["iterations"], row["forwards"], row["backwards"], row["matched"]) == (51, 50, 25, 25)
        assert row["busy_s"] is None and any("no start times" in note for note in row["notes"])


@pytest.mark.needs_data
@pytest.mark.slow
def test_convolutions_against_the_peak(surfboard):
    groups = {group["batch_size"]: group for group in surfboard.groups}
    for batch, forward, backward in ((32, 0.345, 0.276), (64, 0.392, 0.320)):
        assert groups[batch]["conv_of_peak_forward"] == pytest.approx(forward, abs=0.0015)
        assert groups[batch]["conv_of_peak_backward"] == pytest.approx(backward, abs=0.0015)


@pytest.mark.needs_data
@pytest.mark.slow
def test_convolution_over_the_batch_duration(surfboard):
    row = next(row for row in surfboard.rows if row["file"] == ONE.name)
    assert row["time_basis"] == "batch duration"
    assert row["batch_duration_s"] == pytest.approx(0.7568, abs=5e-5)
    assert row["conv_flops"] == pytest.approx(777.2e9, abs=0.05e9)
    assert row["conv_of_peak"] == pytest.approx(0.239, abs=5e-4)


@pytest.mark.needs_data
@pytest.mark.slow
def test_near_the_derived_totals(surfboard):
    """Compare with means over 24 iterations computed by other code; ours are medians."""
    import csv

    with (SURFBOARD / "derived" / "k40m_resnet50_totals.csv").open() as file:
        derived = {row["file"]: row for row in csv.DictReader(file)}
    for row in surfboard.rows:
        other = derived.get(row["file"])
        if other is not None:
            assert row["forward_s"] * 1e3 == pytest.approx(float(other["fwd_ms"]), rel=2e-3)
            assert row["backward_s"] * 1e3 == pytest.approx(float(other["bwd_ms"]), rel=2e-3)
            assert row["conv_forward_s"] * 1e3 == pytest.approx(float(other["fwd_conv_ms"]), rel=4e-3)


@pytest.mark.needs_data
def test_rules_match_the_counts_of_pyprof():
    """Where pyprof has a count for a forward convolution or product by one kernel, the rules give the same."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(ONE)
    counted = frame[(frame["FLOPs"] > 0) & (frame["Direction"] == "fprop") & frame["Op"].isin(["conv2d", "linear"])]
    pairs = counted[["Op", "Params", "FLOPs", "Bytes"]].drop_duplicates()
    assert len(pairs) > 20
    for op, params, flops, moved in pairs.itertuples(index=False):
        found = count_printed(op, params, "fprop")
        assert found.flops == flops
        if op == "conv2d":
            assert found.bytes == moved


@pytest.mark.thorough
@pytest.mark.needs_data
def test_any_split_of_a_real_file_gives_the_same_iteration():
    rows = list(open_profile(ONE).batches(COLUMNS))
    assert len(rows) == 1
    whole = analyse_steady_state(find_runs(rows[0]))
    random = np.random.default_rng(1)
    for _ in range(3):
        cuts = [0, *sorted(random.integers(0, rows[0].num_rows, 40).tolist()), rows[0].num_rows]
        parts = [find_runs(rows[0].slice(a, b - a)) for a, b in pairwise(cuts)]
        assert analyse_steady_state(concatenate_runs(parts)) == whole


def loop(iterations, labelled=None, starts=False, tuning=0):
    """Rows of a training loop: forward on thread 1, backward on thread 2; some iterations' backward is labelled."""
    rows = []
    for number in range(iterations):
        marked = labelled is None or number in labelled
        for _ in range(tuning if number == 0 else 0):
            rows.append(("fft2d", "conv2d", CONV, "fprop", 1, 500.0, None, None))
        rows += [
            ("winogradForwardData", "conv2d", CONV, "fprop", 1, 10.0, None, None),
            ("load", None, None, None, 3, 2.0, None, None),
            ("sgemm", "conv2d", CONV, "fprop", 1, 30.0 + number % 3, None, None),
            ("pool", "max_pool2d", "T=[(2,6,8,8)],['float32']", "fprop", 1, 5.0, None, None),
            ("gemm", "linear", LINEAR, "fprop", 1, 8.0, 120.0, 200.0),
        ]
        back = "bprop" if marked else "fprop"
        for kernel, op, params, time in [("gemm_nt", "linear", LINEAR, 9.0), ("wgrad_alg1", "conv2d", CONV, 60.0)]:
            rows.append((kernel, op if marked else None, params if marked else None, back, 2, time, None, None))
        rows.append(("add", "add_", "T=[(5,)],fp32,", "fprop", 1, 4.0, 5.0, 40.0))
    names = ("kernel", "op", "params", "direction", "thread", "duration_ns", "flops", "bytes")
    columns = dict(zip(names, map(list, zip(*rows))))
    if starts:  # every second row begins in the middle of the one before
        ends = np.cumsum(columns["duration_ns"])
        columns["start_ns"] = [
            int(end - time - (time / 2 if i % 2 else 0))
            for i, (end, time) in enumerate(zip(ends, columns["duration_ns"]))
        ]
    return batch_of(columns, len(rows), (*names, "start_ns"))


def test_iterations_of_a_loop():
    steady = analyse_steady_state(find_runs(loop(12, labelled={9, 10, 11}, tuning=40)))
    assert (steady.iterations, steady.forwards, steady.backwards, steady.matched) == (12, 11, 3, 3)
    assert steady.forward_s == pytest.approx(54e-9)  # 10 + 31 + 5 + 8
    assert steady.backward_s == pytest.approx(69e-9)
    assert steady.update_s == pytest.approx(4e-9)
    assert steady.other_s == pytest.approx(2e-9)
    assert steady.conv_flops_forward == CONV_FORWARD  # once, though two kernels do it
    assert steady.conv_flops_backward == CONV_FORWARD  # its only kernel computes weight gradients
    linear = 2 * 5 * 2 * 6
    assert steady.flops == 2 * CONV_FORWARD + 3 * linear + 5
    assert steady.profiler_flops == 125
    assert [item.op for item in steady.missing] == ["max_pool2d", "load"]
    assert any("iteration 1 of 12 left out" in note for note in steady.notes)


def test_the_runs_of_an_iteration_have_its_number():
    """The first run of the loop is in iteration 0; those before it, of which there are none here, have -1."""
    runs = find_runs(loop(12, labelled={9, 10, 11}, tuning=40))
    found = find_iterations(runs)
    assert found is not None and set(found.number.tolist()) == set(range(12))
    rows = runs.table["row"]
    for number, start in enumerate(found.starts.tolist()):
        assert found.number[rows == start].tolist() == [number]


def test_overlapping_kernels_count_once():
    steady = analyse_steady_state(find_runs(loop(8, starts=True)))
    batch = loop(8, starts=True)
    length = batch.num_rows // 8
    busy = []
    for number in range(8):
        covered = set()
        part = batch.slice(number * length, length)
        for start, time in zip(part["start_ns"].to_pylist(), part["duration_ns"].to_pylist()):
            covered |= set(range(start, start + int(time)))
        busy.append(len(covered))
    assert steady.busy_s == pytest.approx(np.median(busy) * 1e-9)
    assert steady.busy_s < steady.kernel_s
    assert steady_figures(steady, PEAK)["time_basis"] == "busy time"
    assert steady_figures(steady, PEAK, 1.0)["flops_per_s"] == steady.flops


def test_kernels_at_one_time_do_not_exceed_the_peak():
    """Half of the time for a rate of nine tenths of the peak would be 180% of it."""
    steady = analyse_steady_state(find_runs(loop(8, starts=True)))
    steady = msgspec.structs.replace(steady, busy_s=steady.kernel_s / 2)
    peak_per_s = steady.flops / steady.kernel_s / 0.9
    figures = steady_figures(steady, peak_per_s)
    assert figures["time_basis"] == "sum of kernel times"
    assert figures["flops_per_s"] == pytest.approx(0.9 * peak_per_s)
    assert "in which they would reach 180.0% of peak FLOP/s" in figures["notes"][-1]
    assert steady_figures(steady, 2 * peak_per_s)["notes"] == steady.notes


def test_products_alike_in_a_row_are_counted_each():
    """Two linear layers of one shape follow each other: 2 * 5 * 2 * 6 FLOPs and 12 + 30 + 10 numbers in fp32, twice."""
    columns = {
        "kernel": ["sgemm", "gemm", "gemm"] * 8, "op": ["conv2d", "linear", "linear"] * 8,
        "params": [CONV, LINEAR, LINEAR] * 8, "duration_ns": [50.0, 8.0, 8.0] * 8,
    }  # fmt: skip
    steady = analyse_steady_state(find_runs(batch_of(columns, 24, tuple(columns))))
    assert steady.flops == CONV_FORWARD + 2 * 120
    assert steady.bytes == 4 * 1496 + 2 * 4 * 52


@pytest.mark.parametrize(("unknown_ns", "said"), [(5.0, False), (15.0, True), (60.0, True)])
def test_rates_are_lower_bounds_where_less_than_nine_tenths_are_known(unknown_ns, said):
    """Operations with known FLOPs take 95, 85 and 40 of 100 ns."""
    columns = {
        "kernel": ["sgemm", "mystery"] * 8, "op": ["conv2d", None] * 8, "params": [CONV, None] * 8,
        "duration_ns": [100.0 - unknown_ns, unknown_ns] * 8,
    }  # fmt: skip
    steady = analyse_steady_state(find_runs(batch_of(columns, 16, tuple(columns))))
    assert steady.flops == CONV_FORWARD and steady.flops_covered == pytest.approx(1 - unknown_ns / 100)
    assert any("FLOPs are known for" in note and "lower bounds" in note for note in steady.notes) == said


def test_without_labels_only_the_iteration_is_known():
    columns = {"kernel": ["a", "b", "b", "c"] * 10, "duration_ns": [5.0, 1.0, 2.0, 7.0] * 10}
    steady = analyse_steady_state(find_runs(batch_of(columns, 40, tuple(columns))))
    assert steady.iterations == 10
    assert steady.kernel_s == pytest.approx(15e-9)
    assert steady.forward_s is steady.backward_s is steady.update_s is None
    assert steady.flops is steady.bytes is steady.compute_s is None and len(steady.missing) == 3
    assert "FLOPs are unknown for every kernel" in steady.notes
    assert any("no backward pass is labelled" in note for note in steady.notes)


def test_profile_without_repetition():
    columns = {"kernel": ["a", "b", "c"], "duration_ns": [5.0, 1.0, 2.0]}
    steady = analyse_steady_state(find_runs(batch_of(columns, 3, tuple(columns))))
    assert steady.iterations == 1 and steady.kernel_s == pytest.approx(8e-9)
    assert any("no iterations were found" in note for note in steady.notes)
    assert not any("backward" in note for note in steady.notes)  # of what is not a step no pass is missed


def test_layers_that_repeat_are_no_iterations():
    """A block that comes back four times in a pass comes back at uneven distances, for the head follows the last."""
    one = [("block", 10.0)] * 0 + [("mul", 3.0), ("block", 10.0)] * 4 + [("head", 30.0), *[("grad", 9.0)] * 8]
    kernels, durations = map(list, zip(*(one * 6)))
    steady = analyse_steady_state(
        find_runs(batch_of({"kernel": kernels, "duration_ns": durations}, len(kernels), None))
    )
    assert steady.iterations == 6
    assert steady.kernel_s == pytest.approx(sum(time for _, time in one) * 1e-9)


@given(CUTS, st.booleans())
def test_any_split_gives_the_same_runs(cuts, starts):
    whole = loop(9, labelled={5, 6, 7, 8}, starts=starts, tuning=5)
    parts = [find_runs(whole.slice(start, stop - start)) for start, stop in pieces(cuts, whole.num_rows)]
    expected = find_runs(whole)
    found = Runs()
    for part in parts:
        found = concatenate_runs([found, part])
    for merged in (found, concatenate_runs(parts)):
        assert [merged.signatures[i] for i in merged.table["signature"]] == [
            expected.signatures[i] for i in expected.table["signature"]
        ]
        for name in FIELDS.keys() - {"signature"}:
            assert (merged.table[name] == expected.table[name]).all(), name
        assert all(merged.mixes[int(mix)] == expected.mixes[int(mix)] for mix in expected.table["mix"])
        if starts:
            assert (merged.spans_ns == expected.spans_ns).all()
    assert analyse_steady_state(found) == analyse_steady_state(expected)


@pytest.mark.parametrize(
    ("op", "params", "shape"),
    [
        ("conv2d", CONV, (2, 4, 8, 8)),
        ("conv2d", "N=2,C=4,H=8,fp32,", None),  # without the width
        ("linear", LINEAR, (2, 6)),
        ("linear", "M=5,K=6,fp32,", None),
        ("linear", CONV, (2, 6)),  # N and K are named
        ("relu", "T=[(2,6,8,8),(3,)],['float32']", (2, 6, 8, 8)),
        ("relu", CONV, None),
        ("sort", "T=[(2,6)],['float32']", None),  # of no known kind
        ("aten::relu", '[[2,6,8,8]] ["float"]', (2, 6, 8, 8)),
        ("aten::relu", "[[]] []", None),
    ],
)
def test_shape_of_the_first_input(op, params, shape):
    assert input_shape(op, params) == shape


@pytest.mark.parametrize(("rows", "precision"), [(8, None), (9, "fp16"), (10, "fp16")])
def test_precision_is_that_of_nine_tenths_of_the_products(rows, precision):
    """Of `rows` + 1 rows that are multiplied by one matrix, one is in fp32."""
    wide, narrow = ('[[{0},4],[4,4]] ["{1}","{1}"]'.format(*one) for one in ((1, "float"), (rows, "c10::Half")))
    columns = {
        "kernel": ["sgemm", "hgemm"] * 8, "op": ["aten::mm", "aten::mm"] * 8, "params": [wide, narrow] * 8,
        "duration_ns": [5.0, 7.0] * 8,
    }  # fmt: skip
    steady = analyse_steady_state(find_runs(batch_of(columns, 16, tuple(columns))))
    assert steady.flops == 2 * 4 * 4 * (rows + 1)
    assert steady.precision == precision


@pytest.mark.parametrize("first", [0, 5])
def test_kernels_of_one_execution_are_one_product(first):
    """Two kernels of a product that is split, and one of another product: executions have numbers from 0."""
    params = '[[9,4],[4,4]] ["float","float"]'
    columns = {
        "kernel": ["sgemm", "sgemm", "relu", "sgemm"], "op": ["aten::mm", "aten::mm", "aten::relu", "aten::mm"],
        "params": [params, params, '[[9,4]] ["float"]', params], "duration_ns": [5.0, 5.0, 1.0, 5.0],
        "execution": [first, first, first + 1, first + 2],
    }  # fmt: skip
    steady = analyse_steady_state(find_runs(batch_of(columns, 4, tuple(columns))))
    assert steady.flops == 2 * (2 * 9 * 4 * 4) + 9 * 4
    columns["execution"] = [None] * 4  # without numbers each kernel is a product
    steady = analyse_steady_state(find_runs(batch_of(columns, 4, tuple(columns))))
    assert steady.flops == 3 * (2 * 9 * 4 * 4) + 9 * 4


def test_kernels_without_an_operation_begin_no_iteration():
    """A copy that runs before each of two operations repeats at even distances, too."""
    columns = {
        "kernel": ["copy", "sgemm", "copy", "relu"] * 8, "op": [None, "conv2d", None, "relu"] * 8,
        "duration_ns": [4.0, 50.0, 4.0, 6.0] * 8,
    }  # fmt: skip
    assert analyse_steady_state(find_runs(batch_of(columns, 32, tuple(columns)))).iterations == 8


def test_output_of_pooling_is_the_input_of_the_next_operation():
    pool = Signature(1, "fprop", "max_pool2d", "T=[(2,6,8,8)],['float32']", None)
    conv = Signature(1, "fprop", "conv2d", "N=2,C=6,H=4,W=4,K=7,P=4,Q=4,R=3,S=3,g=1,fp32,", None)
    relu = Signature(1, "fprop", "relu", "T=[(2,7,4,4)],['float32']", None)
    unknown = Signature(1, "fprop", "sort", None, None)
    assert _infer_shapes([pool, conv, relu], [True] * 3) == [(2, 6, 4, 4), (2, 7, 4, 4), None]
    # Operations without shapes are passed over, but not more than four operations are looked at.
    assert _infer_shapes([pool, *[unknown] * 3, conv], [True] * 5)[0] == (2, 6, 4, 4)
    assert _infer_shapes([pool, *[unknown] * 4, conv], [True] * 6)[0] is None
    assert _infer_shapes([pool, relu, conv], [True, False, True])[0] == (2, 6, 4, 4)  # only the forward pass follows


@pytest.mark.parametrize(("content", "message"), [(b"", "empty"), (b"no profile", "profile"), (None, "")])
def test_a_file_that_is_no_profile_is_an_error_of_its_own(tmp_path, content, message):
    path = tmp_path / "run.csv"
    if content is not None:
        path.write_bytes(content)
    error = analyse_file(path).error
    assert str(path) in error and message in error
    assert "internal error" not in error


@pytest.mark.parametrize(
    ("labelled", "note"), [(range(8), None), ({4, 5, 6}, "backward: labelled in 3 of 8 iterations")]
)
def test_iterations_without_a_labelled_backward_pass_are_noted(labelled, note):
    steady = analyse_steady_state(find_runs(loop(8, labelled=set(labelled))))
    assert [text for text in steady.notes if "labelled in" in text] == ([note] if note else [])


@pytest.mark.parametrize(
    ("time_s", "flops", "moved", "rates", "bound", "of_roofline"),
    [  # of 4.29 TFLOP/s and 288 GB/s: 10 GFLOP take 2.33 ms, and 1 GB takes 3.47 ms
        (0.01, 10e9, 1e9, (1e12, 1e11), "memory", 0.347),
        (0.01, 20e9, 1e9, (2e12, 1e11), "compute", 0.466),
        (0.01, 10e9, None, (1e12, None), None, None),
        (0.01, None, 1e9, (None, 1e11), None, None),
        (0.0, 10e9, 1e9, (None, None), None, None),
    ],
)
def test_an_operation_is_compared_with_its_roofline(time_s, flops, moved, rates, bound, of_roofline):
    device = find_device("k40m")
    operator = OperatorWork("aten::mm", 3, time_s, 0.5, flops, moved)
    row = _operator_row(operator, Peaks(device, device.find_peak("fp32")), None)
    assert (row["flops_per_s"], row["bandwidth_bytes_per_s"]) == rates
    assert row["of_peak"] == (None if rates[0] is None else pytest.approx(rates[0] / 4.29e12, rel=1e-3))
    assert row["bound"] == bound
    assert row["of_roofline"] == (None if of_roofline is None else pytest.approx(of_roofline, rel=2e-3))
    assert (row["op"], row["calls"], row["share"], row["above_peak"]) == ("aten::mm", 3, 0.5, None)


def test_zero_rows_and_no_time():
    with pytest.raises(BadProfile, match="no kernels"):
        analyse_steady_state(Runs())
    with pytest.raises(BadProfile, match="no time"):
        analyse_steady_state(find_runs(batch_of({"kernel": ["a"], "duration_ns": [0.0]}, 1, None)))


@pytest.mark.parametrize(
    ("op", "params", "direction", "kernels", "after", "expected"),
    [
        ("conv2d", CONV, "fprop", ["winograd", "sgemm"], None, CountedOperation(CONV_FORWARD, 4.0 * (512 + 216 + 768))),
        (
            "conv2d",
            CONV,
            "bprop",
            ["dgrad_engine", "wgrad_alg1"],
            None,
            CountedOperation(2 * CONV_FORWARD, 4.0 * 2 * 1496),
        ),
        ("conv2d", CONV, "bprop", ["cudnn::wgrad_alg0_engine"], None, CountedOperation(CONV_FORWARD, 4.0 * 1496)),
        ("conv2d", CONV.replace("fp32", "fp16"), "fprop", [], None, CountedOperation(CONV_FORWARD, 2.0 * 1496)),
        (
            "conv2d",
            CONV.replace("g=1", "g=2"),
            "fprop",
            [],
            None,
            CountedOperation(CONV_FORWARD / 2, 4.0 * (512 + 108 + 768)),
        ),
        ("linear", LINEAR, "fprop", [], None, CountedOperation(120.0, 4.0 * (12 + 30 + 10))),
        # forward stores the index of each maximum, 8 bytes; the window is not recorded, so FLOPs are unknown
        (
            "max_pool2d",
            "T=[(2,6,8,8)],['float32']",
            "fprop",
            [],
            (2, 6, 4, 4),
            CountedOperation(None, 4.0 * (768 + 192) + 8 * 192),
        ),
        (
            "adaptive_avg_pool2d",
            "T=[(2,6,8,8)],['float32']",
            "fprop",
            [],
            (2, 6),
            CountedOperation(768.0, 4.0 * (768 + 12)),
        ),
        ("max_pool2d", "T=[(2,6,8,8)],['float32']", "fprop", [], None, UNKNOWN),
        ("max_pool2d", "T=[(2,6,8,8)],['float32']", "fprop", [], (2, 7, 4, 4), UNKNOWN),
        ("conv2d", CONV.replace("g=1", "g=0"), "fprop", [], None, UNKNOWN),
        ("conv2d", CONV.replace("C=4,", ""), "fprop", [], None, UNKNOWN),
        ("conv2d", CONV.replace("fp32", "int8"), "fprop", [], None, UNKNOWN),
        ("type", "T=[(5,)],['float16']", "fprop", [], None, UNKNOWN),
        ("conv2d", "N=__import__('os').getpid()", "fprop", [], None, UNKNOWN),
    ],
)
def test_operations_from_their_parameters(op, params, direction, kernels, after, expected):
    assert count_printed(op, params, direction, kernels, after) == expected


@given(st.sampled_from(["conv2d", "linear", "batch_norm", "max_pool2d", "adaptive_avg_pool2d", "relu"]), st.text())
def test_no_text_of_parameters_is_too_odd(op, text):
    for params in (text, CONV + text, f"T=[{text}],fp32", "N=" + text):
        found = count_printed(op, params, "bprop", [], (1, 1))
        assert found.flops is None or found.flops >= 0


def test_parameters_are_read_as_data():
    found = parse_parameters("T=[(32,1000),(32,)],['float32','int64']")
    assert found.tensors == [(32, 1000), (32,)] and found.precision == "fp32"
    assert parse_parameters("T=[" + "(1,2)," * 5000 + "]").tensors == []


@pytest.mark.thorough
@pytest.mark.needs_data
def test_a_chrome_trace_has_a_steady_iteration():
    """A Chrome trace has start times and no labels."""
    folder = DATA / "profiles"
    trace = next((folder / "torch_chrome_trace_resnet50").iterdir())
    finding = analyse_file(trace)
    assert not finding.error
    assert finding.steady.iterations == 6  # its six ProfilerStep marks
    assert 0 < finding.steady.busy_s <= finding.steady.kernel_s * (1 + 1e-9)


@pytest.mark.parametrize(("text", "numbers"), [("3", [3]), ("2:5", [2, 3, 4, 5]), ("0", [0]), (" 4:4 ", [4])])
def test_selected_steps(text, numbers):
    assert list(parse_steps(text)) == numbers


@pytest.mark.parametrize("text", ["", "5:2", "-1", "1:2:3", "a", "1,2"])
def test_invalid_steps_are_refused(text):
    with pytest.raises(BadValue, match="`--steps` must be a number or a range such as 2:5"):
        parse_steps(text)


def layered(*rows: tuple[str, str, str | None, str, float]) -> Runs:
    """Executions of operations: name, params, layer, kernel, duration."""
    names = ("category", "kernel", "op", "params", "layer", "duration_ns", "execution")
    columns = [
        ("kernel", kernel, op, params, layer, duration, place)
        for place, (op, params, layer, kernel, duration) in enumerate(rows)
    ]
    return find_runs(batch_of(dict(zip(names, map(list, zip(*columns)))), len(rows), names))


MM, ADD = '[[8,4],[4,2]] ["c10::BFloat16","c10::BFloat16"]', '[[8,2],[8,2]] ["float","float"]'


def test_time_is_summed_by_operation_shape_module_and_kernels():
    runs = layered(
        ("aten::mm", MM, "Net/Linear_0", "gemm_a", 10.0),
        ("aten::mm", MM.replace("[[8,", "[[16,"), "Net/Linear_1", "gemm_b", 30.0),
        ("aten::add", ADD, None, "add", 5.0),
    )
    sums = {by: {row.op: row.time_s for row in analyse_steady_state(runs, by=by).operators} for by in GROUPINGS}
    assert sums["op"] == pytest.approx({"aten::mm": 40e-9, "aten::add": 5e-9})
    assert sums["shape"] == pytest.approx(
        {"aten::mm 16x4 4x2 bf16": 30e-9, "aten::mm 8x4 4x2 bf16": 10e-9, "aten::add 8x2 8x2 fp32": 5e-9}
    )
    assert sums["module"] == pytest.approx({"Net/Linear_1": 30e-9, "Net/Linear_0": 10e-9, OUTSIDE_MODULES: 5e-9})
    assert sums["kernel"] == pytest.approx({"gemm_b": 30e-9, "gemm_a": 10e-9, "add": 5e-9})


def test_the_precision_is_that_of_the_products():
    runs = layered(("aten::mm", MM, None, "gemm", 10.0), ("aten::add", ADD, None, "add", 5.0))
    found = analyse_steady_state(runs)
    assert found.precision == "bf16" and [row.precision for row in found.operators] == ["bf16", None]
    single = MM.replace("c10::BFloat16", "float")
    assert analyse_steady_state(layered(("aten::mm", single, None, "ampere_sgemm_128x64_tn", 9.0))).precision == "fp32"
    assert (
        analyse_steady_state(layered(("aten::mm", single, None, "cutlass_80_tensorop_s1688gemm_1", 9.0))).precision
        == "tf32"
    )


def test_steps_have_the_kernel_times_of_their_iterations():
    steady = analyse_steady_state(find_runs(loop(6, labelled={3, 4, 5})))
    # forward 10 + 30 to 32 + 5 + 8, backward 9 + 60, other 2, update 4
    assert [step.kernel_s for step in steady.steps] == pytest.approx([(128 + number % 3) * 1e-9 for number in range(6)])


@pytest.mark.needs_data
def test_a_loop_that_begins_with_the_gradients_of_the_step_before():
    """The benchmark of a linear layer by PARAM runs forward, zero_grad, backward, step; its iterations begin later.

    By hand, per kernel name over 40 steps: products of forward 110,405 us (tn), of backward 89,896 and 85,258 us (nn,
    nt), and 20,297 us of multi_tensor_apply, the optimizer alone.
    """
    profile = open_profile(DATA / "profiles" / "param" / "linear_kineto.json.gz")
    steady = analyse_steady_state(concatenate_runs([find_runs(batch) for batch in profile.batches(COLUMNS)]))
    assert steady.forward_s * 1e6 > 110_405 / 40
    assert steady.backward_s * 1e6 > (89_896 + 85_258) / 40
    assert steady.update_s * 1e6 == pytest.approx(20_297 / 40, rel=0.01)


def test_kernels_of_the_backward_thread_that_follow_all_others_in_the_file(tmp_path):
    """CUPTI of CUDA 13 collects records per thread: the kernels of the main thread come first in the file.

    Starts and durations in us are those of the first three steps of the compiled training step that perfdigest-mcp
    1.3.0 (Apache-2.0) ships as an example: RTX 4060 Laptop, two products backward and AdamW's kernel a step.
    """
    adam = [(11_208.0, 236.9), (15_015.9, 236.6), (18_828.3, 239.3)]
    products = [
        (9_090.6, 116.7), (9_459.6, 117.8), (13_488.8, 117.0), (13_679.4, 117.9), (17_062.8, 116.4), (17_528.1, 117.7),
    ]  # fmt: skip
    events = []

    def launch(start_us: float, duration_us: float, name: str, thread: int, op: str, **args) -> None:
        number = len(events)
        op_args = {"External id": number, **args}
        events.append({"cat": "cpu_op", "name": op, "tid": thread, "ts": start_us - 90, "dur": 80, "args": op_args})
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": thread, "ts": start_us - 50, "dur": 9}
        ids = {"External id": number, "correlation": number + 1000}
        events.append(call | {"args": ids})
        events.append({"cat": "kernel", "name": name, "tid": 7, "ts": start_us, "dur": duration_us, "args": ids})

    for start_us, duration_us in adam:
        launch(start_us, duration_us, "multi_tensor_apply_kernel", 1, "aten::_fused_adamw_")
    for start_us, duration_us in products:
        launch(start_us, duration_us, "ampere_sgemm_64x64_nt", 2, "aten::mm", **{"Fwd thread id": 1})
    for event in events:
        event |= {"ph": "X", "pid": 0 if event["cat"] == "kernel" else 1}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    steady = analyse_file(path).steady
    by_hand = [(236.9 + 117.0 + 117.9), (236.6 + 116.4 + 117.7), 239.3]
    assert [step.kernel_s * 1e6 for step in steady.steps] == pytest.approx(by_hand)
    assert [step.counts for step in steady.steps] == [True, True, False]  # the last has no backward pass
    assert steady.backward_s * 1e6 == pytest.approx((117.0 + 117.9 + 116.4 + 117.7) / 2)


def test_many_operations_are_searched_in_proportion(monkeypatch):
    count = np.bincount

    def read(operations):
        signatures = [Signature(1, None, f"op{number}", None, "k") for number in range(operations)]
        rows = np.arange(2 * operations)
        table = {
            "signature": rows % operations,
            "row": rows,
            "duration_ns": np.where(rows % operations, 1.0, 1e6),
            "step": np.full(len(rows), -1),
        }
        table["signature"][operations:] = operations - 1  # all others run once: each is a candidate
        runs = Runs(signatures, table, {}, len(rows))
        return elements_of(lambda: steady.find_iterations(runs))

    monkeypatch.setattr(np, "bincount", lambda *arguments, **options: counted(count(*arguments, **options)))
    assert read(400) < MOST_WHEN_DOUBLED * read(200)


def test_the_busy_times_of_many_iterations_take_one_sort():
    def read(iterations):
        starts = 10 * np.arange(2 * iterations)
        spans = np.stack([starts, starts + 5], axis=1)
        number = counted(np.repeat(np.arange(iterations), 2))
        return elements_of(lambda: steady._busy_s(spans, number, np.ones(iterations, bool)))

    assert read(400) < MOST_WHEN_DOUBLED * read(200)


def test_the_number_of_a_step_may_have_thousands_of_digits():
    """Python refuses to convert more than 4,300 digits: they were an internal error."""
    iterations = SimpleNamespace(marks=["step " + "1" * 5000, "step 2"], starts=[0, 1])
    assert steady.step_numbers(iterations) == [int("1" * 30), 2]


def test_a_normalisation_reads_a_scale_and_a_shift_per_channel() -> None:
    """In training it reads its input twice, for the statistics and for the result, which it writes once."""
    numbers = 2 * 3 * 4 * 5
    assert count_printed("batch_norm", "T=[(2,3,4,5)],type=fp32", "fprop").bytes == 4 * (3 * numbers + 2 * 3)
