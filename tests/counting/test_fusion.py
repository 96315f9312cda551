"""What is fused: by hand on small graphs, against torch's own fusing of batch norms, and against its compiler."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from graphlib import TopologicalSorter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paleo_lite as pl
from paleo_lite.architectures import find_network, network_names
from paleo_lite.counting import Layer, Work, count
from paleo_lite.counting.fusion import fuse
from paleo_lite.errors import UnknownName, UnsupportedPhase

SHAPE = (1, 8, 4, 4)
WEIGHT = (8, 8, 3, 3)


def layer(name: str, kind: str, *parents: int, **fields: object) -> Layer:
    """A layer of eight channels."""
    more = {"attributes": {"padding": [1, 1]}, "weights": (WEIGHT,)} if kind == "conv2d" else {}
    more = {"weights": ((8,), (8,))} if kind == "batch_norm" else more
    return Layer(name, kind, (SHAPE,) * len(parents), (SHAPE,), parents=parents, **{**more, **fields})  # type: ignore[arg-type]


RESIDUAL = [
    layer("conv1", "conv2d", -1), layer("bn1", "batch_norm", 0), layer("relu1", "relu", 1),
    layer("conv2", "conv2d", 2), layer("bn2", "batch_norm", 3), layer("add", "add", 4, 2), layer("relu2", "relu", 5),
]  # fmt: skip
TENSOR = 4 * 8 * 4 * 4
"""Bytes of one activation in fp32."""
STATISTICS = 4 * 4 * 8
"""Mean, variance, scale and shift of eight channels."""


def totals(work: Work) -> tuple[int, int, int]:
    """FLOPs, bytes and kernels of one sample."""
    return tuple(int(work.column(name, "inference").sum()) for name in ("flops", "bytes", "kernels"))  # type: ignore[return-value]


def test_a_residual_block_compiled_by_hand() -> None:
    """Two convolutions, and two kernels: bn1 + relu1; bn2 + add + relu2, which reads conv2's output and relu1's."""
    work = count(RESIDUAL)
    fused = fuse(RESIDUAL, work, "compiled")
    convolution = 2 * TENSOR + 4 * 8 * 8 * 9
    assert totals(fused) == (
        totals(work)[0],
        2 * convolution + (2 * TENSOR + STATISTICS) + (3 * TENSOR + STATISTICS),
        4,
    )
    assert fused.carrier is not None and fused.carrier.tolist() == [0, 1, 1, 3, 4, 4, 4]


def test_a_residual_block_folded_by_hand() -> None:
    """Two kernels: conv1 with a bias and relu1; conv2 with a bias, the addition of its own input (read once), relu2.

    A batch norm's 2 FLOPs per element become the bias's 1.
    """
    work = count(RESIDUAL)
    fused = fuse(RESIDUAL, work, "folded")
    convolution = 2 * TENSOR + 4 * 8 * 8 * 9 + 4 * 8
    assert totals(fused) == (totals(work)[0] - 2 * 8 * 4 * 4, 2 * convolution, 2)
    assert fused.carrier is not None and fused.carrier.tolist() == [0, 0, 0, 3, 3, 3, 3]


def test_operations_before_and_after_a_convolution_are_not_fused() -> None:
    """relu -> conv -> add(relu, conv): the addition needs the convolution, which needs the first kernel."""
    graph = [layer("relu", "relu", -1), layer("conv", "conv2d", 0), layer("add", "add", 0, 1)]
    assert totals(fuse(graph, count(graph), "compiled"))[2] == 3


def test_branches_that_meet_are_one_kernel() -> None:
    """add(bn(conv1), bn(conv2)): one kernel reads both convolutions' outputs."""
    graph = [
        layer("conv1", "conv2d", -1), layer("bn1", "batch_norm", 0),
        layer("conv2", "conv2d", -1), layer("bn2", "batch_norm", 2), layer("add", "add", 1, 3),
    ]  # fmt: skip
    fused = fuse(graph, count(graph), "compiled")
    assert totals(fused)[2] == 3
    assert int(fused.column("bytes", "inference")[0, 1]) == 3 * TENSOR + 2 * STATISTICS


def test_a_kernel_keeps_the_shape_of_its_largest_branch() -> None:
    """mul(x, relu(add(mean(x), relu(row)))) with x = relu(input) is one pass over x, which reduces one row at a time.

    The two branches that meet at the addition have 128 and 8 elements; the product has 128 again and joins both.
    """
    row = (1, 8, 1, 1)
    graph = [
        Layer("x", "relu", (SHAPE,), (SHAPE,), parents=(-1,)),
        Layer("mean", "adaptive_avg_pool", (SHAPE,), (row,), parents=(0,)),
        Layer("row", "relu", (row,), (row,), parents=(-2,)),
        Layer("add", "add", (row, row), (row,), parents=(1, 2)),
        Layer("mul", "mul", (SHAPE, row), (SHAPE,), parents=(0, 3)),
    ]
    fused = fuse(graph, count(graph), "compiled")
    assert totals(fused)[2] == 1


def test_fusion_does_not_create_cycles_of_kernels() -> None:
    """With mul(row, mean(conv(x))) and x + row, which is fused with x: conv depends on both, so row precedes mul."""
    row = (1, 8, 1, 1)
    graph = [
        Layer("row", "relu", (row,), (row,), parents=(-2,)),
        layer("x", "relu", -1),
        layer("conv", "conv2d", 1),
        Layer("add", "add", (SHAPE, row), (SHAPE,), parents=(1, 0)),
        Layer("mean", "adaptive_avg_pool", (SHAPE,), (row,), parents=(2,)),
        Layer("mul", "mul", (row, row), (row,), parents=(0, 4)),
    ]
    fused = fuse(graph, count(graph), "compiled")
    assert fused.carrier is not None and fused.carrier.tolist() == [0, 1, 2, 1, 4, 4]


ROW = (1, 8, 1, 1)
KINDS = st.sampled_from(["relu", "conv2d", "adaptive_avg_pool", "add", "mul"])


@st.composite
def graphs(draw) -> list[Layer]:
    """Layers of images and of rows, each of which reads one or two before it."""
    found: list[Layer] = []
    for index in range(draw(st.integers(3, 10))):
        kind = draw(KINDS)
        parents = draw(st.lists(st.integers(-1, index - 1), min_size=2, max_size=2, unique=index > 0))
        parents = parents if kind in ("add", "mul") else parents[:1]
        shapes = tuple(SHAPE if parent < 0 else found[parent].outputs[0] for parent in parents)
        output = ROW if kind == "adaptive_avg_pool" else max(shapes)
        if kind == "conv2d" and output == ROW:
            kind = "relu"
        more = {"attributes": {"padding": [1, 1]}, "weights": (WEIGHT,)} if kind == "conv2d" else {}
        found.append(Layer(f"it{index}", kind, shapes, (output,), parents=tuple(parents), **more))
    return found


@given(graphs())
def test_fused_kernels_can_be_launched_one_after_another(graph: list[Layer]) -> None:
    """No kernel waits for itself through others, and all layers together have the FLOPs that they had alone."""
    work = count(graph)
    fused = fuse(graph, work, "compiled")
    assert fused.carrier is not None
    kernels = fused.carrier.tolist()
    waits_for: dict[int, set[int]] = {kernel: set() for kernel in kernels}
    for kernel, one in zip(kernels, graph):
        waits_for[kernel] |= {kernels[parent] for parent in one.parents if parent >= 0} - {kernel}
    assert len(list(TopologicalSorter(waits_for).static_order())) == len(waits_for)
    assert totals(fused)[0] == totals(work)[0] and totals(fused)[1] <= totals(work)[1]


def test_a_batch_norm_is_not_folded_where_others_read_the_convolution() -> None:
    """Like torch.fx's fuse(), which skips a convolution if other operations use its output."""
    graph = [layer("conv", "conv2d", -1), layer("bn", "batch_norm", 0), layer("pool", "max_pool", 0)]
    graph[2] = graph[2]._replace(attributes={"kernel": [1, 1]})
    work = count(graph)
    fused = fuse(graph, work, "folded")
    assert totals(fused) == totals(work) and totals(work)[2] == 3


def test_a_result_that_others_read_is_written() -> None:
    """bn's output goes to relu and, as it is, to a convolution: one kernel that writes both."""
    graph = [
        layer("bn", "batch_norm", -1),
        layer("relu", "relu", 0),
        layer("conv", "conv2d", 0),
        layer("conv'", "conv2d", 1),
    ]
    fused = fuse(graph, count(graph), "compiled")
    assert int(fused.column("bytes", "inference")[0, 0]) == 3 * TENSOR + STATISTICS
    folded = fuse(graph, count(graph), "folded")
    assert totals(folded)[2] == 3  # nothing to fold into


def kernels_in_order(layers: Sequence[Layer], work: Work, fused: Work) -> list[int]:
    """Return the kernels in topological order; graphlib raises if there is none."""
    assert fused.carrier is not None
    carrier, launched = fused.carrier.tolist(), work.column("kernels", "inference")[0] > 0
    sources: list[int] = []  # for each layer the kernel that made what it gives; of views their operand's
    waits_for: dict[int, set[int]] = {}
    for index, layer in enumerate(layers):
        read = {sources[parent] for parent in layer.parents if parent >= 0} - {-1}
        alone = carrier[index] == index and not launched[index]
        sources.append(
            (sources[layer.parents[0]] if layer.parents and layer.parents[0] >= 0 else -1) if alone else carrier[index]
        )
        if not alone:
            waits_for.setdefault(carrier[index], set()).update(read - {carrier[index]})
    return list(TopologicalSorter(waits_for).static_order())


SAMPLE = [name for name in network_names() if not name.startswith("paleo")][::6]
SMALLER = {
    "qwen3-235b-a22b": "qwen3-30b-a3b", "qwen3-vl-32b": "qwen3-vl-2b", "llama-2-70b": "vicuna-7b",
    "olmo-2-32b": "olmo-2-7b", "gemma-3-12b": "gemma-3-1b",
}  # fmt: skip
"""Siblings with fewer blocks of the same layers; `make thorough` also takes the large ones."""


@pytest.mark.spread(20)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *sorted({SMALLER.get(name, name) for name in SAMPLE}),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in SMALLER),
    ],
)
@pytest.mark.parametrize("execution", ["compiled", "folded"])
def test_fusing_removes_bytes_and_launches_and_keeps_flops(name: str, execution: str) -> None:
    layers = find_network(name).layers
    work = count(layers)
    fused = fuse(layers, work, execution)
    assert len(kernels_in_order(layers, work, fused)) >= np.count_nonzero(fused.column("kernels", "inference"))
    for batch_size in (1, 7):
        before, after = (
            {key: each.column(key, "inference", batch_size)[0] for key in ("flops", "macs", "bytes", "kernels")}
            for each in (work, fused)
        )
        assert np.array_equal(before["macs"], after["macs"])
        assert after["bytes"].sum() <= before["bytes"].sum() and after["kernels"].sum() <= before["kernels"].sum()
        assert (after["bytes"] >= 0).all()
        unchanged = np.array([kind != "batch_norm" for kind in fused.kinds]) & ~fused.matrix
        assert np.array_equal(before["flops"][unchanged], after["flops"][unchanged])
        if execution == "compiled":
            assert np.array_equal(before["flops"], after["flops"])
    trained, fused_training = (counts.column("bytes", "training").sum(axis=1) for counts in (work, fused))
    if execution == "compiled":  # it also fuses the forward pass and the data gradient
        assert (fused_training <= trained).all()
        assert np.array_equal(work.column("flops", "training"), fused.column("flops", "training"))
    else:
        assert np.array_equal(work.column("bytes", "training"), fused.column("bytes", "training"))


@pytest.mark.spread(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "inception_v3", "mobilenet_v2"])
def test_folding_equals_torch_s_own(name: str, built) -> None:  # type: ignore[no-untyped-def]
    """The trace of a network after torch.fx's fuse() has exactly the FLOPs of the folded count."""
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.optimization import fuse as torch_fuse

    from paleo_lite.architectures.torch_import import import_torchvision

    options = {"init_weights": False} if name == "inception_v3" else {}
    module = import_torchvision("a test").models.get_model(name, weights=None, **options).eval()
    shape = find_network(name).inputs[0]
    theirs = pl.trace(torch_fuse(module), torch.empty(shape, device="meta"))
    layers = find_network(name).layers
    assert totals(fuse(layers, count(layers), "folded"))[0] == totals(count(theirs.layers))[0]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["alexnet", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("vgg11", "resnet18"))]
)
def test_kernels_and_bytes_equal_torch_compile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with Inductor on the CPU in NCHW: library calls, generated kernels, and the bytes that it reports.

    It may split off what takes no time (the mean's division): one kernel and 0.2% of the bytes are left open.
    """
    torch = pytest.importorskip("torch")
    from torch._inductor import async_compile, compile_fx, config, cpu_vec_isa, metrics
    from torch._inductor.utils import run_and_get_code

    from paleo_lite.architectures.torch_import import import_torchvision

    module = import_torchvision("a test").models.get_model(name, weights=None).eval()
    network = find_network(name)
    compile_fx.inductor_metrics_log.setLevel(logging.INFO)  # it counts bytes only then
    metrics.reset()
    # What it writes is counted, not run: its C++ is not compiled, and without vectors, of which it would try each kind.
    monkeypatch.setattr(async_compile.AsyncCompile, "cpp_pybinding", lambda self, types, source: lambda *tensors: None)
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)
    options = {"layout_optimization": False, "force_disable_caches": True}
    with torch.no_grad(), config.patch(options):
        _, code = run_and_get_code(torch.compile(module), torch.rand(network.inputs[0]).repeat(2, 1, 1, 1))
    calls = len(re.findall(r"extern_kernels\.\w+\(", "\n".join(code)))
    fused = fuse(network.layers, count(network.layers), "compiled")
    kernels = fused.column("kernels", "inference")[0]
    assert int(kernels[fused.matrix].sum()) == calls
    assert abs(int(kernels[~fused.matrix].sum()) - metrics.generated_kernel_count) <= 1
    assert int(fused.column("bytes", "inference", 2).sum()) == pytest.approx(metrics.num_bytes_accessed, rel=2e-3)


def test_predictions_report_fusion() -> None:
    eager, compiled, folded = (
        pl.predict("resnet50", gpu="rtx4090", precision="fp16", batch_size=64, execution=name)
        for name in ("eager", "compiled", "folded")
    )
    assert eager.time_s > compiled.time_s > folded.time_s
    assert (eager.kernels, compiled.to_dict()["execution"], folded.to_dict()["kernels"]) == (174, "compiled", 56)
    assert next(row for row in folded.rows() if row["name"] == "layer1.0.bn1")["bound"] == "fused"
    assert pl.layers("resnet50", execution="folded").to_dict()["kernels"] == 56


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"execution": "jitted"}, UnknownName, "compiled"),
        ({"execution": "folded", "phase": "training"}, UnsupportedPhase, "for inference only"),
    ],
)
def test_unsupported_fusion_is_reported(options: dict[str, str], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        pl.predict("resnet18", gpu="t4", **options)  # type: ignore[arg-type]


def test_an_engine_launches_a_decoder_layer_in_thirteen_kernels():
    """Norm, three products, rotary positions, cache, attention, product, norm, two products, product of both, product;
    additions are computed where a product writes its result (vLLM fuses the three and the two products further)."""
    from paleo_lite.architectures.network import SequenceOptions

    layers = find_network("llama-3-8b", None, SequenceOptions(context=64, phase="decode")).layers
    work = fuse(layers, count(layers, "bf16"), "engine")
    inside = [index for index, layer in enumerate(layers) if layer.name.startswith("model.layers.7.")]
    assert work.column("kernels", "decode")[0, inside].sum() == 13
    assert work.column("flops", "decode").sum() == count(layers).column("flops", "decode").sum()


@pytest.mark.parametrize("shape", [(-1, 32), (-1, 4, 8)])
def test_bytes_of_a_compiled_training_step(shape: tuple[int, ...]) -> None:
    """Two linear layers with GELU, a view and scaling between: one kernel each way.

    Forward: the kernel reads n elements and writes n, where eager moves 4 n. Backward: it reads the gradient of its
    output and the saved input, and writes the gradient of its input.
    """
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x):
            scaled = nn.functional.gelu(self.first(x)).view(shape) * 2.0
            return self.second(scaled.view(-1, 32))

    layers = pl.trace(Scaled(), torch.zeros(1, 8)).layers
    work = fuse(layers, count(layers), "compiled")
    pointwise = [index for index, layer in enumerate(layers) if layer.kind in ("gelu", "mul")]
    elements = 32 * 4  # bytes of one sample in fp32
    moved = {name: int(work.column("bytes", name)[0][pointwise].sum()) for name in ("forward", "backward_data")}
    kernels = {name: int(work.column("kernels", name)[0][pointwise].sum()) for name in ("forward", "backward_data")}
    assert moved == {"forward": 2 * elements, "backward_data": 3 * elements}
    assert kernels == {"forward": 1, "backward_data": 1}
