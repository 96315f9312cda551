"""The rules of all kinds against arithmetic done by hand, and laws that hold for every rule.

Tests: counting/layer.py, counting/work.py, counting/kinds/activations.py, counting/kinds/elementwise.py,
counting/kinds/moving.py, counting/kinds/normalisation.py, counting/kinds/pooling.py.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from paleo_lite.counting import INPUT, KINDS, MATRIX_KINDS, PASSES, Layer, count
from paleo_lite.counting.kinds.normalisation import saved_by_group_norm, saved_by_instance_norm
from paleo_lite.counting.work import COLUMNS, GENERATION_PHASES, PHASES, passes_of
from paleo_lite.errors import CountFailed
from strategies import any_layer, layer_of_kind
from strategies import behind_a_layer as layer


def figures(layers, phase, batch_size=1, precision="fp32"):
    work = count(layers, precision)
    return {name: int(work.column(name, phase, batch_size)[0][-1]) for name in COLUMNS}


# kind, inputs, output, weights, attributes -> for a pass: (FLOPs, bytes read, bytes written) in fp32, by hand.
BY_HAND = {
    # 8 x 8 x 8 outputs of 4 x 3 x 3 taps and a bias
    "convolution": (
        layer("conv2d", [(1, 4, 10, 10)], (1, 8, 8, 8), [(8, 4, 3, 3), (8,)]),
        {
            "forward": (2 * 18_432 + 512, 4 * (400 + 288 + 8), 4 * 512),
            "backward_data": (2 * 18_432, 4 * (512 + 288), 4 * 400),
            "backward_weight": (2 * 18_432 + 512, 4 * (400 + 512), 4 * 296), "update": (2 * 296, 4 * 2 * 296, 4 * 296),
        },
    ),
    "grouped convolution": (
        layer("conv2d", [(1, 8, 10, 10)], (1, 8, 8, 8), [(8, 1, 3, 3)], groups=8),
        {"forward": (2 * 4_608, 4 * (800 + 72), 4 * 512), "backward_weight": (2 * 4_608, 4 * (800 + 512), 4 * 72)},
    ),
    # every one of 4 x 10 x 10 inputs meets 8 x 2 x 2 taps
    "transposed convolution": (
        layer("conv_transpose2d", [(1, 4, 10, 10)], (1, 8, 20, 20), [(4, 8, 2, 2)], transposed=True),
        {"forward": (2 * 12_800, 4 * (400 + 128), 4 * 3200), "backward_data": (2 * 12_800, 4 * (3200 + 128), 4 * 400)},
    ),
    "linear": (
        layer("linear", [(1, 5, 100)], (1, 5, 10), [(10, 100), (10,)]),
        {"forward": (2 * 5000 + 50, 4 * (500 + 1010), 4 * 50), "backward_weight": (2 * 5000 + 50, 4 * 550, 4 * 1010)},
    ),
    "product with a weight": (
        layer("matmul", [(1, 5, 16)], (1, 5, 8), [(16, 8)], inner=16),
        {"forward": (2 * 640, 4 * (80 + 128), 4 * 40), "backward_data": (2 * 640, 4 * (40 + 128), 4 * 80)},
    ),
    # 2 heads of 10 x 10 scores, 16 wide both times
    "attention": (
        layer("attention", [(2, 10, 16), (2, 10, 16), (2, 10, 16)], (2, 10, 16)),
        {"forward": (2 * 6400 + 6 * 200, 4 * 960, 4 * 320), "backward_data": (4 * 6400 + 5 * 200, 4 * 1600, 4 * 960)},
    ),
    "batch norm": (
        layer("batch_norm", [(1, 3, 4, 4)], (1, 3, 4, 4), [(3,), (3,)]),
        {
            "inference": (2 * 48, 4 * (48 + 4 * 3), 4 * 48), "forward": (7 * 48, 4 * (2 * 48 + 6), 4 * 48),
            "backward_data": (6 * 48, 4 * (2 * 48 + 9), 4 * 48), "backward_weight": (5 * 48, 4 * (2 * 48 + 6), 4 * 6),
        },
    ),
    # without parameters the two sums are still needed for the data gradient
    "batch norm without parameters": (
        layer("batch_norm", [(1, 3, 4, 4)], (1, 3, 4, 4)),
        {"backward_data": (11 * 48, 4 * (4 * 48 + 15), 4 * (48 + 6)), "backward_weight": (0, 0, 0)},
    ),
    "relu": (layer("relu", [(1, 6)], (1, 6)), {"forward": (6, 24, 24), "backward_data": (6, 48, 24)}),
    "softmax": (layer("softmax", [(1, 6)], (1, 6)), {"forward": (30, 24, 24), "backward_data": (24, 48, 24)}),
    # a sum of the gradient over the three rows that the operand was spread to
    "broadcast sum": (
        layer("add", [(1, 4), (3, 4)], (3, 4)), {"forward": (12, 4 * 16, 4 * 12), "backward_data": (12, 4 * 12, 4 * 4)},
    ),
    # the gradient of a sum is passed on; of a product it needs the other factor, of a function its operand
    "sum": (layer("add", [(1, 6), (1, 6)], (1, 6)), {"forward": (6, 48, 24), "backward_data": (0, 0, 0)}),
    "product": (layer("mul", [(1, 6), (1, 6)], (1, 6)), {"forward": (6, 48, 24), "backward_data": (6, 48, 24)}),
    "product with a number": (layer("mul", [(1, 6)], (1, 6)), {"forward": (6, 24, 24), "backward_data": (6, 24, 24)}),
    "exponential": (layer("exp", [(1, 6)], (1, 6)), {"forward": (6, 24, 24), "backward_data": (6, 48, 24)}),
    # the parameter's gradient is a product, and its sum over three rows
    "product with a parameter": (
        layer("mul", [(3, 6)], (3, 6), [(6,)]),
        {
            "forward": (18, 4 * (18 + 6), 4 * 18), "backward_data": (18, 4 * (18 + 6), 4 * 18),
            "backward_weight": (2 * 18, 4 * (18 + 18), 4 * 6),
        },
    ),
    "prelu": (
        layer("prelu", [(3, 6)], (3, 6), [(6,)]),
        {
            "forward": (2 * 18, 4 * (18 + 6), 4 * 18), "backward_data": (2 * 18, 4 * (18 + 18 + 6), 4 * 18),
            "backward_weight": (2 * 18, 4 * (18 + 18), 4 * 6),
        },
    ),
    # a bias that is a parameter, and two factors that are not (torch.baddbmm)
    "product with a bias": (
        layer("matmul", [(1, 5, 16), (1, 16, 8)], (1, 5, 8), [(8,)], inner=16, bias=True),
        {
            "forward": (2 * 640 + 40, 4 * (80 + 128 + 8), 4 * 40), "backward_data": (2 * 640, 4 * (40 + 128), 4 * 80),
            "backward_weight": (40, 4 * 40, 4 * 8),
        },
    ),
    "layer norm": (
        layer("layer_norm", [(1, 2, 8)], (1, 2, 8), [(8,), (8,)]),
        {
            "forward": (7 * 16, 4 * (16 + 16), 4 * 16), "backward_data": (10 * 16, 4 * (16 + 16 + 16), 4 * 16),
            "backward_weight": (5 * 16, 4 * (16 + 16), 4 * 16),
        },
    ),
    # a square, a sum and a product by the deviation, then by the factor
    "root mean square norm": (
        layer("rms_norm", [(1, 2, 8)], (1, 2, 8), [(8,)]),
        {
            "forward": (4 * 16, 4 * (16 + 8), 4 * 16), "backward_data": (8 * 16, 4 * (16 + 16 + 8), 4 * 16),
            "backward_weight": (3 * 16, 4 * (16 + 16), 4 * 8),
        },
    ),
    # w = g v / |v|: its gradient dw and v are read for both, dv = g / |v| (dw - v (v dw) / |v|^2), dg = (v dw) / |v|
    "weight norm": (
        layer("weight_norm", [], (4, 3), [(4, 1), (4, 3)]),
        {"forward": (3 * 12, 4 * (4 + 12), 4 * 12), "backward_weight": (6 * 12, 4 * (12 + 12), 4 * (4 + 12))},
    ),
    "local response norm": (
        layer("local_response_norm", [(1, 8, 2, 2)], (1, 8, 2, 2), size=5),
        {"forward": (10 * 32, 4 * 32, 4 * 32), "backward_data": (20 * 32, 4 * 3 * 32, 4 * 32)},
    ),
    "max pool": (
        layer("max_pool", [(1, 2, 4, 4)], (1, 2, 2, 2), kernel=[2, 2]),
        {"inference": (3 * 8, 4 * 32, 4 * 8), "forward": (3 * 8, 4 * 32 + 8 * 8, 4 * 8)},
    ),
    "average pool": (
        layer("avg_pool", [(1, 2, 4, 4)], (1, 2, 2, 2), kernel=[2, 2]),
        {"forward": (4 * 8, 4 * 32, 4 * 8), "backward_data": (4 * 8, 4 * 8, 4 * 32)},
    ),
    # PyTorch's windows of 7 into 3: 3, 3 and 3 elements wide, overlapping
    "adaptive average pool": (
        layer("adaptive_avg_pool", [(1, 1, 7, 7)], (1, 1, 3, 3)), {"forward": (81, 4 * 49, 4 * 9)},
    ),
    "adaptive average pool to the same size": (
        layer("adaptive_avg_pool", [(1, 1, 7, 7)], (1, 1, 7, 7)), {"forward": (0, 4 * 49, 4 * 49)},
    ),
    "view": (layer("view", [(1, 6)], (6, 1)), {"forward": (0, 0, 0), "backward_data": (0, 0, 0)}),
    "expanded view": (layer("view", [(1, 6)], (5, 6)), {"forward": (0, 0, 0), "backward_data": (30, 120, 24)}),
    "slice": (layer("slice", [(1, 6)], (1, 2)), {"forward": (0, 0, 0), "backward_data": (0, 8, 24)}),
    # parameters go the way of tensors: of 5 x 6 a part, 2 x 6
    "slice of a parameter": (
        layer("slice", [], (2, 6), [(5, 6)]), {"forward": (0, 0, 0), "backward_weight": (0, 4 * 12, 4 * 30)},
    ),
    "expanded parameter": (
        layer("view", [], (5, 6), [(1, 6)]), {"forward": (0, 0, 0), "backward_weight": (30, 4 * 30, 4 * 6)},
    ),
    "sum of a parameter": (
        layer("reduce", [], (5,), [(5, 6)]), {"forward": (30, 4 * 30, 4 * 5), "backward_weight": (30, 4 * 5, 4 * 30)},
    ),
    "copy of a parameter": (
        layer("copy", [], (5, 6), [(5, 6)]), {"forward": (0, 4 * 30, 4 * 30), "backward_weight": (0, 4 * 30, 4 * 30)},
    ),
    "chosen rows of a parameter": (  # read and added up at places of 8 bytes, in a gradient that is zero elsewhere
        layer("gather", [], (2, 6), [(5, 6)]),
        {
            "forward": (0, 4 * 12 + 8 * 12, 4 * 12),
            "backward_weight": (12, 4 * 24 + 8 * 12, 4 * (30 + 12)),
        },
    ),
    "assignment": (layer("assign", [(1, 6), (1, 2)], (1, 2)), {"forward": (0, 8, 8), "backward_data": (0, 0, 8)}),
    "dropout": (
        layer("dropout", [(1, 6)], (1, 6)),
        {"inference": (0, 0, 0), "forward": (12, 24 + 6, 24), "backward_data": (6, 24 + 6, 24)},
    ),
    "embedding": (
        layer("embedding", [(1, 4)], (1, 4, 3), [(10, 3)]),
        {"forward": (0, 4 * 12 + 8 * 4, 4 * 12), "backward_weight": (12, 4 * 24 + 8 * 4, 4 * (30 + 12))},
    ),
    # Three windows of 3 of 7 elements along each axis: 0 to 2, 2 to 4 and 4 to 6
    "adaptive": (
        layer("adaptive_avg_pool", [(1, 6, 7, 7)], (1, 6, 3, 3)),
        {"forward": (6 * 9 * 9, 4 * 6 * 49, 4 * 6 * 9), "backward_data": (6 * 9 * 9, 4 * 6 * 9, 4 * 6 * 49)},
    ),
    "adaptive without a batch": (
        layer("adaptive_avg_pool", [(6, 7, 7)], (6, 3, 3), dims=2), {"forward": (6 * 9 * 9, 4 * 6 * 49, 4 * 6 * 9)},
    ),
    # 4 neighbours weighted: 4 products and 3 sums
    "bilinear": (layer("interpolate", [(1, 1, 2, 2)], (1, 1, 4, 4), mode="linear"), {"forward": (7 * 16, 16, 64)}),
    # 16 neighbours weighted: 16 products and 15 sums
    "cubic": (layer("interpolate", [(1, 1, 2, 2)], (1, 1, 4, 4), mode="cubic"), {"forward": (31 * 16, 16, 64)}),
    "nearest": (
        layer("interpolate", [(1, 1, 2, 2)], (1, 1, 4, 4), mode="nearest"),
        {"forward": (0, 16, 64), "backward_data": (0, 64, 16)},
    ),
    # One index of 8 bytes per element, or per row of four
    "gather": (
        layer("gather", [(10, 4)], (3, 4), function="gather"),
        {"forward": (0, 4 * 12 + 8 * 12, 4 * 12), "backward_data": (12, 2 * 4 * 12 + 8 * 12, 4 * (40 + 12))},
    ),
    "rows": (
        layer("gather", [(10, 4)], (3, 4), function="index_select"),
        {"forward": (0, 4 * 12 + 8 * 3, 4 * 12), "backward_data": (12, 2 * 4 * 12 + 8 * 3, 4 * (40 + 12))},
    ),
    "columns": (
        layer("gather", [(10, 4)], (10, 3), function="index_select"), {"forward": (0, 4 * 30 + 8 * 30, 4 * 30)},
    ),
    # Six indices into a table of 10 rows of 4, in two bags: two numbers are added for each third
    "embedding bag": (
        [Layer("bag", "embedding_bag", ((1, 2, 3),), ((1, 2, 4),), ((10, 4),), (INPUT,), 40)],
        {"forward": (24, 4 * 24 + 8 * 6, 4 * 8), "backward_weight": (24, 4 * (8 + 24) + 8 * 6, 4 * (40 + 24))},
    ),
    "fill": (layer("fill", [], (1, 6)), {"forward": (0, 0, 24), "backward_data": (0, 0, 0)}),
    "concat": (layer("concat", [(1, 4), (1, 2)], (1, 6)), {"forward": (0, 24, 24), "backward_data": (0, 0, 0)}),
    "variance": (layer("reduce", [(1, 6)], (1,), per_element=3), {"forward": (18, 24, 4)}),
    "mean": (layer("reduce", [(1, 6)], (1,)), {"forward": (6, 24, 4), "backward_data": (6, 4, 24)}),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_counts_by_hand(name):
    layers, expected = BY_HAND[name]
    for phase, (flops, read, written) in expected.items():
        found = figures(layers, phase)
        assert (found["flops"], found["bytes_read"], found["bytes_written"]) == (flops, read, written), phase


DOCS = (Path(__file__).parents[3] / "docs" / "counting.md").read_text(encoding="utf-8")

# kind: FLOPs per element, forward and backward, of the rows such as "| 1 | 3 | `pow`, `reciprocal` |"
PER_ELEMENT = {
    kind: [int(forward), int(backward)]
    for forward, backward, kinds in re.findall(r"^\| (\d+) \| (\d+) \| (.*) \|$", DOCS, re.MULTILINE)
    for kind in re.findall(r"`(\w+)`", kinds)
}


def test_indices_and_masks_keep_their_size_in_any_precision():
    layers, _ = BY_HAND["max pool"]
    assert figures(layers, "forward", precision="fp16")["bytes_read"] == 2 * 32 + 8 * 8


def test_no_gradient_flows_into_the_networks_input():
    layers = [Layer("a", "linear", ((1, 3),), ((1, 4),), ((4, 3),), (INPUT,), 12)]
    assert figures(layers, "backward_data") == dict.fromkeys(COLUMNS, 0)
    assert figures(layers, "backward_weight")["macs"] == 12


def test_gradients_of_several_consumers_are_added():
    first = Layer("a", "linear", ((1, 4),), ((1, 4),), ((4, 4),), (INPUT,), 16)
    once = [first, Layer("b", "relu", ((1, 4),), ((1, 4),), (), (0,)), first._replace(name="c", parents=(1,))]
    twice = [*once, Layer("d", "relu", ((1, 4),), ((1, 4),), (), (0,))]
    work_once, work_twice = count(once), count(twice)
    assert work_twice.column("flops", "backward_data")[0][0] - work_once.column("flops", "backward_data")[0][0] == 4
    parts = [first._replace(outputs=((1, 2), (1, 2))), *once[1:], twice[-1]]  # two outputs, one consumer each
    assert count(parts).column("flops", "backward_data")[0][0] == 0


def test_a_frozen_weight_has_no_gradient_and_no_update():
    layers, _ = BY_HAND["linear"]
    frozen = [layers[0], layers[1]._replace(attributes={"frozen": True})]
    for phase in ("backward_weight", "update"):
        assert figures(frozen, phase)["flops"] == 0 < figures(layers, phase)["flops"]
    assert figures(frozen, "backward_data") == figures(layers, "backward_data")


@pytest.mark.parametrize(
    "wrong",
    [
        layer("conv2d", [(1, 4, 10, 10)], (1, 8, 8, 8)),
        layer("attention", [(1, 4)], (1, 4)),
        layer("max_pool", [(1, 4)], (1, 4), kernel=["a"]),
        layer("interpolate", [(1, 1, 2, 2)], (1, 1, 4, 4), mode="magic"),
        layer("batch_norm", [(4,)], (4,)),
        layer("softmax", [(2**40, 2**40)], (2**40, 2**40)),
    ],
)
def test_shapes_that_do_not_fit_their_kind(wrong):
    with pytest.raises(CountFailed):
        count(wrong)


@given(layers=any_layer(), batch_size=st.integers(1, 2**20))
def test_every_count_is_affine_in_the_batch_and_never_negative(layers, batch_size):
    """A rule evaluated at a batch size equals the sum of the stored constant and per-sample parts."""
    from paleo_lite.counting.layer import trace_flow
    from paleo_lite.counting.work import _count_passes, find_convention

    work = count(layers)
    flow = trace_flow(layers)
    for index, one in enumerate(layers):
        rows, forward, _ = _count_passes(one, batch_size, flow, index, find_convention("flops"), 4)
        for name, direct in zip(COLUMNS, zip(*rows)):
            stored = [int(work.column(name, phase, batch_size)[0][index]) for phase in PASSES]
            assert stored == list(direct)
            assert min(stored) >= 0
        assert work.counts("inference", batch_size)[index] == forward


@pytest.mark.parametrize("phase", [*PHASES, *GENERATION_PHASES, *PASSES])
def test_a_column_of_a_phase_has_the_counts_of_its_passes(phase):
    work = count(layer("linear", [(1, 8, 16)], (1, 8, 4), [(4, 16), (4,)]), "fp32", "flops")
    by_pass = [work.column("flops", name, 3)[0].tolist() for name in passes_of(phase)]
    assert work.column("flops", phase, 3).tolist() == by_pass


@pytest.mark.thorough
@given(layers=any_layer(), name=st.text(max_size=8))
def test_counts_do_not_depend_on_names(layers, name):
    renamed = [entry._replace(name=f"{name}{index}", origin="opaque:x") for index, entry in enumerate(layers)]
    for phase in PASSES:
        assert figures(layers, phase) == figures(renamed, phase)


@pytest.mark.slow
@given(data=st.data(), channels=st.integers(1, 6))
def test_more_channels_never_cost_less(data, channels):
    layers = data.draw(any_layer(channels=channels))
    wider = _widened(layers, channels)
    for phase in PASSES:
        narrow, wide = figures(layers, phase), figures(wider, phase)
        assert all(wide[column] >= narrow[column] for column in ("flops", "macs", "bytes_read", "bytes_written"))


def _widened(layers, channels):
    """The same layers with twice as many of the channels that every shape shares (dimension 1, or the last)."""

    def wide(shape):
        return tuple(2 * extent if index == 1 or len(shape) == 1 else extent for index, extent in enumerate(shape))

    first, it = layers
    fixed = ("matmul", "grouped_matmul", "attention", "linear", "embedding", "concat", "selective_scan",
             "state_space_dual", "gated_delta_rule")  # fmt: skip
    if it.kind in fixed or it.kind.startswith("conv"):
        return layers if it.kind != "conv2d" else [first, it._replace(
            inputs=(wide(it.inputs[0]),), weights=(wide(it.weights[0]), it.weights[1]))]  # fmt: skip
    return [
        first._replace(outputs=(wide(first.outputs[0]),)),
        it._replace(
            inputs=tuple(map(wide, it.inputs)),
            outputs=tuple(map(wide, it.outputs)),
            weights=tuple(map(wide, it.weights)),
        ),
    ]


def test_every_kind_is_in_the_docs():
    missing = [kind for kind in KINDS if f"`{kind}`" not in DOCS]
    assert not missing, f"docs/counting.md says nothing of {', '.join(missing)}: add a row with its formula and source"


@pytest.mark.parametrize("kind", PER_ELEMENT)
def test_elementwise_costs_match_the_documentation(kind):
    layers = layer_of_kind(kind)
    found = [figures(layers, phase)["flops"] / prod(layers[-1].outputs[0]) for phase in ("forward", "backward_data")]
    assert found == PER_ELEMENT[kind]


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - MATRIX_KINDS))
def test_only_matrix_kinds_have_multiply_accumulates(kind):
    layers = layer_of_kind(kind)
    own = layers[-1:] if kind != "recurrent" else layers
    for phase in ("inference", "forward", "backward_data", "backward_weight"):
        assert count(layers).column("macs", phase)[:, -len(own) :].sum() == 0, phase


def test_documentation_lists_every_elementwise_kind():
    from paleo_lite.counting.kinds import activations, elementwise

    of_their_own = {"softmax", "log_softmax", "cross_entropy", "dropout", "reduce", "scan", "fourier"}
    kinds = {kind.name for kind in (*activations.KINDS, *elementwise.KINDS)}
    missing = kinds - of_their_own - PER_ELEMENT.keys()
    assert not missing, (
        f"the table of FLOPs per element in docs/counting.md has no row for {', '.join(missing)}: add it, or say here "
        "that the kind has a rule of its own"
    )
    assert PER_ELEMENT.keys() <= KINDS.keys()


def test_the_kinds_of_matrix_work():
    assert {"conv2d", "linear", "matmul", "attention"} < MATRIX_KINDS < set(KINDS)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.group == "normalisation"])
def test_normalisation_has_no_products(kind: str) -> None:
    made = layer(kind, [(4, 6, 6)], (4, 6, 6), [(4,)] if kind != "rms_norm" else [(6,)])
    for phase in ("forward", "backward_data", "backward_weight"):
        assert figures(made, phase)["macs"] == 0


def test_norms_of_channels_save_figures_of_every_sample():
    """ATen's instance norm is a batch norm of one sample with N x C channels, whose weight is repeated N times."""
    norm = layer("instance_norm", [(2, 6, 4, 4)], (2, 6, 4, 4), [(6,), (6,)])[-1]
    assert saved_by_instance_norm(norm, (True,), True) == ((0,), False, 12, 2 * 12, 0, True)
    in_groups = norm._replace(attributes={"num_groups": 3})
    assert saved_by_group_norm(in_groups, (True,), True) == ((0,), False, 0, 2 * 2 * 3, 0, True)
