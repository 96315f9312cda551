"""Operators of PyTorch traces: torch's own FLOP counter, hand counts, networks' rules, and real traces.

torch counts two FLOPs per multiply-accumulate of products and nothing else, so that `extra` is what the rules count
beside: biases, and of attention 6 per score forward and 5 backward (`counting.kinds.products`).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from measured import DATA
from paleo_lite.profile_analysis.one_file import analyse_file
from paleo_lite.profile_analysis.parameters import CountedOperation, is_convolution, shapes_in
from paleo_lite.profile_analysis.traced_operators import UNKNOWN, _windows, count_traced


def text(dims: list, types: list | None = None, numbers: list | None = None) -> str:
    types = ["float" if shape else "" for shape in dims] if types is None else types
    parts = [dims, types] + ([numbers] if numbers else [])
    return " ".join("".join(json.dumps(part).split()) for part in parts)


def counted_by_torch(name: str, shapes: list, numbers: tuple) -> int:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    with FlopCounterMode(display=False) as counter:
        getattr(torch.ops.aten, name)(*tensors, *numbers)
    return counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "shapes", "extra"),
    [
        ("mm", [[5, 7], [7, 11]], 0),
        ("bmm", [[3, 5, 7], [3, 7, 11]], 0),
        ("addmm", [[11], [5, 7], [7, 11]], 5 * 11),
        ("baddbmm", [[3, 5, 11], [3, 5, 7], [3, 7, 11]], 3 * 5 * 11),
    ],
)
def test_products_are_torchs(operator, shapes, extra):
    found = count_traced(f"aten::{operator}", text(shapes))
    assert found.flops == counted_by_torch(operator, shapes, ()) + extra
    assert found.precision == "fp32"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "transposed", "groups"),
    [([1, 1], [0, 0], [1, 1], False, 2), ([2, 1], [1, 2], [2, 1], False, 1), ([2, 2], [1, 1], [1, 1], True, 1)],
)
def test_convolutions_are_torchs(stride, padding, dilation, transposed, groups):
    torch = pytest.importorskip("torch")
    # Backward with groups torch's counter takes the weight's gradient for that of a full convolution.
    before, weight = ([2, 6, 9, 7], [8, 6 // groups, 3, 2]) if not transposed else ([2, 6, 9, 7], [6, 4, 3, 2])
    settings = ([], stride, padding, dilation, transposed, [0, 0], groups)
    expected = counted_by_torch("convolution", [before, weight], (None, *settings[1:]))
    numbers = [
        "",
        "",
        "",
        *(json.dumps(s, separators=(",", ":")) for s in settings[1:4]),
        str(transposed),
        "[0,0]",
        "1",
    ]
    forward = count_traced("aten::convolution", text([before, weight, *[[]] * 7], None, numbers))
    assert forward.flops == expected
    tensors = [torch.empty(shape, device="meta") for shape in (before, weight)]
    after = list(torch.ops.aten.convolution(*tensors, None, *settings[1:]).shape)
    if not transposed:
        assert count_traced("aten::cudnn_convolution", text([before, weight]), tuple(after)).flops == expected
        assert count_traced("aten::cudnn_convolution", text([before, weight])) == UNKNOWN
        backward = text([[], after, weight])
        assert count_traced("aten::cudnn_convolution_backward_input", backward, tuple(weight)).flops == expected
        backward = text([[], after, before])
        assert count_traced("aten::cudnn_convolution_backward_weight", backward, tuple(weight)).flops == expected
    for mask in () if groups > 1 else ([True, True, False], [True, False, False], [False, True, False]):
        dims = [after, before, weight, *[[]] * 8]
        arguments = ([0], *settings[1:], mask)
        wanted = counted_by_torch("convolution_backward", [after, before, weight], arguments)
        said = [*[""] * 10, json.dumps(mask, separators=(",", ":")).replace("t", "T").replace("f", "F")]
        assert count_traced("aten::convolution_backward", text(dims, None, said)).flops == wanted


@pytest.mark.slow
def test_attention_is_torchs():
    q, k = [2, 4, 9, 16], [2, 4, 5, 16]
    scores = 2 * 4 * 9 * 5
    operator = "_scaled_dot_product_flash_attention"
    forward = count_traced(f"aten::{operator}", text([q, k, k, [], []], None, ["", "", "", "0.", "False"]))
    assert forward.flops == counted_by_torch(operator, [q, k, k], (0.0, True)) + 6 * scores
    own = [[a, c, b, d] for a, b, c, d in (q, k, k)]  # the kernel's operator has heads after places
    assert count_traced("aten::_flash_attention_forward", text([*own, [], []])).flops == forward.flops
    # Dao et al. 2022: backward five products to the forward two; the recomputation of the scores is not counted.
    back = count_traced("aten::_flash_attention_backward", text([own[0], *own, own[0]]))
    assert back.flops == 2 * (forward.flops - 6 * scores) + 5 * scores
    packed = [[18, 4, 16], [10, 4, 16], [10, 4, 16], [3], [3]]
    types = ["c10::Half"] * 3 + ["int"] * 2
    assert count_traced("aten::_flash_attention_forward", text(packed, types)) == UNKNOWN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "shape", "arguments", "windows"),
    [  # arguments in the order of native_functions.yaml; elements of the windows per output
        ("avg_pool1d", [2, 3, 9], ([3], [2], [1]), 3),
        ("avg_pool2d", [2, 3, 9, 7], ([3, 2], [2, 1], [1, 0]), 6),
        ("avg_pool2d", [3, 9, 7], ([3, 2], [2, 1], [1, 0]), 6),  # without a batch
        ("avg_pool2d", [2, 3, 9, 7], ([3, 2], [2, 2], [1, 0], True), 6),
        ("avg_pool2d", [2, 3, 9, 7], ([2],), 4),  # the stride is the kernel
        ("avg_pool3d", [2, 3, 9, 7, 5], ([3, 2, 2], [2, 1, 1], [1, 0, 0]), 12),
        ("upsample_nearest1d", [2, 3, 9], ([18],), 0),
        ("upsample_nearest2d", [2, 3, 9, 7], ([18, 21],), 0),
        ("upsample_bilinear2d", [2, 3, 9, 7], ([18, 21], False), 7),  # four products and three sums
        ("upsample_bicubic2d", [2, 3, 9, 7], ([18, 21], False), 31),
        ("upsample_trilinear3d", [2, 3, 9, 7, 5], ([18, 21, 10], False), 15),
    ],
)
def test_outputs_of_windows_are_torchs(operator, shape, arguments, windows):
    torch = pytest.importorskip("torch")
    outputs = getattr(torch.ops.aten, operator)(torch.empty(shape, device="meta"), *arguments).numel()
    numbers = ["", *("".join(str(argument).split()) for argument in arguments)]
    found = count_traced(f"aten::{operator}", text([shape, *[[]] * len(arguments)], None, numbers))
    assert found.bytes == 4 * (torch.Size(shape).numel() + outputs)
    assert found.flops == windows * outputs


X = [2, 4, 6, 8]
SIZE = 2 * 4 * 6 * 8


@pytest.mark.parametrize(
    ("operator", "dims", "numbers", "flops", "moved"),
    [  # docs/counting.md: operations per element, and bytes of fp32
        ("add_", [X, X, []], None, SIZE, 3 * SIZE * 4),
        ("mul", [X, []], None, SIZE, 2 * SIZE * 4),
        ("mul", [X, [6, 1]], None, SIZE, (2 * SIZE + 6) * 4),
        ("relu", [X], None, SIZE, 2 * SIZE * 4),
        ("clamp_min_", [X, []], None, SIZE, 2 * SIZE * 4),
        ("threshold_backward", [X, X, []], None, SIZE, 3 * SIZE * 4),
        ("silu", [X], None, 4 * SIZE, 2 * SIZE * 4),
        ("_softmax", [X, [], []], None, 5 * SIZE, 2 * SIZE * 4),
        ("_softmax_backward_data", [X, X, [], []], None, 4 * SIZE, 3 * SIZE * 4),
        ("cudnn_batch_norm", [X, [4], [4], [4], [4], [], [], []], None, 7 * SIZE, (3 * SIZE + 8) * 4),
        ("native_batch_norm", [X, [4], [4], [4], [4], [], [], []], ["", "", "", "", "", "False", "0.1", "1e-5"],
         2 * SIZE, (2 * SIZE + 16) * 4),
        ("native_batch_norm_backward", [X, X, [4], [4], [4], [4], [4], [], [], []],
         [*[""] * 7, "True", "1e-5", "[True,True,True]"], 11 * SIZE, (5 * SIZE + 28) * 4),
        ("native_layer_norm", [X, [], [8], [8], []], None, 7 * SIZE, (2 * SIZE + 16) * 4),
        ("max_pool2d_with_indices", [X, [], [], [], [], []], ["", "[3,3]", "[2,2]", "[1,1]", "[1,1]", "False"],
         8 * 8 * 3 * 4, (SIZE + 96) * 4 + 8 * 96),
        ("max_pool2d_with_indices_backward", [[2, 4, 3, 4], X, [], [], [], [], [], [2, 4, 3, 4]], None, 96, None),
        ("max_pool2d_with_indices", [X[1:], [], [], [], [], []], ["", "[3,3]", "[2,2]", "[1,1]", "[1,1]", "False"],
         8 * 4 * 3 * 4, (SIZE // 2 + 48) * 4 + 8 * 48),
        ("linear", [X, [5, 8], [5]], None, (2 * 8 + 1) * 2 * 4 * 6 * 5, (SIZE + 5 * 8 + 5 + 2 * 4 * 6 * 5) * 4),
        ("mv", [[6, 8], [8]], None, 2 * 6 * 8, (6 * 8 + 8 + 6) * 4),
        ("dot", [[8], [8]], None, 2 * 8, (8 + 8 + 1) * 4),
        ("addmv", [[6], [6, 8], [8]], None, (2 * 8 + 1) * 6, (6 + 6 * 8 + 8 + 6) * 4),
        ("glu", [X, []], ["", "-1"], 4 * SIZE // 2, (SIZE + SIZE // 2) * 4),
        ("mean", [X, [], [], []], ["", "[-1,-2]", "True", ""], SIZE, (SIZE + 8) * 4),
        ("mean", [X, [], [], [], [2, 4, 1, 1]], ["", "[-1,-2]", "True", "", ""], SIZE, (SIZE + 8) * 4),
        ("sum", [X, []], None, SIZE, None),
        ("copy_", [X, X, []], None, 0, 2 * SIZE * 4),
        ("fill_", [X, []], None, 0, SIZE * 4),
        ("cat", [[X, X], []], None, 0, None),
        ("index_select", [[50, 8], [], [3]], None, 0, None),
        ("embedding", [[50, 8], [3, 5]], None, 0, None),
        ("embedding_dense_backward", [[3, 5, 8], [3, 5]], ["", "", "50", "-1", "False"], 3 * 5 * 8, None),
        ("_foreach_mul_", [[[3, 4], [5]], []], None, 17, None),
        ("_foreach_addcmul_", [[[3, 4], [5]], [[3, 4], [5]], [[3, 4], [5]], []], None, 34, None),
    ],
)  # fmt: skip
def test_operators_have_the_work_counted_by_hand(operator, dims, numbers, flops, moved):
    found = count_traced(f"aten::{operator}", text(dims, None, numbers))
    assert found.flops == flops
    assert found.bytes == moved or moved is None


def test_a_tensor_without_dimensions_is_one_number():
    both = text([[], [], []], ["float", "float", "Scalar"])
    assert count_traced("aten::add", both) == CountedOperation(1.0, 3 * 4.0)
    # A number that is no tensor has no type of an element, and is not read from memory.
    number = text([[], [], []], ["double", "Scalar", "Scalar"])
    assert count_traced("aten::add", number) == CountedOperation(1.0, 2 * 8.0)
    assert count_traced("aten::add", text([[], []], [])) == UNKNOWN
    assert shapes_in(text([[2, 3], [], [4]], ["float", "float", "float"])) == [(2, 3), (4,)]
    assert shapes_in(text([[2, 3], []], ["float"])) == [(2, 3)]


def test_both_gradients_are_counted_where_the_mask_is_not_recorded():
    gradient, before, weight = [2, 8, 5, 5], [2, 4, 5, 5], [8, 4, 3, 3]
    dims = [gradient, before, weight, *[[]] * 8]
    one = 2 * 2 * 8 * 5 * 5 * 4 * 3 * 3
    assert count_traced("aten::convolution_backward", text(dims)).flops == 2 * one
    for mask, flops in (("[True,False,False]", one), ("[False,True,False]", one), ("[True,True,False]", 2 * one)):
        assert count_traced("aten::convolution_backward", text(dims, None, [*[""] * 10, mask])).flops == flops


def test_numbers_of_half_the_width_are_half_the_bytes():
    params = text([X, X, []], ["c10::BFloat16", "c10::BFloat16", "Scalar"])
    assert count_traced("aten::add", params).bytes == 3 * SIZE * 2


def test_whole_numbers_are_no_floating_point_operations():
    assert count_traced("aten::add", text([X, X, []], ["long int", "long int", "Int"])).flops == 0


@pytest.mark.parametrize(
    ("operator", "params"),
    [
        ("vllm::moe_forward", text([[888, 3072], [888, 128]])),
        ("torchvision::nms", text([X])),
        ("aten::mm", text([[2, 3], [4, 5]])),  # which do not fit
        ("aten::mm", text([[2, 3]])),
        ("aten::mm", text([])),
        ("aten::addmm", text([[5], [2, 3]])),
        ("aten::linear", text([[2, 3]])),
        ("aten::convolution", text([[2, 3, 9, 9]])),
        ("aten::addmm", text([[5], [2, 3], [4, 5]])),
        ("aten::bmm", text([[2, 3, 4], [3, 4, 5]])),
        ("aten::linear", text([[2, 3], [5, 4]])),
        ("aten::cudnn_convolution", text([[2, 3, 9], [4, 3, 3, 3]])),
        ("aten::scaled_dot_product_attention", text([[1, 2, 5, 8], [2, 2, 5, 8], [2, 2, 5, 8]])),  # batch sizes
        ("aten::scaled_dot_product_attention", text([[2, 2, 5, 8], [2, 2, 5, 8], [2, 2, 6, 8]])),  # keys and values
        ("aten::scaled_dot_product_attention", text([[2, 2, 5, 8], [2, 2, 5, 4], [2, 2, 5, 8]])),  # widths of heads
        ("aten::scaled_dot_product_attention", text([[2, 5, 8], [2, 5, 8], [2, 5, 8]])),
        ("aten::scaled_dot_product_attention", text([[2, 2, 5, 8], [2, 2, 5, 8], [2, 5, 8]])),
        ("aten::upsample_nearest2d", text([[2, 3, 9], []], None, ["", "[18]"])),
        ("aten::upsample_nearest", text([[2, 3, 9], []], None, ["", "[18]"])),
        ("aten::add", text([[2, 3], [4, 5], []])),
        ("aten::mul", text([X, X], ["c10::complex<float>", "c10::complex<float>"])),
        ("aten::_foreach_add_", text([[], []], ["TensorList", "TensorList"])),
    ],
)
def test_operators_without_rule(operator, params):
    assert count_traced(operator, params) == UNKNOWN


@example("[1]")  # no list of tensors where an operator takes some
@given(st.text() | st.text('[]{},0123456789-. "a', max_size=60).map("[".__add__))
def test_any_text_is_counted_or_not(params):
    for operator in ("aten::mm", "aten::cudnn_convolution_backward_weight", "aten::_foreach_add_", "aten::max_pool2d"):
        counted = count_traced(operator, params, (1, 1, 1, 1))
        assert all(number is None or number >= 0 for number in (counted.flops, counted.bytes))
    assert all(size >= 0 for shape in shapes_in(params) for size in shape)


def test_a_cast_reads_one_width_and_writes_another():
    """Data Moved (MB) of both casts in unified_perf_summary.csv of TraceLens' Qwen1.5, see `TRACELENS`: MiB."""
    for types in (["float", "c10::BFloat16", "Scalar"], ["c10::BFloat16", "float", "Scalar"]):
        counted = count_traced("aten::copy_", text([[16, 559, 1024], [16, 559, 1024], []], types))
        assert (counted.flops, counted.bytes) == (0, 52.40625 * 2**20)


def test_names_of_convolutions():
    assert all(map(is_convolution, ("conv2d", "aten::cudnn_convolution", "aten::thnn_conv2d", "aten::conv1d")))
    assert not any(map(is_convolution, ("aten::convert", "aten::mm", "")))


def steady(path: Path):
    return analyse_file(path).steady


@pytest.mark.slow
@pytest.mark.needs_data
def test_products_of_a_real_language_model():
    path = DATA / "profiles/tracelens_models/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    products, rest = 0, 0
    for event in events:
        if event.get("cat") == "cpu_op":
            dims = event["args"]["Input Dims"]
            name = event["name"].removeprefix("aten::")
            if name in ("mm", "addmm", "bmm"):
                left, right = dims[-2:] if name != "addmm" else dims[1:3]
                output = [*left[:-1], right[-1]]
                multiplied = 1
                for size in output:
                    multiplied *= size
                products += 2 * multiplied * left[-1] + (multiplied if name == "addmm" else 0)
            elif name == "_flash_attention_forward":
                batch, places, heads, width = dims[0]
                is_causal = event["args"]["Concrete Inputs"][8] == "True"  # its place in native_functions.yaml
                rest += (4 * width + 6) * batch * heads * places**2 / (2 if is_causal else 1)
    found = steady(path)
    assert found.iterations == 1
    assert products == pytest.approx(5.515e12, rel=1e-3)  # 169 products, counted from the file by another program
    assert products + rest < found.flops < 1.01 * (products + rest)  # all else is elementwise
    # A third of the trace's kernels was launched by the previous step, which is not in the trace.
    calls = {event["args"]["correlation"] for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")}
    launched = [event for event in events if event.get("args", {}).get("correlation") in calls]
    times_us = sum(event["dur"] for event in launched if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"))
    assert found.kernel_s == pytest.approx(times_us * 1e-6, rel=1e-2)
    assert found.flops_covered > 0.99


@pytest.mark.slow
@pytest.mark.needs_data
def test_a_real_resnet50_is_the_networks_count():
    """4.089 GMACs per image (torchvision's metadata: 4.09): without a gradient of the images backward is twice it."""
    name = "resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz"
    path = DATA / "profiles/torch_chrome_trace_resnet50" / name
    found = steady(path)
    whole = 2 * (4.09e9 - 2.048e6) * 32  # all but the linear layer is convolutions
    first = 2 * 64 * 112 * 112 * 3 * 49 * 32
    assert found.iterations == 6
    assert found.conv_flops_forward == pytest.approx(whole, rel=1e-3)
    assert found.conv_flops_backward == pytest.approx(2 * whole - first, rel=1e-3)


TRACELENS = {
    "h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (
        "mul 220 6752.89990234375, mm 96 6668.681640625, copy_ 197 5101.934814453125, "
        "_flash_attention_forward 24 2722.704345703125, add 145 2607.51513671875, addmm 72 2329.075927734375, "
        "cat 49 2017.782958984375, pow 49 1300.794921875, silu 24 925.11474609375, mean 49 743.327392578125, "
        "neg 48 587.3271484375, rsqrt 49 79.076416015625, index_select 1 51.77587890625, all 1 4.1279296875, "
        "bmm 1 3.52001953125, _local_scalar_dense 1 2.367919921875, cos 1 2.080078125, sin 1 2.01611328125, "
        "eq 1 1.85595703125, arange 1 1.50390625",
        {
            "mm": (72 * 51.581550592 + 24 * 18.756927488, 72 * 71.0078125 + 24 * 36.9375),
            "addmm": (72 * 18.766086144, 72 * 36.939453125),
            "bmm": (3.5776e-05, 0.07049179077148438),
        },
    ),
    "h100__Falconsai_nsfw_image_detection__1016002.json.gz": (
        "addmm 73 735.03662109375, cudnn_convolution 1 125.632080078125, _flash_attention_forward 12 122.84814453125, "
        "native_layer_norm 25 111.200927734375, gelu 12 60.541259765625, add 25 57.31298828125, cat 1 7.263916015625, "
        "add_ 1 3.968017578125, tanh 1 1.5048828125",
        {
            "addmm": (
                48 * 0.930167808 + 12 * 3.720671232 + 12 * 3.71885568 + 0.004721664,
                48 * 3.43505859375 + 12 * 10.27734375 + 12 * 10.27294921875 + 1.13818359375,
            ),
            "cudnn_convolution": (0.924844032, 3.421875),
        },
    ),
}
"""What TraceLens published of its traces, in ``tests/traces/h100/*_perf_report_csvs`` of AMD-AGI/TraceLens.

Of ops_summary.csv operator, Count, total_direct_kernel_time_sum in microseconds; of GEMM.csv and CONV_fwd.csv
GFLOPS_first and Data Moved (MB)_first, which are MiB, each times its name_count. Attention is defined otherwise:
TraceLens leaves the softmax out, and halves what is causal.
"""


@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.parametrize("name", TRACELENS)
def test_operators_are_tracelens(name):
    printed, counted = TRACELENS[name]
    ours = {row.op.removeprefix("aten::"): row for row in steady(DATA / "profiles/tracelens_models" / name).operators}
    for op, calls, time_us in (row.split() for row in printed.split(", ")):
        assert ours[op].calls == int(calls), op
        assert ours[op].time_s == pytest.approx(float(time_us) * 1e-6, rel=1e-4, abs=5e-9), op
    for op, (gflops, mebibytes) in counted.items():
        assert ours[op].flops == pytest.approx(gflops * 1e9, rel=1e-9), op
        assert ours[op].bytes == pytest.approx(mebibytes * 2**20, rel=1e-9), op


def union_us(events: list) -> float:
    """merge_intervals of TraceLens' gpu_event_analyser.py, summed."""
    whole, reached = 0.0, float("-inf")
    for start, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in events):
        whole += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return whole


@pytest.mark.slow
@pytest.mark.needs_data
def test_a_timeline_is_by_tracelens_formula():
    """Its compute_metrics_dict on a trace of three ranks' ResNet: the program itself is in no package index."""
    path = DATA / "profiles/tracelens_models/mi300__resnet_act_checkpoint.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ran = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    total_us = max(event["ts"] + event["dur"] for event in ran) - min(event["ts"] for event in ran)
    communication = [event for event in ran if event["cat"] == "kernel" and "nccl" in event["name"]]
    idle = analyse_file(path).device_time.breakdown
    assert idle.window_s == pytest.approx(total_us * 1e-6, rel=1e-6)
    assert sum(idle.idle_s.values()) == pytest.approx((total_us - union_us(ran)) * 1e-6, rel=1e-3)
    assert idle.communication_s == pytest.approx(union_us(communication) * 1e-6, rel=1e-6)
    # Fills are computation there (1% of the exposed time here), and copies here.
    computation = [event for event in ran if event["cat"] == "kernel" and "nccl" not in event["name"]]
    exposed_us = union_us(communication + computation) - union_us(computation)
    assert idle.exposed_communication_s == pytest.approx(exposed_us * 1e-6, rel=1e-6)


@pytest.mark.slow
def test_windows_of_pooling_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    for size in range(5, 10):
        for kernel, stride, padding, dilation in ((2, 2, 0, 1), (3, 2, 1, 1), (2, 3, 1, 1), (3, 1, 0, 2), (2, 5, 1, 2)):
            for up in (False, True):
                options = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": up}
                pooled = torch.nn.functional.max_pool1d(torch.empty(1, 1, size), kernel, **options)
                assert _windows(size, kernel, stride, padding, dilation, up) == pooled.shape[-1], (
                    size,
                    kernel,
                    options,
                )


@pytest.mark.parametrize(
    ("operator", "index"),  # positions in native_functions.yaml of PyTorch
    [("scaled_dot_product_attention", 5), ("_scaled_dot_product_flash_attention", 4), ("_flash_attention_forward", 8),
     ("_scaled_dot_product_efficient_attention", 6), ("_scaled_dot_product_cudnn_attention", 6)],
)  # fmt: skip
def test_half_of_attention_counts_where_the_operator_is_causal(operator, index):
    shape = [2, 4, 4, 16]
    dims = [shape, shape, shape, *[[]] * 7]
    numbers = [""] * index
    full, half = (count_traced(f"aten::{operator}", text(dims, None, [*numbers, flag])) for flag in ("False", "True"))
    assert full.flops == 4 * (2 * 4 * 4 * 4) * 16 + 6 * (2 * 4 * 4 * 4)  # Dao 2023: 4 n^2 d, and 6 per score
    assert half.flops == full.flops / 2


def test_half_of_the_backward_pass_counts_where_the_operator_is_causal():
    shape = [2, 4, 4, 16]
    dims = [shape, shape, shape, shape, *[[]] * 9]
    operator = "aten::_scaled_dot_product_flash_attention_backward"
    full, half = (count_traced(operator, text(dims, None, [*[""] * 11, flag])) for flag in ("False", "True"))
    assert half.flops == full.flops / 2 > 0


def test_the_last_argument_of_another_attention_is_not_its_mask():
    shape = [2, 4, 4, 16]
    counted = [
        count_traced("aten::_efficient_attention_forward", text([shape] * 3, None, ["", "", "", flag])).flops
        for flag in ("True", "False")
    ]
    assert counted[0] == counted[1] == 4 * (2 * 4 * 4 * 4) * 16 + 6 * (2 * 4 * 4 * 4)
