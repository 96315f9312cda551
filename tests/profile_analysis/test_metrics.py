"""Names of hardware counters: counters explained in a course are known, and values are scaled like the profilers'."""

from __future__ import annotations

import pytest

from paleo_lite.profile_analysis.metrics import METRICS, achieved_occupancy, explain, find_metric

COURSE = [  # slides "Profiling DNN workloads" (Argonne, ATPESC)
    # "Metrics relevant to identify compute, memory, IO characteristics"
    "achieved_occupancy", "ipc", "gld_efficiency", "gst_efficiency", "dram_utilization",
    # "GPU memory - metrics", the paths through memory
    "dram_read_throughput", "dram_read_transactions", "dram_write_throughput", "dram_write_transactions",
    "sysmem_read_throughput", "sysmem_read_transactions", "sysmem_write_throughput", "sysmem_write_transactions",
    "l2_l1_read_transactions", "l2_l1_read_throughput", "l2_l1_write_transactions", "l2_l1_write_throughput",
    "l2_tex_read_transactions", "l2_texture_read_throughput", "shared_load_throughput", "shared_load_transactions",
    "shared_store_throughput", "shared_store_transactions", "l1_cache_local_hit_rate", "l1_cache_global_hit_rate",
    "gld_throughput", "gld_transactions", "gst_throughput", "gst_transactions",
]  # fmt: skip


@pytest.mark.parametrize("name", COURSE)
def test_every_counter_of_the_course_is_explained(name):
    told = explain(name, 1.0)
    assert told is not None
    assert len(told["meaning"]) > 10 and told["good"] and told["remedy"]


# NVIDIA's "nvprof metric comparison" table in the Nsight Compute documentation.
@pytest.mark.parametrize(
    ("ncu", "nvprof"),
    [
        ("sm__warps_active.avg.pct_of_peak_sustained_active", "achieved_occupancy"),
        ("dram__bytes_read.sum.per_second", "dram_read_throughput"),
        ("dram__sectors_write.sum", "dram_write_transactions"),
        ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct", "gld_efficiency"),
        ("smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct", "gst_efficiency"),
    ],
)
def test_nsight_computes_names_mean_the_same(ncu, nvprof):
    assert find_metric(ncu) is find_metric(nvprof)
    assert explain(ncu, 50.0)["same_as"] == nvprof


def test_names_are_unique():
    names = [metric.name for metric in METRICS] + [name for metric in METRICS for name in metric.ncu]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("achieved_occupancy", 0.482, "48.2%"),
        ("gld_efficiency", 25.0, "25%"),
        ("dram_utilization", 8.0, "8 of 10"),
        ("dram_read_throughput", 2.31e11, "231 GB/s"),
        ("sm__warps_active.avg.pct_of_peak_sustained_active", 48.2, "48.2%"),
    ],
)
def test_values_as_text(name, value, shown):
    assert explain(name, value)["shown"] == shown


def test_occupancy_whoever_measured_it():
    assert achieved_occupancy({"achieved_occupancy": 0.25}) == 0.25
    assert achieved_occupancy({"sm__warps_active.avg.pct_of_peak_sustained_active": 25.0}) == 0.25
    assert achieved_occupancy({"ipc": 1.0}) is None
    assert explain("no_such_counter", 1.0) is None
