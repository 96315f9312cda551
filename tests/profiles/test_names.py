"""Kernel names: shortening, classification, and robustness against arbitrary names."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.profiles import names
from paleo_lite.profiles.names import CLASSES, LONGEST, classify, communicates, normalise

# Names as profilers printed them (pyprof, nvprof, kineto, nsys), or as cuDNN, cuBLAS, CUTLASS and NCCL call them.
# Classes follow cuDNN's algorithm names and the operation that launched the kernel.
TABLE = [
    # cuDNN on Kepler, from SURFBoard's pyprof files and an nvprof summary
    ("cudnn::detail::implicit_convolve_sgemm", None, "convolution_implicit_gemm", None),
    ("void cudnn::detail::implicit_convolve_sgemm<float, float, int=1024, int=5>(int, int, float const *)",
     "cudnn::detail::implicit_convolve_sgemm", "convolution_implicit_gemm", None),
    ("cudnn_convolve_sgemm_sm35_ldg_nn_64x16x64x16x16", None, "convolution_precomputed_gemm", False),
    ("cudnn::detail::dgrad_engine", None, "convolution_dgrad", None),
    ("cudnn::detail::dgrad2d_alg1_1", None, "convolution_dgrad", None),
    ("cudnn_dgrad_sm35_ldg_nt_64x16x128x8x32", None, "convolution_dgrad", False),
    ("cudnn::detail::wgrad_alg0_engine", None, "convolution_wgrad", None),
    ("cudnn::winograd::winograd3x3Kernel", None, "convolution_winograd", None),
    ("cudnn::winograd_nonfused::winogradWgradDelta4x4", None, "convolution_winograd", None),
    ("fft2d_r2c_32x32", None, "convolution_fft", False),
    ("pointwise_mult_and_sum_complex", None, "convolution_fft", None),
    ("im2col4d_kernel", None, "convolution_explicit_gemm", None),
    ("void explicit_convolve_sgemm<float, int, 128, 5, 5, 3, 3, 3, 0, false>(int, int)", "explicit_convolve_sgemm",
     "convolution_explicit_gemm", None),
    ("void precomputed_convolve_sgemm<float, 1024, 5, 5, 4, 3, 3, 1, false>(int, int)", "precomputed_convolve_sgemm",
     "convolution_precomputed_gemm", None),
    # cuDNN from Maxwell to Ampere
    ("maxwell_scudnn_128x64_relu_small_nn_v1", None, "convolution_precomputed_gemm", False),
    ("volta_scudnn_128x64_stridedB_interior_nn_v1", None, "convolution_dgrad", False),
    ("volta_scudnn_128x128_stridedB_splitK_small_nn_v1", None, "convolution_wgrad", False),
    ("cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", None, "convolution_winograd", False),
    ("volta_s884cudnn_fp16_256x64_ldg8_relu_exp_small_nhwc_tn_v1", None, "convolution_precomputed_gemm", True),
    ("turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_interior_nhwc_tn_v1", None,
     "convolution_precomputed_gemm", True),
    ("turing_fp16_s1688cudnn_fp16_128x128_ldg8_dgrad_exp_interior_nhwc_nt_v1", None, "convolution_dgrad", True),
    ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4"
     "_warpsize2x2x1_g1_tensor16x8x8_execute_kernel_cudnn_train", None, "convolution_wgrad", True),
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_stage5_warpsize2x2x1_g1"
     "_tensor16x8x8_execute_kernel_cudnn_infer", None, "convolution_implicit_gemm", True),
    ("void conv_depthwise2d_forward_kernel<1, float, int>(at::GenericPackedTensorAccessor<float const>)",
     "conv_depthwise2d_forward_kernel", "convolution_direct", None),
    ("conv_depthwise2d_grad_weight_kernel", None, "convolution_wgrad", None),
    ("conv_depthwise2d_backward_kernel", None, "convolution_dgrad", None),
    ("void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, float>(cudnnTensorStruct)",
     "cudnn::cnn::conv2d_grouped_direct_kernel", "convolution_direct", None),
    # operators in profiles of ONNX Runtime, with the names of ONNX and of com.microsoft
    ("Conv", None, "convolution_direct", None),
    ("FusedConv", None, "convolution_direct", None),
    ("QLinearConv", None, "convolution_direct", None),
    ("ConvTranspose", None, "convolution_direct", None),
    ("Gemm", None, "gemm", None),
    ("MatMulNBits", None, "gemm", None),
    ("ReorderInput", None, "layout", None),
    # engines of language models, as their traces on A100, H100, B200 and MI300X have them
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90"
     "<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >>>>>(Params)", "flash::FlashAttnFwdSm90", "attention", None),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashA...", "flash::FlashA", "attention", None),
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<x>>(Params)",
     "cutlass::gemm::kernel::GemmUniversal", "gemm", None),
    ("void cutlass::device_kernel<cutlass::conv::kernel::ConvUniversal<cutlass::conv::Operator::kFprop>>(Params)",
     "cutlass::conv::kernel::ConvUniversal", "convolution_implicit_gemm", None),
    ("void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized<x>>(Params)",
     "cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized", "attention", None),
    ("void cutlass::device_kernel<flat::kernel::FlatKernelTmaWarpSpecializedDeltaRule<x>>(Params)",
     "flat::kernel::FlatKernelTmaWarpSpecializedDeltaRule", "attention", None),
    ("flash::prepare_varlen_num_blocks_kernel", None, "attention", None),
    ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", None, "attention", None),
    ("mla_a8w8_qh16_qseqlen4_gqaratio16", None, "attention", None),
    ("void marlin_moe_wna16::Marlin<1125899906909960, 256, 1>(int4 const*)", "marlin_moe_wna16::Marlin", "gemm", None),
    ("_ZN5aiter40fmoe_bf16_blockscaleFp8_g1u1_silu_32x256E", "aiter::fmoe_bf16_blockscaleFp8_g1u1_silu_32x256", "gemm",
     None),
    ("void wvSplitK_hf_sml_<__hip_bfloat16, 64>(int)", "wvSplitK_hf_sml_", "gemm", None),
    ("void mul_mat_q3_K<c10::BFloat16, true>(void const*)", "mul_mat_q3_K", "gemm", None),
    ("void moe_q2_K<c10::BFloat16, true>(void const*)", "moe_q2_K", "gemm", None),
    ("void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 64>(float*)",
     "flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel", "elementwise", None),
    ("void moe_fused_gate_kernel_dynamic<float>(void*)", "moe_fused_gate_kernel_dynamic", "indexing", None),
    ("void vllm::moe::moe_align_block_size_kernel<int>(int*)", "vllm::moe::moe_align_block_size_kernel", "indexing",
     None),
    ("set_mla_kv_buffer_kernel", None, "indexing", None),
    # matrix products
    ("sgemm_largek_lds64", None, "gemm", False),
    ("maxwell_sgemm_128x64_tn", None, "gemm", False),
    ("volta_h884gemm_64x64_ldg8_tn", None, "gemm", True),
    ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", None, "gemm", True),
    ("turing_h1688gemm_128x128_ldg8_nn", None, "gemm", True),
    ("turing_int8_i8816gemm_int8_128x128_ldg16_relu_nn", None, "gemm", True),
    ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f2f_stages_64x3_nn", None, "gemm", True),
    ("ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn", None, "gemm", True),
    ("ampere_h16816gemm_256x128_ldg8_stages_64x3_nn", None, "gemm", True),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel"
     "__5x_cublas", None, "gemm", False),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x"
     "_cublas_gmma", None, "gemm", True),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>"
     "(cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4::Params)",
     "cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4", "gemm", True),
    ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm::Params)",
     "cutlass_80_simt_sgemm_128x32_8x5_nn_align1", "gemm", False),
    ("void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_32x4_nhwc_align4>(x::Params)",
     "cutlass_tensorop_s1688fprop_optimized_tf32_128x128_32x4_nhwc_align4", "convolution_implicit_gemm", True),
    ("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN", None, "gemm", True),
    ("void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)", "splitKreduce_kernel", "gemm", None),
    ("Cijk_Ailk_Bljk_SB_MT64x64x16_SN_1LDSB0", None, "gemm", None),
    # the rest of a network
    ("void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_fw_tr_1C11_args<float>)",
     "cudnn::bn_fw_tr_1C11_singleread", "batch_norm", None),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)",
     "at::native::vectorized_layer_norm_kernel", "normalization", None),
    ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)",
     "at::native::max_pool_forward_nchw", "pooling", None),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)",
     "softmax_warp_forward", "softmax", None),
    ("void <unnamed>::softmax_warp_forward<float, float, float, (int)6, (bool)0, (bool)0>(T2 *, const T1 *)",
     "softmax_warp_forward", "softmax", None),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::launch_clamp_scalar("
     "at::TensorIteratorBase&, c10::Scalar)::{lambda()#1}::operator()() const>(int)",
     "at::native::vectorized_elementwise_kernel", "elementwise", None),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)"
     "::TensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>>(int)",
     "at::native::multi_tensor_apply_kernel", "optimizer", None),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)"
     "::TensorListMetadata<1>, at::native::BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>>(int)",
     "at::native::multi_tensor_apply_kernel", "elementwise", None),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(int)",
     "at::native::reduce_kernel", "reduction", None),
    ("void tensorflow::functor::ApplyAdamKernel<float>(int, float*)", "tensorflow::functor::ApplyAdamKernel",
     "optimizer", None),
    ("triton_red_fused_sum_1", None, "reduction", None),
    ("triton_poi_fused_add_cos_sin_0", None, "elementwise", None),
    ("flash_fwd_kernel", None, "attention", None),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", None, "attention", None),
    ("attn_fwd", None, "attention", None),
    ("_attn_bwd_dkdv", None, "attention", None),
    ("bwd_kernel_dk_dv", None, "attention", None),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<1, 2>(int)", "flashinfer::BatchDecodeWithPagedKVCacheKernel",
     "attention", None),
    ("_fwd_grouped_kernel_stage1", None, "attention", None),
    ("void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsync<int>>>(int)",
     "ck_tile::kentry", "attention", None),
    ("store_kvcache", None, "indexing", None),
    ("void at::native::(anonymous namespace)::cuComputeGradGammaBeta<float, float, true>(float const*)",
     "at::native::cuComputeGradGammaBeta", "normalization", None),
    ("nvjpeg::dctQuantInvJpegKernel", None, "input", None),
    ("dali::kernels::resampling::BatchedSeparableResampleKernel", None, "input", None),
    # copies and messages
    ("[CUDA memcpy HtoD]", "memcpy HtoD", "memcpy", False),
    ("[CUDA memcpy Host-to-Device]", "memcpy HtoD", "memcpy", False),
    ("Memcpy HtoD (Pageable -> Device)", "memcpy HtoD", "memcpy", False),
    ("[CUDA memset]", "memset", "memset", False),
    ("Memset (Device)", "memset", "memset", False),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
     "ncclKernel_AllReduce_RING_LL_Sum_float", "communication", False),
    # spellings
    ("unnamed>::gemm_naive_kernel(const float *, const float *, float *, int, int, int)", "gemm_naive_kernel", "gemm",
     None),  # as Nsight Compute wrote it into a CSV
    ("void matrixMulCUDA<int=32>(float*, float*, float*, int, int) [1073]", "matrixMulCUDA", "gemm", None),
    ("std::enable_if<(((0)>(0)))&&vllm::_typeConvert<T1>::exists, void>::type vllm::rms_norm_kernel<c10::BFloat16, "
     "(int)8>(T1 *, float)", "vllm::rms_norm_kernel", "normalization", None),
    # MIOpen's data gradient, and the decode kernel of a small vLLM
    ("igemm_bwd_gtcx3_nhwc_fp16_bx0_ex0_bt128x128x32", None, "convolution_dgrad", None),
    ("_triton_paged_decode_v2_kernel", None, "attention", None),
    ("redzone_checker", None, "other", None),
    ("my_kernel", None, "other", None),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "name", "label", "tensor_core"), TABLE, ids=[row[0][:60] for row in TABLE])
def test_names_and_classes(raw, name, label, tensor_core):
    known = classify(raw)
    assert known.name == (raw if name is None else name)
    assert known.label == label
    assert known.tensor_core is tensor_core


# Mangled names and what nsys prints for the same kernels (profiles/nsys_sqlite), or c++filt for the others.
MANGLED = [
    ("_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIffffEEjfLi4ELi4EEEEEvT1_",
     "at::native::reduce_kernel"),
    ("_ZN2at6native40_GLOBAL__N__0f1a8107_8_Shape_cu_49f7391c30CatArrayBatchedCopy_vectorizedINS1_10OpaqueTypeILj4EEEj"
     "Li1ELi128ELi1ELi16ELi4EEEvPcNS1_25CatArrInputTensorMetadataIT_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS6_Lj4EEEiS6_",
     "at::native::CatArrayBatchedCopy_vectorized"),
    ("_ZN50_GLOBAL__N__fa15d16e_17_RangeFactories_cu_38772b0829elementwise_kernel_with_indexIiZZZN2at6native15arange_",
     "elementwise_kernel_with_index"),
    ("_ZN5cudnn6detail23implicit_convolve_sgemmIffLi128EEEvi", "cudnn::detail::implicit_convolve_sgemm"),
    ("_Z5saxpyifPfS_", "saxpy"),
    ("_ZL11local_thingi", "local_thing"),
    ("_ZN12_GLOBAL__N_13fooEv", "foo"),
    ("__nv_static_73__60_tmpxft_00002314_00000000_15_spRealComplex_compute_60_cpp1_ii_1f28721c__ZN13spRealComplex23"
     "preprocessC2C_kernelMemIjfL9fftAxii_t3EEEvP7ComplexIT0_E", "spRealComplex::preprocessC2C_kernelMem"),
]  # fmt: skip


@pytest.mark.parametrize(("mangled", "name"), MANGLED, ids=[row[1] for row in MANGLED])
def test_mangled(mangled, name):
    assert normalise(mangled) == name


@pytest.mark.parametrize("name", ["aten::mm", "aten::addmm", "aten::baddbmm", "aten::linear"])
def test_operations_of_printed_tables_are_products(name):
    assert classify(name).label == "gemm"


def test_truncated_mangled_cutlass_kernel_is_classified():
    # As kineto cut it in torch_chrome_trace/nccl_parser_config.
    name = (
        "_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22ImplicitGemm"
        "MultistageINS_4gemm9GemmShapeILi128ELi128ELi32EEENS4_52Conv2dWgradOutputGradientTileAccessIteratorOptimizedI"
    )
    assert classify(name).label == "convolution_wgrad"


@pytest.mark.parametrize(
    "name",
    [
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)",
        "void deep_ep::internode::notify_dispatch<false, 4>(int const*, int*)",
        "void deep_ep::internode_ll::combine<true, 3, 7168, 9>(void*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)",
        "nvshmemi_transfer_amo_nonfetch_device",
        # DeepEP without its namespace, as in the traces that DeepSeek published.
        "dispatch",
        "combine",
        "void dispatch<8, 768>(int4*)",
        "notify_dispatch",
        "cached_notify_combine",
        "mscclKernel_Sum___half_Simple",
        "void mori::moe::EpDispatchInterNodeKernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs)",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>(half const*)",
        "void aiter::cross_device_reduce_1stage<__hip_bfloat16, 8>(aiter::RankData*)",
        "multimem_all_reduce_kernel",
        "userbuffers_fp16_sum_inplace_gpu_mc_rs_oop",
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<float>(int)",
        "all-reduce-start.3",
    ],
)
def test_kernels_of_communication_libraries_communicate(name: str) -> None:
    """The libraries are DeepEP, vLLM, SGLang, NVSHMEM, MSCCL, MORI, AITER, PyTorch, Transformer Engine and XLA."""
    assert classify(name).label == "communication"
    assert communicates(name)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)", "attention"),
        ("triton_red_fused_all_reduce_add_native_layer_norm_0", "reduction"),
        ("void at::native::index_elementwise_kernel<128, 4>(int)", "indexing"),
    ],
)
def test_words_of_communication_in_other_kernels(name: str, label: str) -> None:
    assert classify(name).label == label
    assert not communicates(name)


def test_copies_and_messages_are_known_by_their_category():
    assert classify("mpi_bcast", "communication").label == "communication"
    assert classify("mpi_bcast").label == "other"


@given(st.text(max_size=300))
def test_any_text_is_a_name(text):
    known = classify(text)
    assert known.label in CLASSES
    assert len(known.name) <= max(LONGEST, len(text))


@given(st.text("_ZN0123456789SIELabc", max_size=200).map("_Z".__add__))
def test_any_mangled_text_is_a_name(text):
    assert len(normalise(text)) <= 2 * len(text)


@pytest.mark.parametrize("unit", ["_ZN", "<", "cudnn_", "conv", "_GLOBAL__N_", "S_", "9999", "(anonymous namespace)::"])
def test_a_name_of_a_million_characters_is_cut(unit):
    assert len(classify(unit * 1_000_000).name) <= LONGEST


@pytest.mark.needs_data
def test_nsys_own_names_agree(data_folder):
    """nsys stores each kernel mangled, demangled and short: three spellings of one name."""
    path = data_folder / "profiles" / "nsys_sqlite" / "h100_2gpu_1s.sqlite"
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = database.execute(
        "SELECT DISTINCT m.value, d.value, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds m ON"
        " m.id = k.mangledName JOIN StringIds d ON d.id = k.demangledName JOIN StringIds s ON s.id = k.shortName"
    ).fetchall()
    database.close()
    assert len(rows) > 30
    for mangled, demangled, short in rows:
        assert normalise(mangled) == normalise(demangled)
        assert normalise(mangled).rsplit("::", 1)[-1] == short


@pytest.mark.thorough
@pytest.mark.needs_data
def test_classes_agree_with_the_operations_of_a_trace(data_folder):
    """The class of each cuDNN kernel must agree with the operation that launched it according to PyTorch."""
    folder = data_folder / "profiles" / "torch_chrome_trace_resnet50"
    with gzip.open(next(folder.glob("*.json.gz"))) as file:
        events = json.load(file)["traceEvents"]
    ops = {
        event["args"]["External id"]: event["name"]
        for event in events
        if event.get("cat") == "Operator" and "External id" in event.get("args", {})
    }
    gradients = {
        "aten::cudnn_convolution_backward_input": "convolution_dgrad",
        "aten::cudnn_convolution_backward_weight": "convolution_wgrad",
    }
    anything = {"convolution_winograd", "gemm", "elementwise", "layout", "memset", "convolution_precomputed_gemm"}
    checked = Counter()
    for event in events:
        op = ops.get(event.get("args", {}).get("external id")) if event.get("cat") == "Kernel" else None
        label = classify(event["name"]).label if op else ""
        if op in gradients:
            assert label == gradients[op] or label in anything, (op, event["name"])
            checked[label] += 1
        elif op == "aten::cudnn_convolution":
            assert label not in gradients.values(), event["name"]
            checked[label] += 1
        elif op in ("aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward"):
            assert label in ("batch_norm", "elementwise", "memset"), event["name"]
    assert checked["convolution_dgrad"] > 200 and checked["convolution_wgrad"] > 200


@pytest.mark.needs_data
def test_more_than_99_percent_of_gpu_time_is_classed(data_folder):
    from pyarrow import parquet

    files = sorted((data_folder / "surfboard" / "pyprof_kernels").glob("*_1_2_ib_*dali-gpu_64_*.gzip"))
    assert files
    for file in files:
        table = (
            parquet.read_table(file, columns=["Kernel", "Sil(ns)"]).group_by("Kernel").aggregate([("Sil(ns)", "sum")])
        )
        times: Counter[str] = Counter()
        for row in table.to_pylist():
            times[classify(row["Kernel"]).label] += row["Sil(ns)_sum"]
        assert times["other"] < 0.01 * times.total(), file.name


TENSILE = (
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_"
    "DTLA0_DTLB0_SRVW0_SSO0_SVW8_SK0_SKFTR0_SKXCCM0_TLDS1_ULSGRO{}_USL1_UIOFGRO0_USFGROn1_VSn1_VWA8_VWB2_WG32_8_1"
)


def test_tensiles_names_are_short_and_stay_distinct():
    first, second = (normalise(TENSILE.format(number)) for number in (0, 1))
    assert first != second and len(first) == len(second) < 70
    assert all(name.startswith("Cijk_Alik_Bljk_BBS_MT256x192x64_MI16x16x1_") for name in (first, second))
    assert classify(TENSILE.format(0)).label == "gemm" and normalise(TENSILE.format(0)) == first


@pytest.mark.needs_data
def test_real_tensile_names_stay_distinct(data_folder):
    trace = data_folder / "profiles" / "tracelens_models" / "mi300__resnet_act_checkpoint.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {event["name"] for event in events if event.get("cat") == "kernel" and event["name"].startswith("Cijk")}
    short = {normalise(name) for name in names}
    assert len(short) == len(names) > 5 and max(map(len, short)) <= 70


PIECES = ["conv", "fft", "stage", "sm", "x", "d_", "_", "gemm", "cudnn_", "dgrad", "im", "::", "adam", "pad"]


@given(st.lists(st.sampled_from(PIECES) | st.integers(0, 10**7).map(str), max_size=6).map("".join))
def test_long_numbers_change_no_class(name):
    """Names that differ in them are looked up once."""
    told = (label for label, pattern in names._BY_NAME if pattern.search(normalise(name)))
    assert classify(name).label == next(told, "other")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        # Prefill of DeepSeek-V3 on 32 H800 with two micro-batches, as DeepSeek published it.
        ("void dpsk::ep::internode::dispatch<false, 4, false, 4>(int4*, float*, long*)", "communication"),
        ("void dpsk::ep::internode::combine<false, 4, __nv_bfloat16>(int4*)", "communication"),
        ("void dpsk::ep::internode::notify_dispatch<false, 4>(int const*)", "communication"),
        ("void dpsk::ep::internode::cached_notify<false>(int, int, int)", "communication"),
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)", "communication"),
        # CUB in a namespace of the same library, which samples tokens.
        ("void cdpsk::ep::CUB_200700_900_NS::DeviceScanByKeyKernel<int>(int*)", "reduction"),
        ("void dpsk::gemm::fp8_gemm_kernel<7168u, 2048u, (dpsk::gemm::GemmType)1>(__nv_bfloat16*)", "gemm"),
        ("compute_attn_ws", "attention"),
        ("top2_sum_gate", "indexing"),
        ("clean_and_count_expert", "indexing"),
        ("get_fused_mapping", "indexing"),
        ("expand_to_fused_with_scales", "indexing"),
        # SGLang and vLLM (Triton), and FlashAttention's layer norm.
        ("fused_moe_kernel", "gemm"),
        ("void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<float>>(layer_norm::FwdParams)", "normalization"),
    ],
)
def test_kernels_of_published_traces(name: str, label: str) -> None:
    assert classify(name).label == label


def test_every_description_of_a_class_stands_alone():
    """A table shows some classes only, so that none may be described by its neighbour."""
    assert not [label for label, text in CLASSES.items() if re.search(r"\b(same|above|likewise|latter)\b", text)]
