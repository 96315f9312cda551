"""Normalisation of kernel names (without templates and parameters) and classification of kernels by name.

A CUDA kernel is a free function (``__global__`` functions cannot be members), so its name consists of namespaces and
one identifier before the first list of template arguments or parameters. This part of an Itanium-mangled name is
decoded here in one pass. General demanglers expand substitutions, which a malicious name makes exponentially long,
and they reject the truncated names that profilers write.

The class follows from a table of patterns; the first match wins. The names are those of cuDNN (algorithms as in
``cudnnConvolutionFwdAlgo_t`` and its backward counterparts), cuBLAS, CUTLASS (instruction shapes as in its
``functionality.md``), NCCL, DALI, nvJPEG, PyTorch, TensorFlow, MIOpen, and the attention kernels of AOTriton,
Composable Kernel, FlashInfer and SGLang. The convolution pass of ``scudnn`` kernels was determined from PyTorch
traces, which record the operation of each kernel.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

LONGEST = 4096
"""Characters of a name that are used; the rest of longer names is nested template arguments."""

CLASSES = {
    "convolution_implicit_gemm": "convolution as a matrix product without a stored im2col matrix",
    "convolution_precomputed_gemm": "convolution as a matrix product with precomputed offsets of the input",
    "convolution_explicit_gemm": "convolution as im2col and a matrix product",
    "convolution_winograd": "convolution by minimal filtering: fewer multiplications than direct",
    "convolution_fft": "convolution by Fourier transforms and products of complex matrices",
    "convolution_dgrad": "gradient of a convolution with respect to its input",
    "convolution_wgrad": "gradient of a convolution with respect to its weights",
    "convolution_direct": "direct, depthwise and other convolution",
    "convolution_gemm": "matrix product called by a convolution",
    "convolution_besides": "auxiliary kernel of a convolution: layout, fill, sum",
    "gemm": "matrix product",
    "attention": "fused attention",
    "batch_norm": "batch normalisation",
    "normalization": "layer, group, instance and other normalisation",
    "pooling": "pooling",
    "softmax": "softmax, cross entropy and other losses",
    "optimizer": "update of the parameters",
    "reduction": "sums, means, maxima, scans",
    "layout": "transposition, concatenation, change of memory layout",
    "indexing": "gather, scatter, embedding, sorting, routing",
    "random": "random numbers and dropout",
    "elementwise": "one operation per element",
    "fft": "Fourier transform outside of a convolution",
    "input": "decoding and augmenting input on the GPU",
    "memcpy": "copy",
    "memset": "fill of memory",
    "communication": "collectives and other messages between devices",
    "other": "not recognised by its name, or left out of a printed table",
}
"""Description by class. ``convolution_gemm`` and ``convolution_besides`` need a profiler that records operations."""


class KernelName(msgspec.Struct, frozen=True):
    """A kernel name with its class."""

    name: str  # the normalised name
    label: str  # class, one of `CLASSES`
    raw: str  # name as printed by the profiler

    @property
    def tensor_core(self) -> bool | None:
        """Whether the kernel uses tensor cores; None if the name does not show it."""
        name, raw = self.name.lower(), self.raw[:LONGEST].lower()
        if [word for word in _ON_TENSOR_CORES if word in raw] and (
            _TENSOR_CORE.search(name) or _TENSOR_CORE.search(raw)
        ):
            return True
        return False if [word for word in _ON_VECTOR_UNITS if word in name] and _VECTOR.search(name) else None

    @property
    def family(self) -> str:
        """The class, without the algorithm of a convolution."""
        return "convolution" if self.label.startswith("convolution") else self.label


@lru_cache(maxsize=2**19)  # a profile of generated kernels can have this many names
def classify(raw: str, category: str = "kernel") -> KernelName:
    """Return normalised name and class of a kernel.

    The name is as printed by the profiler: plain, demangled or mangled, complete or truncated. The category of the row
    (`paleo_lite.profiles.table.SCHEMA`) decides for copies, fills and communication, whatever their names.
    ``convolution`` marks a kernel of a convolution operation: it gets a convolution class even if its name is that of a
    plain matrix product.
    """
    name = normalise(raw)
    if category in CLASSES_WITHOUT_ARITHMETIC:
        return KernelName(name, category, raw)
    wraps, label = _class_of(_LONG_NUMBER.sub(r"\1000", name.lower()))
    if wraps:  # the class follows from the template arguments
        arguments = raw[:LONGEST].lower()
        label = next((candidate for candidate, pattern in _BY_ARGUMENT if pattern.search(arguments)), label)
    if category == "convolution" and not label.startswith("convolution"):
        label = "convolution_gemm" if label == "gemm" else "convolution_besides"
    return KernelName(name, label, raw)


def communicates(raw: str) -> bool:
    """Return whether a kernel belongs to a communication library, by the name that the profiler prints."""
    return classify(raw).label == "communication"


def multiplies_matrices(raw: str) -> bool:
    """Return whether a kernel is a matrix product, a convolution or attention, by the name that the profiler prints."""
    return _MATRIX_CLASSES.match(classify(raw).label) is not None


@lru_cache(2**16)
def _class_of(name: str) -> tuple[bool, str]:
    """Return whether a kernel is a wrapper, and the class of its name."""
    label = next((label for label, pattern in _BY_NAME if pattern.search(name)), "other")
    return _WRAPPERS.search(name) is not None, label


def normalise(raw: str) -> str:
    """Remove return type, templates, parameters and anonymous namespaces from a name.

    A CUTLASS wrapper (``cutlass::Kernel<cutlass_80_tensorop_...>``, ``cutlass::device_kernel<flash::FlashAttnFwd>``)
    gets the name of its argument. The names of Tensile (AMD's GEMMs) are shortened; different names stay different.

    Examples
    --------
    >>> normalise("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)")
    'at::native::reduce_kernel'
    >>> normalise("_ZN2at6native13reduce_kernelILi512ELi1EfEEvT1_")
    'at::native::reduce_kernel'
    """
    text = raw[:LONGEST].strip()
    if text.endswith("]"):
        text = _CORRELATION.sub("", text)
    if text.startswith("__nv_static_"):
        text = _STATIC.sub("", text)
    if text.startswith("_Z"):
        return "::".join(_mangled_parts(text)) or text
    copy = _COPY.fullmatch(text) if text[:1] in "[cCmM" else None
    if copy:
        direction = (copy[2] or "").replace("Host", "H").replace("Device", "D").replace("Peer", "P").replace("-", "")
        return f"{copy[1].lower()} {direction}".rstrip()
    if [word for word in _UNNAMED if word in text]:
        text = _ANONYMOUS.sub("", text)
    text = text.removeprefix("void ")
    if _RETURN_TYPE.match(text) and (end_of_type := _TYPE_END.search(text)):
        text = text[end_of_type.end() :]
    end = min([position for position in (text.find("<"), text.find("(")) if position > 0], default=len(text))
    name = text[:end].strip()
    if name.lower().endswith(("kernel", "kernel2")) and _WRAPPER.search(name) and text[end : end + 1] == "<":
        inner = _IDENTIFIER.match(text, end + 1)
        if inner and "cutlass_" in inner[1]:
            return inner[1]
        inner = _INNER_KERNEL.match(text, end + 1)
        if inner and name.endswith("device_kernel"):
            return inner[1]
    tensile = _TENSILE.match(name) if len(name) > _TENSILE_WHOLE else None
    if tensile is not None:
        # Layouts, types, macro tile and instruction are kept; a hash stands for the rest.
        return "_".join([*filter(None, tensile.groups()), hashlib.blake2b(name.encode(), digest_size=4).hexdigest()])
    return name or text


def _mangled_parts(text: str) -> list[str]:
    """Return namespaces and function of an Itanium-mangled name (<nested-name> or <source-name> of the C++ ABI)."""
    nested = _NESTED.match(text, 2)
    position = nested.end() if nested else 2
    identifiers: list[str] = []
    if text.startswith("St", position):
        identifiers.append("std")
        position += 2
    while number := _SOURCE_NAME.match(text, position):
        position = number.end() + int(number[1])
        identifier = text[number.end() : position]
        if not identifier.startswith("_GLOBAL__N_"):
            identifiers.append(identifier)
        if nested is None:
            break
    return identifiers


# Parsing of names -----------------------------------------------------------------------------------------------------

_ANONYMOUS = re.compile(
    r"_GLOBAL__N_\w*::|\(anonymous(?: namespace)?\)::|<?unnamed>::|\{anonymous\}::|`anonymous namespace'::"
)
_UNNAMED = ("nonymous", "unnamed", "_GLOBAL__N_")  # tested first: ten times faster than the pattern
_CORRELATION = re.compile(r"\s*\[\d+\]$")  # nvprof's GPU trace appends the correlation id to the name
_STATIC = re.compile(r"^__nv_static_\d+__\w*?_(?=_Z)")  # nvcc's prefix of a kernel with internal linkage
_TENSILE = re.compile(r"(Cijk_[A-Z][a-z]+_[A-Z][a-z]+_[A-Z0-9]+)\w*?_(MT\d+(?:x\d+)+)(?:_(MI\d+(?:x\d+)+))?")
_TENSILE_WHOLE = 64  # Tensile names up to this length are not shortened
_COPY = re.compile(
    r"\[?(?:cuda )?(memcpy|memset)(?:[\s,]+([HDPA]to[HDPA]|(?:Host|Device|Peer)-to-(?:Host|Device|Peer)))?"
    r"(?:\s*\(.*|\])?",
    re.IGNORECASE,
)
_MATRIX_CLASSES = re.compile(r"gemm$|attention$|convolution_")

CLASSES_WITHOUT_ARITHMETIC = ("memcpy", "memset", "communication")
"""Classes that are known by their category, and that compute nothing. They are not profiled with counters: copies have
none, and collectives hang when they are replayed."""

_WRAPPER = re.compile(r"(?:^|::)(?:Kernel2?|device_kernel)$")
_IDENTIFIER = re.compile(r"(?:typename |class |struct )?([A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)")
_INNER_KERNEL = re.compile(r"(?:flash::enable_\w+<)?([A-Za-z_]\w*(?:::[A-Za-z_]\w*)+)")
"""The kernel that `cutlass::device_kernel` runs: `flash::FlashAttnFwdSm90`, `cutlass::gemm::kernel::GemmUniversal`."""
_RETURN_TYPE = re.compile(r"(?:std::)?enable_if<")
_TYPE_END = re.compile(r">::type\s+(?=[A-Za-z_])")
_SOURCE_NAME = re.compile(r"L?(\d{1,4})")
_NESTED = re.compile(r"N[rVK]*[RO]?")

# Classes --------------------------------------------------------------------------------------------------------------

_BY_NAME = [
    (label, re.compile(pattern))
    for label, pattern in (
        # Operators, in tables of PyTorch's profiler without kernels.
        ("convolution_dgrad", r"^aten::(?:cudnn_|miopen_|mkldnn_)?conv\w*backward"),
        ("convolution_direct", r"^aten::(?:cudnn_|miopen_|mkldnn_|thnn_|slow_)?_?conv"),
        ("communication", r"^record_param_comms$"),
        # Operators of ONNX, in profiles of ONNX Runtime, where their names do not show the class below.
        ("convolution_direct", r"^(?:qlinear|nhwc_?)?(?:fused)?conv(?:integer|transpose)?$"),
        ("layout", r"^(?:reorder(?:in|out)put|slice|split|(?:un)?squeeze|reshape|flatten|expand|tile|depthtospace)$"),
        ("elementwise", r"^(?:clip|where|erf|abs|sum|mean|identity|hardsigmoid|hardswish)$"),
        ("memcpy", r"^memcpy|copybuffer$|^aten::copy_$"),
        ("memset", r"^memset|fillbuffer"),
        # NCCL and RCCL, MSCCL, NVSHMEM, oneCCL, HCCL; the all-reduce of vLLM, SGLang, AITER, Transformer Engine and
        # PyTorch's symmetric memory; the exchange of experts' tokens by DeepEP (also without its namespace, as in
        # published traces), HybridEP, MORI and TensorRT-LLM; collectives of XLA.
        (
            "communication",
            r"nccl|rccl|msccl|nvshmem|oneccl|(?:^|_)hcom_|cross_device_reduce|quickreduce::|userbuffers_|multimem_"
            r"|(?:deep|hybrid)_?ep::|^mori::|^ep(?:dispatch|combine)|moe_?a2a|^(?:dispatch|combine)(?:_kernel)?$"
            r"|(?:^|::)(?:(?:internode|intranode)(?:_ll)?::|(?:cached_)?notify_(?:dispatch|combine)|get_dispatch_layout)"
            r"|sendrecv|^(?!triton_).*(?:all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all)"
            r"|^collective-permute",
        ),
        ("input", r"^dali::|^nvjpeg::"),
        (
            "attention",
            r"fmha|flash_?(?:fwd|bwd|attn|attention)|attention|sdpa|(?:^|_)attn_?(?:fwd|bwd)|mha_(?:fwd|bwd)|compute_attn"
            r"|bwd_kernel_(?:dk|dq|fuse)|(?:prefill|decode)with\w*kvcache|_fwd_(?:grouped_)?kernel_stage[12]|mla_decode"
            r"|^flash::|(?:^|::)mla_(?:a\d|dec|prefill|reduce)|delta_?rule|paged_(?:decode|prefill)",
        ),
        ("convolution_winograd", r"winograd"),
        ("convolution_fft", r"^fft[12]d_|gcgemm|pointwise_mult_and_sum_complex|flip_filter|compute_gemm_pointers"),
        ("convolution_explicit_gemm", r"im2col|col2im|explicit_convolve"),
        (
            "convolution_wgrad",
            r"wgrad|wrw|bwd_?weight|backward_?(?:weight|filter)|grad_weight_kernel|stridedb_splitk|cutlass_cudnn\w*::reduction",
        ),
        ("convolution_dgrad", r"dgrad|bwd_?data|igemm_bwd|conv\w*backward|backward_?data|stridedb|computeboffsets"),
        (
            "convolution_precomputed_gemm",
            r"precomputed_convolve|_convolve_\w?gemm_|cudnn_(?:\w+_)?\d+x\d+|computeoffsetskernel",
        ),
        ("convolution_implicit_gemm", r"(?<!ex)(?<!ex_)implicit_?(?:convolve|gemm)|fprop|igemm_fwd"),
        (
            "convolution_direct",
            r"conv[_\d]*d?_?(?:depthwise|grouped|direct|fwd|forward)|depthwise|naive_conv|asmconv|conv[123]d"
            r"|convolve",
        ),
        ("batch_norm", r"(?:^|[:_])bn_(?:fw|bw)|batch_?norm"),
        (
            "normalization",
            r"(?:layer|group|instance|rms|weight)_?norm|(?:^|[:_])ln_(?:fwd|bwd)|gammabetabackward|gradgammabeta"
            r"|rowwisemoments|computefusedparams|computeinternalgradients|computebackwardfusedparams"
            r"|(?:^|_)lrn",
        ),
        ("pooling", r"pooling|max_?pool|avg_?pool|adaptive_average_pool|average_pool"),
        ("softmax", r"softmax|nll_?loss|criterion|cross_?entropy|_loss|generatenormalizedprob"),
        ("elementwise", r"rotary|(?:^|[:_])rope(?:_|$)"),
        (
            "indexing",
            r"embedding|gather|scatter|(?<!with_)ind(?:ex|ices)|sort|topk|bitonic|bucketize|offsets_range"
            r"|routing|top\d?_?\w*gate|moe_(?:align|fused_gate)|kv_buffer|count_expert|fused_mapping|expand_to_fused|kv_?cache|reshape_and_cache|nonzero"
            r"|moe::\w+::finalize|to_dense_representation",
        ),
        ("optimizer", r"adam|sgd|lamb(?!da)|momentum|adagrad|rmsprop|applygradient"),
        (
            "gemm",
            r"(?<!fb)gemm|fused_moe_kernel|gemv|matmul|matrixmul|^bmm_|^nvjet|^cutlass|^cijk_|splitkreduce|(?:^|_)dot_kernel"
            r"|ger_kernel|epilogue::impl|(?:^|::)marlin$|(?:^|[:_])mul_mat|(?:^|::)moe_(?:vec_)?i?q\d|(?:^|::)fmoe|moe_mxgemm"
            r"|^wvsplitk|^aten::(?:mm|bmm|mv|addmm|baddbmm|addmv|linear|einsum)$",  # operations of printed tables
        ),
        ("random", r"dropout|distribution_|random|philox|curand|bernoulli|multinomial"),
        (
            "layout",
            r"nchw_?to_?nhwc|nhwc_?to_?nchw|transpos|permut|swapdimension|shuffleintensor|catarray|recat"
            r"|concat|split_?tensor|chunk_cat|(?:^|::)pad[a-z_]",
        ),
        (
            "fft",
            r"^spradix|^spvector|sp(?:realcomplex|preprocess|postprocess|process2d)|cufft"
            r"|(?:regular|vector)_fft|preprocessc2c|postprocessc2c",
        ),
        (
            "reduction",
            r"reduc|cumsum|scan|argm(?:ax|in)|histogram|norm_kernel|lpnorm|segment|^(?:at_cuda_detail::)?cub::",
        ),
        (
            "elementwise",
            r"element_?wise|pointwise|bias|scal_kernel|scalepackedtensor|(?:add|op)_?tensor|subtensorop|activation|relu|gelu|swiglu"
            r"|copy_kernel|fill_|arange|axpy|eigenmetakernel|unary|binary|broadcast|_to_float|(?<!b)cast|convert|quant|qparam"
            r"|(?:add|mul|sub|div)_kernel|foreach|multi_tensor_apply|vec(?:tor)?add|clamp|tri[ul]_|upsample|interpolat|lerp"
            # Ascend's operators: the type alone in summaries, behind the name of the call in lists of kernels.
            r"|(?:^|aicore_)(?:add|adds|mul|muls|sub|real_?div|div|neg|exp|pow|pows|r?sqrt|square|sigmoid|tanh|swish|silu"
            r"|select|masked_?fill|zeros_?like|fill|maximum|minimum|equal|greater|less|logical_?(?:and|not|or))(?:d|v2)?$",
        ),
    )
]

_WRAPPERS = re.compile(
    r"(?:^|::)(?:kernel2?|device_kernel|multi_tensor_apply_kernel|eigenmetakernel|elementwise_kernel"
    r"|(?:vectorized|unrolled)_elementwise_kernel|kentry)$|^triton_|^cutlass::(?:gemm|conv)::kernel::"
)
"""Wrapper kernels: the work follows from the template argument or the rest of the name."""

_BY_ARGUMENT = [
    (label, re.compile(pattern))
    for label, pattern in (
        ("attention", r"fmha|flash(?:::|attn)|delta_?rule"),
        ("convolution_wgrad", r"wgrad"),
        ("convolution_dgrad", r"dgrad"),
        ("convolution_implicit_gemm", r"fprop|implicitgemmconv"),
        ("optimizer", r"adam(?!ax_)|sgd|lamb(?!da)|adagrad|novograd|rmsprop"),
        ("reduction", r"l2norm|lpnorm|tensorreductionop|^triton_(?:red|per)_"),
        ("layout", r"tensor(?:shuffling|concatenation|slicing|padding)op"),
        ("elementwise", r"^triton_poi_"),
        ("gemm", r"^triton_tem_|_gemm|gemmuniversal|gemm::"),
    )
]

# No pattern of `_BY_NAME` uses more than the first digit of a number this long. Names of generated kernels that differ
# only in such numbers share one cache entry.
_LONG_NUMBER = re.compile(r"(\d)\d{3,}")

_TENSOR_CORE = re.compile(
    r"tensorop|(?<![a-z])[hid]mma|w?gmma|^nvjet|_tensor\d+x\d+x\d+"
    # Instruction shapes, with the letter of the accumulator and of the operands before them: s884, h1688, i8816, ...
    r"|(?<![a-z0-9])(?:bf16_|tf32_|fp16_|f16_)?[shdi](?:884|1688|8816|8832|16816|16832|16864|168256|161616)(?!\d)"
)
_ON_TENSOR_CORES = ("tensor", "mma", "nvjet", "88", "168", "1616")
"""Substrings of all names matched by `_TENSOR_CORE`; tested first because this is ten times faster."""

_ON_VECTOR_UNITS = ("gemm", "simt", "ffma", "_scudnn_", "_sm_heavy_", "_sm3", "maxwell_", "fft", "mem", "nccl")
"""Substrings of all names matched by `_VECTOR`."""

_VECTOR = re.compile(
    r"simt|ffma|(?:^|_)[sd]gemm_|_scudnn_|_sm_heavy_|_sm3[05]_|maxwell_|^(?:[sdc]gemm|fft|memcpy|memset)|nccl"
)


class Operation(NamedTuple):
    """A kind of operation in profiles, as far as the names of operations distinguish kinds."""

    name: str
    pattern: str  # regular expression searched for in the names of operations
    work_class: str = ""  # work class of all its layers; empty if there is none or several


OPERATIONS = (
    Operation("input", r"\[Executor\]|dali"),
    Operation("batch_norm", r"batch_?norm", "norm"),
    Operation("normalization", r"norm", "norm"),
    Operation("convolution", r"conv"),
    Operation("attention", r"attention|sdpa", "attention"),
    Operation("pooling", r"pool", "pool"),
    Operation("softmax", r"softmax|cross_entropy|nll_loss|_loss"),
    Operation("linear", r"linear|addmm|matmul|(?:^|::)b?mm$|^bias$|einsum", "gemm"),
    Operation("communication", r"all_?reduce|all_?gather|broadcast_coalesced|c10d|nccl"),
    Operation(
        "elementwise",
        r"relu|elu|sigmoid|tanh|swish|silu|add|mul|div|sub|type|copy|clone|fill|zero|sum|mean|cat|drop"
        r"|threshold|clamp|hardtanh|AccumulateGrad|to$|_?pow|sqrt|exp|backward$|unrecognized",
        "elementwise",
    ),
)
"""Kinds of operations; the first match wins. All other operations are ``other``."""
