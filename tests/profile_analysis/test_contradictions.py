"""What profiles tell of themselves: names of GPUs, precisions and generations, in real files and in names of kernels.

Tests: profile_analysis/contradictions.py.
"""

from __future__ import annotations

import json
import sqlite3

import pytest

from measured import DATA
from paleo_lite.errors import BadProfile
from paleo_lite.machines import find_device
from paleo_lite.machines.registry import list_devices
from paleo_lite.profile_analysis.contradictions import (
    OriginEvidence,
    check_evidence,
    dominant_precision,
    find_contradictions,
    find_rank,
    gather_evidence,
    precision_in_names,
)
from paleo_lite.profiles.detect import READERS, Profile, load_reader, open_profile

pytest.importorskip("pyarrow")

SURFBOARD = (
    DATA / "surfboard" / "pyprof_kernels"
    / "run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"
)  # fmt: skip
KINETO = DATA / "profiles" / "torch_chrome_trace_resnet50"
NOTHING = OriginEvidence((), {}, None, None)


@pytest.mark.thorough
@pytest.mark.needs_data
def test_a_trace_names_its_gpu() -> None:
    """pytorch/kineto's ResNet-50 example: "Tesla V100-DGXS-32GB" in deviceProperties, volta_sgemm among its kernels."""
    profile = open_profile(next(KINETO.glob("resnet50_num_workers_0*.json.gz")))
    evidence = gather_evidence(profile)
    assert evidence.gpus == ("Tesla V100-DGXS-32GB",)
    assert evidence.minimum_capability[0] == 7.0 and evidence.precision == "fp32"
    assert find_contradictions(evidence, find_device("v100-sxm2"), precision="fp32") == []
    (against,) = find_contradictions(evidence, find_device("k80"))
    assert against == "it was taken on Tesla V100-DGXS-32GB, not on Tesla K80"
    with pytest.raises(BadProfile, match="multiply in fp32 according to their names, not in fp64"):
        check_evidence(profile, precision="fp64")


@pytest.mark.needs_data
def test_surfboards_kernels_are_of_a_kepler_in_fp32() -> None:
    """Cartesius has K40m; the file name contains resnet50 and the compute precision fp32."""
    evidence = gather_evidence(open_profile(SURFBOARD))
    assert find_contradictions(evidence, find_device("k40m"), "resnet50", "fp32") == []
    assert find_contradictions(evidence, None, "vgg16") == ["its file name gives the network resnet50, not vgg16"]
    assert find_contradictions(evidence, None, None, "fp64") == ["its file name gives the precision fp32, not fp64"]
    (against,) = find_contradictions(evidence, find_device("v100-sxm2"))
    assert "was compiled for Kepler, Tesla V100 SXM2 is Volta" in against


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("file", "gpu"),
    [
        ("nvprof_gpu_trace_csv/matrixMul_trace.csv", "GeForce GTX 1080 Ti"),
        ("nvprof_metrics_csv/matrixMul_metrics.csv", "GeForce GTX 1080 Ti"),
        ("nvprof_summary_text/k80_tf2_mnist.txt", "Tesla K80"),
    ],
)
def test_tables_name_their_gpu(file, gpu) -> None:
    assert gather_evidence(open_profile(DATA / "profiles" / file)).gpus == (gpu,)


def test_kernels_of_the_processor_are_of_no_gpu() -> None:
    on_processor = OriginEvidence((), {}, None, None, on_processor="CPUExecutionProvider")
    (against,) = find_contradictions(on_processor, find_device("h100-sxm"))
    assert against == "CPUExecutionProvider computed on the processor, not on H100 SXM5 80GB"
    assert find_contradictions(on_processor, find_device("xeon-8480")) == []


def test_nsight_systems_has_a_table_of_gpus(tmp_path) -> None:
    path = tmp_path / "run.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, shortName INTEGER);
            INSERT INTO StringIds VALUES (1, 'ampere_h16816gemm_128x128_ldg8_stages_32x5_tn');
            INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100-SXM4-80GB'), (1, 'NVIDIA A100-SXM4-80GB');
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 10, 1);
            """
        )
    evidence = gather_evidence(open_profile(path))
    assert evidence.gpus == ("NVIDIA A100-SXM4-80GB",)
    assert evidence.precision == "half" and evidence.minimum_capability[0] == 8.0
    assert find_contradictions(evidence, find_device("a100-sxm-80gb"), precision="fp16") == []
    assert find_contradictions(evidence, find_device("a100-sxm-80gb"), precision="bf16") == []


@pytest.mark.parametrize(
    ("kernels", "precision"),
    [
        ({"maxwell_dgemm_64x64_nn": 1.0}, "fp64"),
        ({"volta_s884cudnn_fp16_256x128_ldg8_relu_exp": 1.0}, "half"),
        ({"turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn": 1.0}, "half"),
        ({"sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16": 1.0}, "tf32"),
        ({"ampere_sgemm_128x64_nn": 1.0, "ampere_h16816gemm_64x64": 0.05}, "fp32"),
        ({"ampere_sgemm_128x64_nn": 1.0, "ampere_h16816gemm_64x64": 0.5}, None),  # both: it does not tell
        ({"vectorized_elementwise_kernel<float>": 1.0}, None),  # no product
        ({}, None),
    ],
)
def test_names_of_cublas_and_cudnn_tell_the_precision(kernels, precision) -> None:
    assert dominant_precision(kernels) == precision


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [  # as cuBLAS of CUDA 12 and 13 and Tensile name kernels for operands of bfloat16, float16, float8_e4m3fn, ...
        ("nvjet_tst_128x256_64x6_2x1_2cta_v_bz_TNT", "bf16"),
        ("nvjet_sm100_tst_mma_128x256x64_3_64x32x64_tmaAB_bz_TNT", "bf16"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", "fp16"),
        ("nvjet_qqtst_112x128_128x7_2x1_v_bz_coopA_algo2_TNN", "fp8"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn", "bf16"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x512_MI16x16x1", "bf16"),
        ("Cijk_Alik_Bljk_HHS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64", "fp16"),
        ("Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x128", "fp8"),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1", "fp32"),
        ("Cijk_Ailk_Bljk_DB_MT64x64x16_SE_K1", "fp64"),
        # No products, although their names have "mma" and "grad" in them.
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long)", None),
        ("void at::native::layer_norm_grad_input_kernel<float, float>(float const*)", None),
    ],
)
def test_names_of_kernels_tell_the_precision_of_the_operands(kernel, precision) -> None:
    assert precision_in_names({kernel: 1.0}) == precision


@pytest.mark.parametrize(
    ("device", "named", "fits"),
    [
        ("k80-die", "Tesla K80", True), ("k80", "Tesla K80", True), ("v100-pcie", "Tesla V100-SXM2-16GB", True),
        ("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", True), ("mi300x", "AMD Instinct MI300X", True),
        ("t4", "Tesla V100-SXM2-16GB", False), ("a100-sxm-80gb", "NVIDIA H100 80GB HBM3", False),
    ],
)  # fmt: skip
def test_variants_of_a_model_are_not_distinguished(device, named, fits) -> None:
    against = find_contradictions(OriginEvidence((named,), {}, None, None), find_device(device))
    assert (against == []) is fits


def test_a_kernel_of_a_later_generation_cannot_have_run() -> None:
    volta = OriginEvidence((), {}, "fp32", (7.0, "volta_sgemm_64x64_nt"))
    assert find_contradictions(volta, find_device("k80")) == [
        "its kernel volta_sgemm_64x64_nt needs compute capability 7, Tesla K80 has 3.7"
    ]
    assert find_contradictions(volta, find_device("a100-sxm-80gb")) == []  # libraries still carry it
    assert find_contradictions(NOTHING, find_device("k80"), "vgg16", "fp64") == []


@pytest.mark.parametrize(
    ("name", "text", "rank"),
    [
        ("trace.json", '{"distributedInfo": {"backend": "nccl", "rank": 5, "world_size": 8}, "traceEvents": []}', 5),
        ("trace.json", '{"distributedInfo": {"pg_config": [{"ranks": [1]}], "rank": 6}, "traceEvents": []}', 6),
        ("worker3_step_12.169.pt.trace.json", '{"traceEvents": []}', 3),
        ("rank-0.Apr_03.pt.trace.json", '{"traceEvents": []}', 0),
        ("resnet_num_workers_4.json", '{"traceEvents": []}', None),
        ("frank2.json", '{"traceEvents": []}', None),
    ],
)
def test_ranks_by_the_trace_or_its_name(tmp_path, name, text, rank):
    path = tmp_path / name
    path.write_text(text)
    assert find_rank(Profile(path, "chrome-trace", None)) == rank


@pytest.mark.parametrize(
    ("kernel", "capability"),
    [
        ("maxwell_sgemm_128x64_nn", 5.0),
        ("volta_h884gemm_64x64_ldg8_nn", 7.0),
        ("turing_fp16_s1688gemm_fp16_64x64", 7.5),
        ("ampere_bf16_s16816gemm_bf16_128x64", 8.0),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn", 9.0),
    ],
)
def test_names_of_kernels_tell_their_compute_capability(kernel: str, capability: float, tmp_path) -> None:
    """Compute capabilities: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"."""
    event = {"ph": "X", "cat": "kernel", "name": kernel, "ts": 1, "dur": 1, "args": {}}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event]}))
    evidence = gather_evidence(open_profile(tmp_path / "trace.json"))
    assert evidence.minimum_capability == (capability, kernel)


ROCPROF = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"Cijk_Ailk_Bljk_BBS.kd",10,1000000,100000,100.0\n'
MSPROF = "Device_id,Model ID,OP Type,Core Type,Count,Total Time(us)\n0,1,MatMulV2,AI_CORE,10,1000.0\n"
TENSILE = {"ph": "X", "cat": "kernel", "name": "Cijk_Ailk_Bljk_BBS_BH_MT128x128", "ts": 1, "dur": 1, "args": {}}


@pytest.mark.parametrize(
    ("text", "sign", "made_by"),
    [
        (ROCPROF, "it was made by AMD's profiler (format rocprof)", "mi300x"),
        (MSPROF, "it was made by Huawei's profiler (format ascend)", "ascend-910b"),
        (
            json.dumps({"traceEvents": [TENSILE]}),
            "its kernel Cijk_Ailk_Bljk_BBS_BH_MT128x128 is of AMD's libraries",
            "mi300x",
        ),
        (
            json.dumps({"traceEvents": [{**TENSILE, "name": "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"}]}),
            "its kernel nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT is of NVIDIA's libraries",
            "h100-sxm",
        ),
    ],
)
def test_a_profiler_of_one_maker_is_for_its_devices(text, sign, made_by, tmp_path) -> None:
    path = tmp_path / "profile"
    path.write_text(text)
    evidence = gather_evidence(open_profile(path))
    assert find_contradictions(evidence, find_device(made_by)) == []
    other = find_device("rtx4090" if find_device(made_by).vendor != "NVIDIA" else "mi355x")
    assert find_contradictions(evidence, other) == [f"{sign}, and {other.name} is a device of {other.vendor}"]


def test_makers_of_profilers_make_devices() -> None:
    readers = [load_reader(*names) for names in READERS]
    makers = {getattr(reader, "maker", None) for reader in readers} - {None}
    assert {"AMD", "Huawei", "Intel", "NVIDIA"} == makers <= {device.vendor for device in list_devices()}
