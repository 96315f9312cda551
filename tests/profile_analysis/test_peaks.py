"""The peak that rates are compared with follows from what a profile says of its operands."""

from __future__ import annotations

import json

import pytest

import paleo_lite as pl
from paleo_lite.machines import find_device
from paleo_lite.profile_analysis.peaks import Peaks, explain_bytes_above_peak, explain_flops_above_peak

SECONDS = 500e-6
FLOPS = 2 * 4096**3


def ascend(tmp_path, types):
    heading = "Device_id,Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us)"
    lines = [f"{heading},Input Shapes,Input Data Types,Output Shapes"]
    for index in range(4):
        shapes = f'"4096,4096;4096,4096",{types},"4096,4096"'
        lines.append(f"0,MatMulV2_{index},MatMulV2,AI_CORE,{1000 * index}.0,{SECONDS * 1e6},{shapes}")
    path = tmp_path / "op_summary.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def trace(tmp_path, kernel, types):
    events = []
    for start in range(0, 4000, 1000):
        number = start + 1
        linked = {"External id": number, "correlation": number}
        operands = {"External id": number, "Input Dims": [[4096, 4096]] * 2, "Input type": types}
        entries = (
            ("cpu_op", "aten::mm", 1, start, 9, operands),
            ("cuda_runtime", "cudaLaunchKernel", 1, start + 1, 2, linked),
            ("kernel", kernel, 7, start + 20, SECONDS * 1e6, {**linked, "device": 0, "stream": 7}),
        )
        for category, name, thread, at, lasts, arguments in entries:
            event = {"ph": "X", "pid": 1, "cat": category, "name": name, "tid": thread, "ts": at, "dur": lasts}
            events.append({**event, "args": arguments})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


@pytest.mark.parametrize(
    ("types", "precision"),
    [
        ("FLOAT16;FLOAT16", "fp16"),
        ("DT_FLOAT16;DT_FLOAT16", "fp16"),
        ("DT_BF16;DT_BF16", "bf16"),
        ("FLOAT;FLOAT", "fp32"),
        ("N/A", "fp32"),
    ],
)
def test_types_that_msprof_records_choose_the_peak(tmp_path, types, precision) -> None:
    peak = find_device("ascend-910b").find_peak(precision)
    path = ascend(tmp_path, types)
    (row,) = pl.efficiency(path, gpu="ascend-910b").rows
    assert row["flops_efficiency"] == pytest.approx(FLOPS / SECONDS / peak.per_s, rel=1e-3)
    report = pl.kernels(path, gpu="ascend-910b")
    assert report.peak.peak.precision == precision
    assert report.kernels[0].flops_efficiency == pytest.approx(FLOPS / SECONDS / peak.per_s, rel=1e-3)


@pytest.mark.parametrize(
    ("kernel", "types", "precision"),
    [
        ("nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", ["", ""], "fp8"),
        ("nvjet_tst_128x256_64x6_2x1_2cta_v_bz_TNT", ["", ""], "bf16"),
        ("gemm_kernel", ["c10::Half", "c10::Half"], "fp16"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16", ["float", "float"], "tf32"),
        ("gemm_kernel", ["float", "float"], "fp32"),
    ],
)
def test_types_and_names_of_a_trace_choose_the_peak(tmp_path, kernel, types, precision) -> None:
    path = trace(tmp_path, kernel, types)
    (row,) = pl.efficiency(path, gpu="h100-sxm").rows
    assert row["operators"][0]["precision"] == precision
    assert pl.kernels(path, gpu="h100-sxm").peak.peak.precision == precision


def test_each_profile_that_names_another_device_says_so(tmp_path) -> None:
    """Of two traces, the second was taken on another device: it has no share of peak, and a note says why."""
    files = []
    for name, gpu in (("a.json", "NVIDIA H100 80GB HBM3"), ("b.json", "NVIDIA A100-SXM4-80GB")):
        path = trace(tmp_path, "nvjet_tst_128x256_64x6", ["c10::BFloat16"] * 2).rename(tmp_path / name)
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "deviceProperties": [{"id": 0, "name": gpu}]}))
        files.append(path)
    found = pl.efficiency(files, gpu="h100-sxm")
    of_peak = FLOPS / SECONDS / find_device("h100-sxm").find_peak("bf16").per_s
    assert [row["flops_efficiency"] for row in found.rows] == [pytest.approx(of_peak, rel=1e-3), None]
    assert not found.device_conflict
    said = "b.json: it was taken on NVIDIA A100-SXM4-80GB, not on H100 SXM5 80GB: no share of peak is given"
    assert [note for note in found.notes if "taken on" in note] == [said]


def test_a_precision_that_a_device_lacks_leaves_the_peak() -> None:
    device = find_device("k80")
    peaks = Peaks(device, device.find_peak("fp32"))
    assert peaks.in_precision("bf16") == peaks and peaks.in_precision(None) == peaks
    assert peaks.in_precision("fp64").rate.peak.precision == "fp64"


def test_rates_above_both_peaks_have_one_reason(tmp_path) -> None:
    """Times a hundred times too short exceed both peaks, which no cache explains."""
    path = trace(tmp_path, "nvjet_tst_128x256_64x6", ["c10::BFloat16"] * 2)
    path.write_text(path.read_text().replace('"dur": 500.0', '"dur": 1.0'))
    (row,) = pl.efficiency(path, gpu="h100-sxm").rows
    (note,) = [note for note in row["notes"] if " of peak " in note]
    assert "of peak FLOP/s and" in note and "of peak bandwidth: no reason was found" in note


def test_kernels_above_the_peak_for_one_reason_share_a_note(tmp_path) -> None:
    path = ascend(tmp_path, "FLOAT16;FLOAT16")
    path.write_text(path.read_text().replace(",500.0,", ",50.0,"))
    (note,) = [note for note in pl.kernels(path, gpu="ascend-910b").notes if "of peak" in note]
    assert "MatMulV2_3 at " in note and "and 3 other kernels above it" in note


def test_profiles_of_one_other_device_share_a_note(tmp_path) -> None:
    path = trace(tmp_path, "nvjet_tst_128x256_64x6", ["c10::BFloat16"] * 2)
    content = {**json.loads(path.read_text()), "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]}
    files = [tmp_path / f"{number}.json" for number in range(3)]
    for file in files:
        file.write_text(json.dumps(content))
    found = pl.efficiency(files, gpu="h100-sxm")
    (note,) = [note for note in found.notes if "taken on" in note]
    assert note.startswith("0.json and 2 other profiles: it was taken on NVIDIA A100-SXM4-80GB, not on H100")
    assert [row["flops_efficiency"] for row in found.rows] == [None] * 3 and found.device_conflict


RULE = "  ".join(["-" * 60, *["-" * 12] * 7, "-" * 44])
HEADING = ("Name", "Self CPU", "CPU total", "CPU time avg", "Self CUDA", "CUDA total", "CUDA time avg", "# of Calls",
           "Input Shapes")  # fmt: skip
MM = ("aten::mm", "5.000ms", "9.000ms", "90.000us", "80.000ms", "80.000ms", "800.000us", "100",
      "[[4096, 4096], [4096, 4096]]")  # fmt: skip
ADD = ("aten::add", "5.000ms", "9.000ms", "90.000us", "10.000ms", "10.000ms", "100.000us", "100",
       "[[4096, 4096], [4096, 4096], []]")  # fmt: skip
GEMM = ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", "0.000us", "0.000us", "0.000us", "80.000ms", "80.000ms",
        "800.000us", "100", "[]")  # fmt: skip


@pytest.mark.parametrize("rows", [(MM, ADD), (MM, ADD, GEMM)], ids=["operations", "with a kernel"])
def test_shapes_of_a_printed_table_are_counted(rows, tmp_path) -> None:
    """A hundred products of 4096 are 13.7 TFLOP; one of two kernels is listed, and the other is that of aten::add."""
    widths = [len(rule) for rule in RULE.split()]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(cells, widths)) for cells in (HEADING, *rows)]
    totals = "Self CPU time total: 200.000ms\nSelf CUDA time total: 90.000ms\n"
    path = tmp_path / "table.txt"
    path.write_text("\n".join([RULE, lines[0], RULE, *lines[1:], RULE]) + f"\n{totals}")
    found = pl.efficiency(path, gpu="a100-sxm-80gb")
    (row,) = found.rows
    operators = {of["op"]: (of["flops"], round(of["time_s"], 6)) for of in row["operators"]}
    assert operators == {"aten::mm": (100 * 2 * 4096**3, 0.08), "aten::add": (100 * 4096**2, 0.01)}
    assert row["precision"] == ("bf16" if GEMM in rows else None)
    (remark,) = [note for note in found.notes if "busy for" in note]
    assert remark.endswith(
        "the device was busy for 90 ms, while operators and calls of the host took 200 ms: at most 45% of the time, if "
        "one thread ran them"
    )


def test_names_of_kernels_choose_the_peak_without_flops(tmp_path) -> None:
    """rocprof's statistics have no shapes; `HHS` are the types of rocBLAS's product: half, half and single."""
    path = tmp_path / "results.stats.csv"
    kernel = "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN_1LDSB0_APM1.kd"
    path.write_text(f'"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"{kernel}",100,50000000,500000,100\n')
    (row,) = pl.efficiency(path, gpu="mi300x").rows
    peak = find_device("mi300x").find_peak("fp16")
    assert row["peak_flops_per_s"] == peak.per_s == pl.kernels(path, gpu="mi300x").peak.per_s


@pytest.mark.parametrize(("kernels", "precision"), [(["ampere_bf16_s16816gemm"] * 2, "bf16"), (["k"] * 2, "fp32")])
def test_profiles_with_one_peak_share_it(tmp_path, kernels, precision) -> None:
    """The answer, and the chart's subtitle, have the peak of the rows."""
    types = ["c10::BFloat16"] * 2 if precision == "bf16" else ["float"] * 2
    paths = []
    for number, kernel in enumerate(kernels):
        (tmp_path / str(number)).mkdir()
        paths.append(trace(tmp_path / str(number), kernel, types))
    found = pl.efficiency(paths, gpu="a100-sxm-80gb")
    assert found.peak.per_s == find_device("a100-sxm-80gb").find_peak(precision).per_s
    assert {row["peak_flops_per_s"] for row in found.rows} == {found.to_dict()["peak_flops_per_s"]}


def test_a_trace_without_shapes_says_what_records_them(tmp_path) -> None:
    path = trace(tmp_path, "ampere_bf16_s16816gemm", ["c10::BFloat16"] * 2)
    path.write_text(path.read_text().replace('"Input Dims"', '"Other"'))
    (row,) = pl.efficiency(path, gpu="a100-sxm-80gb").rows
    assert row["flops_per_s"] is None
    (note,) = [note for note in row["notes"] if "record_shapes=True" in note]
    assert note.startswith("FLOPs are counted from shapes")


V100 = find_device("v100-sxm2")
FP32 = V100.find_peak("fp32")
WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
SGEMM = "volta_sgemm_128x64_nn"


@pytest.mark.parametrize(
    ("share", "kernels", "options", "reason"),
    [
        (1.0, [WINOGRAD], {}, ""),
        (1.57, [WINOGRAD, SGEMM], {}, "Winograd kernels need fewer multiplications"),
        (1.57, ["fft2d_r2c_32x32"], {}, "FFT kernels need fewer multiplications"),
        (6.0, ["volta_h884gemm_256x128_ldg8_nn"], {}, "kernels use tensor cores, but the peak is the fp32 vector peak"),
        (1.04, [SGEMM], {}, "the clock was probably above the boost clock of the data sheet"),
        (1.8, [SGEMM], {"device_count": 2}, "the rate is a sum over 2 devices"),
        (1.8, ["sm80_xmma_gemm_f16f16_f16f32_f32_sptensorop"], {}, "sparse kernels skip zeros"),
        (2.5, [SGEMM], {"counted_by_profiler": True}, "the FLOP count in the profile is probably too high"),
        (2.5, [SGEMM], {}, "check `--gpu` and `--precision`"),
    ],
)
def test_reasons_for_flops(share, kernels, options, reason):
    explained = explain_flops_above_peak(share, FP32, kernels, **{"counted_by_profiler": False, **options})
    assert reason in explained and bool(explained) == bool(reason)


def test_reasons_for_bytes():
    """A V100 has 6 MB of L2 cache (NVIDIA's V100 whitepaper)."""
    assert explain_bytes_above_peak(1e6, 0.99, V100) == ""
    assert "read from the L2 cache of 6" in explain_bytes_above_peak(1e6, 1.5, V100)
    assert "reused in caches" in explain_bytes_above_peak(1e9, 1.5, V100)
