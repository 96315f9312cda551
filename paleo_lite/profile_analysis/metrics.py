"""Meaning, good values and remedies of hardware counters, by their names in nvprof and Nsight Compute.

Sources: the metrics reference in NVIDIA's Profiler User's Guide (CUDA 11, "Metrics for Capability 5.x to 7.x"), its
table of counterparts in the Nsight Compute CLI documentation ("nvprof metric comparison"), and the slides
"Profiling DNN workloads" (Argonne Leadership Computing Facility, ATPESC) for the paths through memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..units import format_si


class Metric(msgspec.Struct, frozen=True):
    """One counter."""

    name: str  # name in nvprof
    # Scale in nvprof: fraction; percent; level from 0 to 10; number per cycle; bytes per second; plain number.
    # Nsight Compute reports the first three in percent.
    unit: str
    # Meaning, good values, remedy for bad values.
    meaning: str
    good: str
    remedy: str
    ncu: tuple[str, ...] = ()  # names in Nsight Compute


_COALESCE = "let neighbouring threads touch neighbouring addresses; change the memory layout"
_PATH = "compare it with the peak of that path: the path nearest to its peak is the bottleneck"

METRICS: tuple[Metric, ...] = (
    Metric(
        "achieved_occupancy", "share",
        "active warps per active cycle, as a fraction of the maximum of a multiprocessor",
        "above 50%; more hides more latency, but a GEMM that uses its registers well is fast below",
        "larger batches or grids; smaller blocks, fewer registers or less shared memory per block",
        ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
    ),
    Metric(
        "est_achieved_occupancy", "share",
        "occupancy that the launch's registers, shared memory and grid allow, as PyTorch's profiler estimates it",
        "above 50%", "larger batches or grids; smaller blocks, fewer registers or less shared memory per block",
    ),
    Metric(
        "sm_efficiency", "percent",
        "share of the time in which a multiprocessor has at least one warp to run, over all of them",
        "above 90%; below, the grid is too small for the device or its blocks are of unequal length",
        "larger batches, more blocks, fused kernels",
        ("smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",),
    ),
    Metric(
        "ipc", "rate", "instructions executed per cycle and multiprocessor",
        "above half of the issue rate of a multiprocessor, which is 4 since Volta",
        "check why warps stall: memory (gld_efficiency, dram_utilization) or dependencies (occupancy)",
        ("sm__inst_executed.avg.per_cycle_active", "Executed Ipc Active"),
    ),
    Metric(
        "issue_slot_utilization", "percent", "share of the cycles in which the scheduler had an instruction to issue",
        "above 60%", "more independent work per thread, or more warps",
        ("smsp__issue_active.avg.pct_of_peak_sustained_active",),
    ),
    Metric(
        "branch_efficiency", "percent", "branches in which all threads of a warp go the same way",
        "100%; below 90% warps run both sides", "sort or group work so that a warp's threads agree",
        ("smsp__sass_average_branch_targets_threads_uniform.pct",),
    ),
    Metric(
        "warp_execution_efficiency", "percent", "threads of a warp that do something, on average",
        "100%; below 80% lanes idle", "block sizes that are multiples of 32; less divergence",
        ("smsp__thread_inst_executed_per_inst_executed.ratio",),
    ),
    Metric(
        "gld_efficiency", "percent", "requested global memory loads as a share of the bytes actually loaded",
        "above 80%; 25% means that three of four loaded bytes are unused", _COALESCE,
        ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",),
    ),
    Metric(
        "gst_efficiency", "percent", "requested global memory stores as a share of the bytes actually stored",
        "above 80%", _COALESCE, ("smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",),
    ),
    Metric(
        "shared_efficiency", "percent", "requested shared memory accesses as a share of the bytes actually moved",
        "100%; lower values mean bank conflicts", "pad the shared arrays",
        ("smsp__sass_average_data_bytes_per_wavefront_mem_shared.pct",),
    ),
    Metric(
        "dram_utilization", "level", "how busy the device memory is: from 0 to 10, or percent of its peak",
        "8 (80%) and more means a limit by memory bandwidth; a low value in a slow kernel means a limit by latency",
        "at 8 (80%) or more: fuse kernels, use narrower numbers; below: more loads in flight, more occupancy",
        ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput"),
    ),
    Metric(
        "flop_sp_efficiency", "percent", "single precision FLOP/s as a share of the peak",
        "above 50% for GEMM and convolution", "larger tiles and batches; check the bound of the kernel",
        ("smsp__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on.avg.pct_of_peak_sustained_elapsed",),
    ),
    Metric(
        "tensor_precision_fu_utilization", "level", "how busy the tensor cores are, from 0 to 10",
        "above 5 for GEMM and convolution in fp16 or tf32; 0 means that they are not used",
        "fp16, bf16 or tf32, with channels and features that are multiples of 8",
        ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",),
    ),
    Metric(
        "l2_tex_hit_rate", "percent", "share of the requests of the L1 or texture cache that hit in the L2 cache",
        "above 50% where data is used again", "smaller working sets per wave of blocks",
        ("lts__t_sector_hit_rate.pct", "L2 Hit Rate"),
    ),
    Metric(
        "tex_cache_hit_rate", "percent", "share of loads that hit in the L1 (unified with texture) cache",
        "above 50% where neighbouring threads share data", "shared memory for reused data",
        ("l1tex__t_sector_hit_rate.pct", "L1/TEX Hit Rate"),
    ),
    Metric(
        "l1_cache_global_hit_rate", "percent", "share of global loads that hit in the L1 cache", "above 50%", _COALESCE
    ),
    Metric("l1_cache_local_hit_rate", "percent", "share of loads of spilled registers that hit in the L1 cache",
           "not needed: best without spills", "fewer registers per thread, or smaller blocks"),
    Metric("gld_throughput", "throughput", "global memory loaded", "near the memory's peak if memory bound", _PATH,
           ("l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second",)),
    Metric("gst_throughput", "throughput", "global memory stored", "near the memory's peak if memory bound", _PATH,
           ("l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum.per_second",)),
    Metric("gld_transactions", "count", "transactions that loads of global memory took",
           "few per request: 4 of 32 bytes for a warp of fp32", _COALESCE,
           ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",)),
    Metric("gst_transactions", "count", "transactions that stores to global memory took",
           "few per request: 4 of 32 bytes for a warp of fp32", _COALESCE,
           ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",)),
    Metric("dram_read_throughput", "throughput", "read from device memory",
           "with the writes, near the memory's peak if memory bound", _PATH, ("dram__bytes_read.sum.per_second",)),
    Metric("dram_write_throughput", "throughput", "written to device memory",
           "with the reads, near the memory's peak if memory bound", _PATH, ("dram__bytes_write.sum.per_second",)),
    Metric("dram_read_transactions", "count", "reads of device memory, 32 bytes each",
           "close to the bytes that the operation needs / 32", "fuse kernels, reuse cached data",
           ("dram__sectors_read.sum",)),
    Metric("dram_write_transactions", "count", "writes to device memory, 32 bytes each",
           "close to the bytes that the operation writes / 32", "fuse kernels, write once",
           ("dram__sectors_write.sum",)),
    Metric("sysmem_read_throughput", "throughput", "read from the host's memory by kernels",
           "0 in steady state", "copy to the device first"),
    Metric("sysmem_write_throughput", "throughput", "written to the host's memory by kernels",
           "0 in steady state", "write to the device and copy after"),
    Metric("sysmem_read_transactions", "count", "reads of the host's memory by kernels, 32 bytes each",
           "0 in steady state", "copy to the device first"),
    Metric("sysmem_write_transactions", "count", "writes to the host's memory by kernels, 32 bytes each",
           "0 in steady state", "write to the device and copy after"),
    *(
        Metric(name, unit, meaning, "less than the traffic of the L1 cache", "keep reused data in shared memory")
        for name, unit, meaning in (
            ("l2_l1_read_throughput", "throughput", "read from L2 for the L1 cache"),
            ("l2_l1_write_throughput", "throughput", "written from L1 to the L2 cache"),
            ("l2_l1_read_transactions", "count", "reads of L2 for the L1 cache, 32 bytes each"),
            ("l2_l1_write_transactions", "count", "writes from L1 to the L2 cache, 32 bytes each"),
            ("l2_texture_read_throughput", "throughput", "read from L2 for the texture cache"),
            ("l2_tex_read_throughput", "throughput", "read from L2 for the texture cache"),
            ("l2_tex_read_transactions", "count", "reads of L2 for the texture cache, 32 bytes each"),
        )
    ),
    *(
        Metric(name, unit, meaning, "as little as the algorithm needs", "pad against bank conflicts; wider accesses")
        for name, unit, meaning in (
            ("shared_load_throughput", "throughput", "loaded from shared memory"),
            ("shared_store_throughput", "throughput", "stored to shared memory"),
            ("shared_load_transactions", "count", "transactions that loads of shared memory took"),
            ("shared_store_transactions", "count", "transactions that stores to shared memory took"),
        )
    ),
)  # fmt: skip
"""All explained counters."""

_OCCUPANCY = {"achieved_occupancy": 1.0, "est_achieved_occupancy": 1.0, **dict.fromkeys(METRICS[0].ncu, 0.01)}

_COMPUTE_THROUGHPUT = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput", "SM [%]")

_BY_NAME = {metric.name: metric for metric in METRICS} | {name: metric for metric in METRICS for name in metric.ncu}


def find_metric(name: str) -> Metric | None:
    """Return the explanation of a counter by its name in nvprof or Nsight Compute, or None."""
    return _BY_NAME.get(name)


def explain(name: str, value: float) -> dict[str, Any] | None:
    """Return a counter's value as text with meaning, good values and remedy; None for an unknown counter."""
    metric = find_metric(name)
    if metric is None:
        return None
    return {
        "metric": name,
        "same_as": metric.name if name != metric.name else next(iter(metric.ncu), None),
        "value": value,
        "shown": _format_value(metric, name, value),
        "meaning": metric.meaning,
        "good": metric.good,
        "remedy": metric.remedy,
    }


def _format_value(metric: Metric, name: str, value: float) -> str:
    if name.endswith("per_inst_executed.ratio"):
        return f"{value:.4g} of 32"
    if name != metric.name and metric.unit in ("share", "percent", "level"):
        return f"{value:.4g}%"
    if metric.unit == "share":
        return f"{value:.1%}"
    if metric.unit == "percent":
        return f"{value:.4g}%"
    if metric.unit == "level":
        return f"{value:.3g} of 10"
    return format_si(value, {"throughput": "B/s", "rate": "per cycle"}.get(metric.unit, ""))


def achieved_occupancy(metrics: Mapping[str, float]) -> float | None:
    """Return the achieved occupancy as a fraction, from any profiler's counter; None without one."""
    return next((metrics[name] * scale for name, scale in _OCCUPANCY.items() if name in metrics), None)


def device_throughputs(metrics: Mapping[str, float]) -> tuple[float | None, float | None]:
    """Return the fractions of peak of the device memory and of the multiprocessors, as Nsight Compute measured them."""
    memory = next((metrics[name] / 100 for name in _BY_NAME["dram_utilization"].ncu if name in metrics), None)
    compute = next((metrics[name] / 100 for name in _COMPUTE_THROUGHPUT if name in metrics), None)
    return memory, compute


_BOUND_THROUGHPUT = 0.6
"""Share of peak below which Nsight Compute's rules speak of latency rather than of a bound."""


def measured_bound(metrics: Mapping[str, float]) -> tuple[str | None, float | None]:
    """Return bound and headroom by the shares of peak that Nsight Compute measured of memory and multiprocessors.

    Without them both are unknown: occupancy limits no time, as kernels with many independent instructions reach their
    peak at low occupancy (Volkov 2010, Better performance at lower occupancy).
    """
    memory, compute = device_throughputs(metrics)
    if memory is None:
        return None, None
    largest = max(memory, compute or 0.0)
    bound = "memory" if memory == largest else "compute"
    return bound if largest >= _BOUND_THROUGHPUT else None, max(0.0, 1 - largest)
