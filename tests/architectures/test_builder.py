"""Output shapes and parameters of the layers that files name, against the modules of PyTorch without their values."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paleo_lite.architectures.builder import Blob, Builder, Window
from paleo_lite.errors import BadDescriptor

PAIRS = st.tuples(st.integers(1, 4), st.integers(1, 4))
SIZES = st.tuples(st.integers(1, 12), st.integers(1, 12))
NONE_OR_MORE = st.tuples(st.integers(0, 2), st.integers(0, 2))
WINDOWS = st.builds(Window, PAIRS, PAIRS, NONE_OR_MORE, PAIRS)


def output_of(make, *shape: int):
    """The shape that a module of PyTorch gives, and its parameters; None if it refuses its input."""
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        module, image = make(torch.nn), torch.empty(1, *shape)
    try:
        result = module(image)
    except RuntimeError:
        return None
    return tuple(result.shape), sum(parameter.numel() for parameter in module.parameters())


def added(add):
    """The shape and the parameters of the last layer that a builder adds; None if it refuses the layer."""
    builder = Builder("here")
    try:
        blob = add(builder)
    except BadDescriptor:
        return None
    return blob.shape, builder.layers[-1].parameters


@given(
    size=SIZES, window=WINDOWS, groups=st.integers(1, 3), channels=st.integers(1, 6), channels_out=st.integers(1, 6),
    bias=st.booleans(), transposed=st.booleans(),
)  # fmt: skip
def test_convolutions_are_those_of_pytorch(size, window, groups, channels, channels_out, bias, transposed) -> None:
    are_divisible = channels % groups == 0 and channels_out % groups == 0
    expected = None
    if are_divisible:

        def make(nn):
            kind = nn.ConvTranspose2d if transposed else nn.Conv2d
            kernel, stride, padding, dilation = window
            return kind(channels, channels_out, kernel, stride, padding, groups=groups, bias=bias, dilation=dilation)

        expected = output_of(make, channels, *size)
    found = added(
        lambda builder: builder.convolution(
            "it", Blob((1, channels, *size)), channels_out, window, groups=groups, bias=bias, transposed=transposed
        )
    )
    assert found == expected


@given(size=SIZES, window=WINDOWS, ceil_mode=st.booleans(), maximum=st.booleans())
def test_pooling_is_that_of_pytorch(size, window, ceil_mode, maximum) -> None:
    kernel, stride, padding, _ = window
    assume(all(2 * pad <= taps for pad, taps in zip(padding, kernel)))  # otherwise PyTorch refuses it

    def make(nn):
        return (nn.MaxPool2d if maximum else nn.AvgPool2d)(kernel, stride, padding, ceil_mode=ceil_mode)

    found = added(lambda builder: builder.pooling("it", Blob((1, 3, *size)), maximum, window, ceil_mode))
    is_covered = all(taps <= edge + 2 * pad for edge, taps, pad in zip(size, kernel, padding))
    assert found == (output_of(make, 3, *size) if is_covered else None)


@given(size=SIZES, kernel=PAIRS, stride=PAIRS, is_pooled=st.booleans())
def test_same_padding_is_that_of_tensorflow(size, kernel, stride, is_pooled) -> None:
    """As many outputs as strides begin in the image (TensorFlow, ``tf.nn.convolution``)."""
    window = Window(kernel, stride, "same")

    def add(builder: Builder) -> Blob:
        image = Blob((1, 3, *size))
        return builder.pooling("it", image, True, window) if is_pooled else builder.convolution("it", image, 3, window)

    found = added(add)
    assert found is not None and found[0] == (1, 3, *(ceil(edge / step) for edge, step in zip(size, stride)))


@given(shapes=st.lists(st.tuples(st.integers(1, 3), SIZES), min_size=1, max_size=3), axis=st.integers(-4, 4))
def test_concatenation_is_that_of_pytorch(shapes, axis) -> None:
    """But along the batch."""
    torch = pytest.importorskip("torch")
    sizes = [(1, channels, *size) for channels, size in shapes]
    try:
        expected = tuple(torch.cat([torch.empty(size, device="meta") for size in sizes], axis).shape)
    except (RuntimeError, IndexError):
        expected = None
    found = added(lambda builder: builder.concat("it", [Blob(size) for size in sizes], axis))
    assert found == (None if expected is None or axis in (0, -4) else (expected, 0))


@given(size=SIZES, outputs=st.integers(1, 5), bias=st.booleans())
def test_a_linear_layer_reads_all_elements_of_a_sample(size, outputs, bias) -> None:
    expected = output_of(
        lambda nn: nn.Sequential(nn.Flatten(), nn.Linear(2 * size[0] * size[1], outputs, bias=bias)), 2, *size
    )
    assert added(lambda builder: builder.linear("it", Blob((1, 2, *size)), outputs, bias)) == expected


def test_elementwise_layers_take_two_blobs_at_a_time() -> None:
    builder = Builder("here")
    one = Blob((1, 3, 4, 4))
    assert builder.elementwise("it", "add", [one, one, one]).shape == one.shape and len(builder.layers) == 2
    for blobs in ([one], [one, Blob((1, 3, 4, 5))]):
        with pytest.raises(BadDescriptor, match="needs two or more inputs of one shape"):
            builder.elementwise("it", "add", blobs)


@pytest.mark.parametrize("size", [0, -1, 2**31 + 1, 1.0, True])
def test_sizes_are_positive_integers(size: object) -> None:
    with pytest.raises(BadDescriptor, match="must be integers >= 1"):
        Builder("here").convolution("it", Blob((1, 3, 8, 8)), 3, Window((3, size)))


def test_a_network_without_layers_is_refused() -> None:
    with pytest.raises(BadDescriptor, match="has no layers"):
        Builder("here").network("it", (), "made here")
