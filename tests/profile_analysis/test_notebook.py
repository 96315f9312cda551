"""SURFBoard's gpu_efficiency.ipynb: printed tables of the 64 files, pandas on synthetic files, and merged sums."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
from hypothesis import given

from measured import DATA
from paleo_lite.errors import BadProfile
from paleo_lite.machines import find_device
from paleo_lite.profile_analysis.analysis import measure_efficiency
from paleo_lite.profile_analysis.notebook import NotebookSums, sum_batch
from paleo_lite.profile_analysis.one_file import ReadOptions
from paleo_lite.profiles.table import batch_of
from strategies import COUNTED_KERNELS, CUTS, pieces

pytestmark = pytest.mark.slow

SURFBOARD = DATA / "surfboard"
FIGURES = ("compute_efficiency", "flops_per_s", "bandwidth_bytes_per_s", "bandwidth_efficiency", "flops_efficiency")
SCALES = (100, 1e-12, 1e-9, 100, 100)

PRINTED = """
32 1   68.791497 0.347732 25.976727 9.019697 8.105632
32 16  69.840852 0.353306 26.044084 9.043085 8.235571
32 32  69.807003 0.353268 26.052055 9.045853 8.234676
32 8   69.936754 0.354724 26.109891 9.065934 8.268630
64 1   59.959489 0.386201 28.071793 9.747150 9.002347
64 16  61.145733 0.392053 28.096251 9.755643 9.138773
64 32  61.107659 0.391818 28.079357 9.749777 9.133285
64 8   61.224527 0.392876 28.143853 9.772171 9.157942
"""
"""Cell 8 of the notebook as it prints it: batch size, nodes, then the five columns."""


@pytest.fixture(scope="module")
def result():
    folder = SURFBOARD / "pyprof_kernels"
    return measure_efficiency([folder], find_device("k40m"), ReadOptions("notebook"), group_by=["batch_size", "nodes"])


@pytest.mark.needs_data
@pytest.mark.slow
def test_the_printed_means_to_every_digit(result):
    groups = {(group["batch_size"], group["nodes"]): group for group in result.groups}
    for line in PRINTED.split("\n")[1:-1]:
        batch, nodes, *printed = line.split()
        group = groups[int(batch), int(nodes)]
        assert group["files"] == 8
        assert [f"{group[name] * scale:.6f}" for name, scale in zip(FIGURES, SCALES)] == printed


@pytest.mark.needs_data
@pytest.mark.slow
def test_every_row_agrees_with_the_printed_scaled_table(result):
    """The notebook prints its 64 rows only over batch durations; the ratio of its two columns is free of those.

    Its columns are swapped, so that printed "bandwidth" over "FLOPS" is FLOPs over bytes, each over the K40m's peak.
    """
    text = (SURFBOARD / "notebook_outputs" / "gpu_efficiency.txt").read_text()
    head = re.compile(r"^(\d+) +(\d+) +2 +ib +nvprof +(\d+) +resnet50 *\\?$", re.MULTILINE)
    body = re.compile(r"^(\d+) +(dali-\S+) +(\d+) +(fp\d+) +fp32 +([\d.]+) *\\?$", re.MULTILINE)
    tail = re.compile(r"^(\d+) +([\d.]+) *$", re.MULTILINE)
    runs = {int(m[1]): (int(m[2]), int(m[3])) for m in head.finditer(text)}
    flops = {int(m[1]): float(m[2]) for m in tail.finditer(text)}
    keys = ("nodes", "workers", "data_loader", "batch_size", "gradient_precision")
    by_run = {tuple(row[key] for key in keys): row for row in result.rows}
    printed = 0
    for match in body.finditer(text):
        index = int(match[1])
        row = by_run[(*runs[index], match[2], int(match[3]), match[4])]
        ratio = row["flops_efficiency"] / row["bandwidth_efficiency"]
        assert float(match[5]) / flops[index] == pytest.approx(ratio, rel=1e-6)
        printed += 1
    assert printed == 64 == len(result.rows)


def batch(kernels, durations, flops, moved):
    columns = {"kernel": kernels, "duration_ns": durations, "flops": flops, "bytes": moved}
    return batch_of(columns, len(kernels), tuple(columns))


@pytest.mark.thorough
@given(COUNTED_KERNELS)
def test_as_the_notebook_itself_computes_it(table):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table, columns=["Kernel", "Sil(ns)", "FLOPs", "Bytes"]).fillna({"FLOPs": 0, "Bytes": 0})
    sums = sum_batch(batch(*zip(*table)))
    total = frame["Sil(ns)"].sum()
    if not total:
        with pytest.raises(BadProfile, match="no time"):
            sums.efficiencies()
        return
    by_name = frame[["Kernel", "Sil(ns)", "FLOPs"]].astype({"FLOPs": float}).groupby("Kernel").sum()
    compute = by_name[by_name["FLOPs"] != 0]["Sil(ns)"].sum()
    with np.errstate(all="ignore"):
        weighted = (1e9 * frame["Bytes"].astype(float) / frame["Sil(ns)"]) * (frame["Sil(ns)"] / total)
    found = sums.efficiencies()
    assert found["compute_efficiency"] == pytest.approx(compute / total, rel=1e-12)
    assert found["flops_per_s"] == pytest.approx(frame["FLOPs"].sum() / (total * 1e-9), rel=1e-9)
    assert found["bandwidth_bytes_per_s"] == pytest.approx(weighted.sum(), rel=1e-9)


@given(COUNTED_KERNELS, CUTS)
def test_any_split_gives_the_same_sums(table, cuts):
    whole = batch(*zip(*table))
    parts = [sum_batch(whole.slice(start, stop - start)) for start, stop in pieces(cuts, len(table))]
    merged = functools.reduce(NotebookSums.merge, parts, NotebookSums())
    expected = sum_batch(whole)
    positive = lambda sums: {name: value for name, value in sums.items() if value}  # noqa: E731
    assert positive(merged.durations_ns) == positive(expected.durations_ns)
    assert positive(merged.flops) == positive(expected.flops)
    assert (merged.bytes, merged.rows) == (expected.bytes, expected.rows)
    if len(parts) == 3:
        assert parts[0].merge(parts[1]).merge(parts[2]) == parts[0].merge(parts[1].merge(parts[2]))


def test_the_host_does_not_count():
    columns = {
        "category": ["api", "kernel", "cpu"], "kernel": ["launch", "gemm", "add"], "duration_ns": [500.0, 10.0, 900.0],
        "flops": [None, 40.0, None], "bytes": [None, 20.0, None],
    }  # fmt: skip
    found = sum_batch(batch_of(columns, 3, tuple(columns))).efficiencies()
    assert found == {
        "compute_efficiency": 1.0, "flops_per_s": 4e9, "bandwidth_bytes_per_s": 2e9, "flops": 40.0, "bytes": 20.0,
    }  # fmt: skip


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_duration_that_cannot_be(value):
    with pytest.raises(BadProfile, match="expected a number of 0 or more"):
        sum_batch(batch(["a", "b"], [1.0, value], [1.0, 1.0], [1.0, 1.0]))


def test_a_notebook_without_rows_has_no_kernels():
    with pytest.raises(BadProfile, match="no kernels"):
        NotebookSums().efficiencies()
