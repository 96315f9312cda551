"""The matrix products behind layers: sizes by hand (Chetlur et al. 2014), torch's own lowering, and torch's counter."""

from __future__ import annotations

import pytest

from paleo_lite.counting import Layer
from paleo_lite.counting.kinds import gemm_of
from paleo_lite.counting.kinds.products import (
    class_of_convolution,
    computed_score_fraction,
    count_half_of_causal,
    is_depthwise,
    unfused_attention,
)
from paleo_lite.counting.layer import Gemm


def conv(inputs, outputs, weight, **attributes):
    return Layer("it", f"conv{len(weight) - 2}d", (inputs,), (outputs,), (weight,), (0,), 0, attributes)


ALEXNETS_FIRST = conv((1, 3, 224, 224), (1, 64, 55, 55), (64, 3, 11, 11), stride=[4, 4])
GROUPED = conv((1, 128, 56, 56), (1, 128, 28, 28), (128, 4, 3, 3), stride=[2, 2], groups=32)
TRANSPOSED = conv((1, 4, 10, 10), (1, 8, 20, 20), (4, 8, 2, 2), stride=[2, 2], transposed=True)
TOKENS = Layer("it", "linear", ((1, 197, 768),), ((1, 197, 3072),), ((3072, 768), (3072,)))
HEADS = Layer("it", "matmul", ((1, 12, 197, 64), (1, 12, 64, 197)), ((1, 12, 197, 197),), (), (0, 1))
WEIGHTED = Layer("it", "matmul", ((1, 5, 16),), ((1, 5, 8),), ((16, 8),), (0,), 0, {"inner": 16})
ATTENTION = Layer("it", "attention", ((1, 12, 50, 64), (1, 12, 70, 64), (1, 12, 70, 64)), ((1, 12, 50, 64),))

SHARED = ATTENTION._replace(inputs=((1, 12, 50, 64), (1, 3, 70, 64), (1, 3, 70, 64)))

# rows, columns, inner size, groups, and which of them grows with the batch
BY_HAND = {
    "a convolution": (
        ALEXNETS_FIRST, (55 * 55, 64, 3 * 11 * 11, 1, "rows"), (224 * 224, 3, 64 * 11 * 11, 1, "rows"),
        (64, 3 * 11 * 11, 55 * 55, 1, "inner"),
    ),
    "groups": (
        GROUPED, (28 * 28, 4, 4 * 9, 32, "rows"), (56 * 56, 4, 4 * 9, 32, "rows"), (4, 4 * 9, 28 * 28, 32, "inner"),
    ),
    # "the gradient of Conv2d with respect to its input" (torch.nn.ConvTranspose2d): of 2 x 2 taps on 8 channels, to 4
    "a transposed convolution": (
        TRANSPOSED, (20 * 20, 8, 4 * 4, 1, "rows"), (10 * 10, 4, 8 * 4, 1, "rows"), (4, 8 * 4, 10 * 10, 1, "inner"),
    ),
    "a linear layer": (TOKENS, (197, 3072, 768, 1, "rows"), (197, 768, 3072, 1, "rows"), (3072, 768, 197, 1, "inner")),
    "products of heads": (
        HEADS, (197, 197, 64, 12, "groups"), (197, 64, 197, 12, "groups"), (197, 64, 197, 12, "groups"),
    ),
    "a product with a weight": (WEIGHTED, (5, 8, 16, 1, "rows"), (5, 16, 8, 1, "rows"), (8, 16, 5, 1, "inner")),
    "queries that share keys": (
        SHARED, (4 * 50, 70, 64, 3, "groups"), (4 * 50, 64, 70, 3, "groups"), (70, 64, 4 * 50, 3, "groups"),
    ),
    "attention": (ATTENTION, (50, 70, 64, 12, "groups"), (50, 64, 70, 12, "groups"), (70, 64, 50, 12, "groups")),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_sizes_by_hand(name: str) -> None:
    layer, forward, data, weight = BY_HAND[name]
    assert gemm_of(layer, "inference") == gemm_of(layer, "forward") == Gemm(*forward)
    assert gemm_of(layer, "backward_data") == Gemm(*data)
    assert gemm_of(layer, "backward_weight") == Gemm(*weight)


@pytest.mark.parametrize(
    ("weight", "attributes", "expected"),
    [
        ((8, 4, 3, 3), {}, "conv_3x3"),
        ((8, 4, 3, 3), {"stride": [1, 1], "padding": [1, 1]}, "conv_3x3"),
        ((8, 4, 3, 3), {"stride": [2, 2]}, "conv_direct"),
        ((8, 4, 3, 3), {"stride": [1, 2]}, "conv_direct"),
        ((8, 4, 3, 3), {"dilation": [2, 2]}, "conv_direct"),
        ((8, 4, 3, 3), {"transposed": True}, "conv_direct"),
        ((8, 4, 3, 5), {}, "conv_direct"),
        ((8, 4, 3), {}, "conv_direct"),  # over one dimension
        ((8, 4, 3, 3, 3), {}, "conv_direct"),
        ((8, 4, 1, 1), {}, "conv_1x1"),
        ((8, 4, 1), {"stride": [2]}, "conv_1x1"),
        ((8, 2, 3, 3), {"groups": 2}, "conv_grouped"),
        ((8, 1, 3, 3), {"groups": 4}, "conv_depthwise"),
        ((8, 1, 3, 3), {}, "conv_3x3"),  # of one channel
    ],
)
def test_classes_of_convolutions(weight: tuple[int, ...], attributes: dict[str, object], expected: str) -> None:
    size = (6,) * (len(weight) - 2)
    layer = conv((1, 4, *size), (1, 8, *size), weight, **attributes)
    assert class_of_convolution(layer) == expected
    assert is_depthwise(layer) == (expected == "conv_depthwise")


def test_half_of_causal_attention_is_marked() -> None:
    causal = ATTENTION._replace(attributes={"causal": True, "window": 9})
    marked, number = count_half_of_causal([causal, ATTENTION, HEADS._replace(attributes={"causal": True})])
    assert number == 1
    assert [layer.attributes.get("half") for layer in marked] == [True, None, None]
    assert marked[0].attributes == {"causal": True, "window": 9, "half": True}


def test_other_kinds_have_no_matrix_products() -> None:
    assert gemm_of(Layer("it", "relu", ((1, 4),), ((1, 4),)), "forward") is None


@pytest.mark.slow
@pytest.mark.parametrize("layer", [ALEXNETS_FIRST, GROUPED])
def test_torch_lowers_a_convolution_to_the_same_sizes(layer: Layer) -> None:
    """``torch.nn.functional.unfold`` is the lowering of cuDNN's paper: a column of taps for every position."""
    torch = pytest.importorskip("torch")
    groups = layer.attributes.get("groups", 1)
    _, channels, height, width = layer.inputs[0]
    image = torch.empty((1, channels // groups, height, width), device="meta")
    taps, stride = layer.weights[0][2:], layer.attributes["stride"]
    padding = 2 if groups == 1 else 1
    _, inner, positions = torch.nn.functional.unfold(image, taps, padding=padding, stride=stride).shape
    found = gemm_of(layer, "forward")
    assert (found.rows, found.inner) == (positions, inner)


@pytest.mark.slow
def test_macs_equal_torch() -> None:
    """Compare the forward pass and both gradients of layers with as many input as output positions."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    cases = [
        (torch.nn.Linear(24, 40), (7, 24), Layer("it", "linear", ((7, 24),), ((7, 40),), ((40, 24), (40,)))),
        (
            torch.nn.Conv2d(6, 9, 3, padding=1),
            (1, 6, 10, 12),
            conv((1, 6, 10, 12), (1, 9, 10, 12), (9, 6, 3, 3)),
        ),
    ]
    for module, shape, layer in cases:
        x = torch.zeros(shape, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            module(x).sum().backward()
        products = [gemm_of(layer, part) for part in ("forward", "backward_data", "backward_weight")]
        assert sum(2 * p.rows * p.columns * p.inner * p.groups for p in products) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("queries", "keys", "limits", "ring"),
    [
        (4, 4, {}, 1), (3, 7, {}, 1), (8, 8, {"window": 3}, 1), (4, 9, {"window": 2}, 1), (4, 4, {}, 2),
        (8, 8, {"attention_chunk": 3}, 1), (4, 9, {"attention_chunk": 5}, 1),
    ],
)  # fmt: skip
def test_scores_of_a_fused_kernel_are_those_that_the_mask_shows(
    queries: int, keys: int, limits: dict[str, int], ring: int
) -> None:
    """The mask written down: a query sees keys up to its own, of its window or of its chunk."""
    attributes = {"causal": True, "ring": ring, **limits}
    shapes = ((1, 1, queries, 16), (1, 1, keys, 16), (1, 1, keys, 16))
    layer = Layer("it", "attention", shapes, (shapes[0],), (), (), 0, attributes)
    queries, keys = queries * ring, keys * ring
    shown = 0
    for query in range(queries):
        last_key = keys - queries + query
        first_key = max(last_key - limits.get("window", keys) + 1, 0)
        if "attention_chunk" in limits:
            first_key = last_key - last_key % limits["attention_chunk"]
        shown += last_key - first_key + 1
    assert computed_score_fraction(layer) == pytest.approx(shown / (queries * keys))


@pytest.mark.parametrize(
    ("inputs", "outputs", "weight", "sizes"),
    [
        ((1, 6, 100), (1, 8, 50), (8, 6, 3), (100, 6, 8 * 3)),
        ((1, 4, 6, 8, 10), (1, 5, 3, 4, 5), (5, 4, 3, 3, 3), (6 * 8 * 10, 4, 5 * 27)),
    ],
)
def test_gradients_of_one_and_three_dimensional_convolutions_have_a_row_per_input_position(
    inputs: tuple[int, ...], outputs: tuple[int, ...], weight: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """NVIDIA, "Convolutional Layers User's Guide": M is N x H x W of the input, N its channels, K = output x taps."""
    gemm = gemm_of(conv(inputs, outputs, weight), "backward_data")
    assert gemm is not None
    assert (gemm.rows, gemm.columns, gemm.inner) == sizes


def test_attention_without_a_fused_kernel_has_a_score_per_query_and_key() -> None:
    query, key, value = (4, 3, 16), (4, 7, 16), (4, 7, 16)
    attention = Layer("attention", "attention", (query, key, value), ((4, 3, 16),), (), (0, 1, 2))
    layers = {layer.name: layer for layer in unfused_attention(attention, (0, 1, 2), 3)}
    scores = layers["attention.scores"]
    assert (scores.inputs, scores.outputs) == (((4, 3, 16), (4, 16, 7)), ((4, 3, 7),))
