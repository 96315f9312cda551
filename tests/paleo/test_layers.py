"""What PALEO counts, against figures of its release and by hand."""

from __future__ import annotations

import pytest

from paleo_lite.architectures import find_network
from paleo_lite.counting import INPUT, Layer, count
from paleo_lite.errors import CountFailed, UnsupportedPhase
from paleo_lite.paleo import REVISIONS
from paleo_lite.paleo.layers import PASSES, Term, layer_terms, make_gradient, parameter_bytes


def conv(size, channels, maps, kernel, stride=1, pad=0, out=None, parent=0, **attributes):
    out = out or (size + 2 * pad - kernel) // stride + 1
    weights = ((maps, channels, kernel, kernel), (maps,))
    attributes |= {"stride": [stride] * 2, "padding": [pad] * 2}
    shapes = ((1, channels, size, size),), ((1, maps, out, out),)
    return Layer("conv", "conv2d", *shapes, weights, (parent,), maps * (channels * kernel**2 + 1), attributes)


def terms(layer, pass_name="forward", batch_size=1, revision="last", algorithm="gemm"):
    return layer_terms(layer, pass_name, batch_size, revision, algorithm)


def test_convention_counts_alexnet_by_hand():
    """2 kh kw Cin Cout H W per convolution; pooling 2 k k per output; dropout 1 per element; nothing else."""
    work = count(find_network("paleo_alex_v2").layers, convention="paleo")
    by_name = dict(zip(work.names, work.counts("forward")))
    expected = {
        "conv1": 2 * 11 * 11 * 3 * 64 * 54 * 54, "conv1.relu": 0, "pool1": 2 * 9 * 64 * 26 * 26,
        "conv2": 2 * 25 * 64 * 192 * 26 * 26, "fc6": 2 * 25 * 256 * 4096, "dropout6": 4096, "fc7": 2 * 4096 * 4096,
        "fc8": 2 * 4096 * 1000, "softmax": 0,
    }  # fmt: skip
    assert {name: by_name[name] for name in expected} == expected
    assert not work.unknown
    with pytest.raises(UnsupportedPhase, match="forward pass only"):
        work.counts("training")


def test_convention_reports_unknown_layers():
    """PALEO's convolutions have no groups: it asserts that filter and input have the same channels."""
    assert count(find_network("resnext50_32x4d").layers, convention="paleo").unknown == ("conv2d (16)",)
    assert not count(find_network("vgg16").layers, convention="paleo").unknown
    with pytest.raises(CountFailed, match=r"PALEO has no rule for this conv2d: \{'groups': 2\}"):
        terms(conv(8, 4, 4, 3, pad=1, groups=2))


@pytest.mark.parametrize("revision", REVISIONS)
def test_data_gradient_is_over_counted(revision):
    """A VALID convolution to one position, AlexNet's fc6: 5 x 5 x 256 to 4096.

    True: 2 * 25 * 256 * 4096 FLOPs. PALEO takes a 1 x 1 gradient padded to 9 x 9 through 5 x 5 filters at all of the
    5 x 5 input positions: 25 times as many.
    """
    fc6 = conv(5, 256, 4096, 5)
    forward, data, weight = (terms(fc6, name, revision=revision) for name in PASSES)
    assert forward[0] == weight[0] == Term(True, 2 * 25 * 256 * 4096)
    assert data[0].amount == 25 * forward[0].amount
    padded = 81 if revision == "last" else 1  # the last revision moves the padding as well
    assert [term.amount for term in data[1:]] == [4 * padded * 4096, 4 * 25 * 256 * 4096, 4 * 25 * 256]


def test_strided_gradients_by_hand():
    """3 x 3, stride 2, VALID, 35 to 17: the gradient is spread over 33 x 33, and 2 rows of padding go around it.

    Data: 2 * 9 * Cout * Cin * 35 * 35, 4.2 times the forward pass (35^2 / 17^2), and in the last revision 2 more for
    each element that is spread. Weight: only what is not zero counts, which is the forward pass's work.
    """
    layer = conv(35, 288, 384, 3, 2)
    data = 2 * 9 * 384 * 288 * 35 * 35
    assert terms(layer, "backward_data", revision="first")[0].amount == data
    assert terms(layer, "backward_data", revision="last")[0].amount == data + 2 * 17 * 17 * 384
    gradient = make_gradient(layer, "backward_data", 1, "last")
    assert (gradient.size, gradient.pads) == ((33, 33), (2, 2))
    assert terms(layer, "backward_weight")[0] == terms(layer)[0]
    assert terms(conv(35, 288, 384, 3, 2, parent=INPUT), "backward_data") == []


def test_padding_rules_of_the_revisions():
    """SAME, 3 x 3 at stride 2 on 224: TensorFlow pads 1 in all, before 0. The first revision has
    ((224 - 1) 2 + 3 - 224) // 2 = 112 on either side, and so stops at its own assertion; the last one goes through."""
    layer = conv(224, 3, 8, 3, 2, 0, out=112, same=True)
    assert terms(layer, revision="first")[1].amount == 4 * 224 * 224 * 3  # the padding is not moved
    with pytest.raises(CountFailed, match="PALEO \\(first revision\\) fails here, because its data gradient"):
        terms(layer, "backward_data", revision="first")
    assert make_gradient(layer, "backward_data", 1, "last").size[0] == 224  # 223, and one more where the padding is odd
    with pytest.raises(CountFailed, match="weight gradient has the shape 23x23 instead of 11x11"):
        terms(find_network("alexnet").layers[0], "backward_weight", revision="last")


def test_fourier_transform_by_hand():
    """AlexNet's conv3 at batch 2: 12 x 12 with 1 around, 192 to 384 channels, 3 x 3; the flop count of the release.

    size 14 * 14 = 196, T = 16: 2 * 16 * 5 * 16 * 4 = 10,240 per inverse transform, 5,120 from real to complex.
    """
    layer = conv(12, 192, 384, 3, 1, 1)
    fft = terms(layer, batch_size=2, algorithm="fft")
    assert [term.amount for term in fft if term.compute] == [
        2 * 192 * 5120, 192 * 384 * 5120, 4 * 2 * 192 * 384 * 196, 2 * 384 * 10240
    ]  # fmt: skip
    assert sum(term.amount * term.repeats for term in fft if not term.compute) == (
        196 * (2 * 192 * (4 + 8 + 8) + 192 * 384 * (4 + 8 + 8) + 2 * 384 * (8 + 8)) + 4 * 2 * 384 * 144
    )
    # 32 x 32 tiles: one covers it, T = 32: 2 * 32 * 5 * 32 * 5 = 51,200.
    tiled = terms(layer, batch_size=2, algorithm="fft-tiled")
    assert [term.amount for term in tiled if term.compute][3] == 2 * 384 * 51200
    assert terms(conv(56, 8, 8, 3, 1, 1), algorithm="fft-tiled")[0].repeats == 4
    # A filter of one dimension halves the transforms; 1 x 1, and any stride, are GEMMs; Winograd is no time at all.
    flat = layer._replace(weights=((384, 192, 1, 3), (384,)), attributes={"stride": [1, 1], "padding": [0, 1]})
    assert terms(flat, batch_size=2, algorithm="fft")[1].amount == 192 * 384 * 2560
    for other in (conv(12, 192, 384, 1), conv(35, 288, 384, 3, 2)):
        assert terms(other, algorithm="fft") == terms(other)
    assert terms(layer, algorithm="winograd") == []


@pytest.mark.parametrize(
    "layer, name, algorithm, supported",
    [
        (conv(26, 64, 192, 5, 1, 2), "forward", "fft", True),
        (conv(254, 3, 8, 3, 1, 1), "forward", "fft", True),
        (conv(256, 3, 8, 3, 1, 1), "forward", "fft", False),  # 258 with its padding
        (conv(26, 64, 192, 5, 1, 2), "forward", "winograd", False),
        (conv(26, 64, 192, 3, 1, 1), "backward_data", "winograd", True),
        (conv(26, 64, 192, 3, 1, 1), "backward_weight", "winograd", False),
        (conv(26, 64, 192, 3, 1, 1), "backward_weight", "fft-tiled", False),
        (conv(26, 64, 192, 3, 1, 1), "backward_weight", "fft", True),
        (conv(64, 3, 8, 33), "forward", "fft-tiled", False),
    ],
)
def test_where_cudnn_has_an_algorithm(layer, name, algorithm, supported):
    """NVIDIA's cuDNN documentation, cudnnConvolutionForward and its gradients: what each algorithm supports."""
    assert (terms(layer, name, algorithm=algorithm) != terms(layer, name)) is supported


def test_parameters_have_biases():
    """CSV of the release: AlexNet v2 has 50,303,912 parameters, biases included; layers without one get one."""
    assert parameter_bytes(find_network("paleo_alex_v2").layers) == 4 * 50_303_912
    assert parameter_bytes([conv(8, 4, 16, 3)._replace(weights=((16, 4, 3, 3),))]) == 4 * (16 * 36 + 16)


def test_forward_time_uses_the_convention():
    """One rule for both: FLOPs of the convention are the arithmetic of the mode, layer by layer and at every batch."""
    layers = find_network("paleo_inception_v3").layers
    counts = count(layers, convention="paleo").counts("forward", 3)
    timed = [sum(term.amount for term in terms(layer, batch_size=3) if term.compute) for layer in layers]
    assert counts.tolist() == timed
