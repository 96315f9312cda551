"""Caffe network files: networks as their authors published them, layers of every type, and malformed files.

Tests: architectures/prototxt_text.py.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given

from paleo_lite.architectures import find_network
from paleo_lite.architectures.prototxt import read_prototxt
from paleo_lite.architectures.prototxt_text import parse_text
from paleo_lite.counting import count
from paleo_lite.errors import BadDescriptor
from strategies import ACCIDENTS, damaged

INPUT = 'layer { name: "data" type: "Input" top: "data" input_param { shape: { dim: 10 dim: 3 dim: %d dim: %d } } }\n'


def read(text, image_size=None):
    return read_prototxt(text.encode(), "net.prototxt", image_size)


def layer(name, kind, bottoms, tops=None, **messages):
    """Return the text of one layer."""
    lines = [f'  bottom: "{bottom}"' for bottom in bottoms.split()]
    lines += [f'  top: "{top}"' for top in (tops or name).split()]
    lines += [f"  {field} {message}" for field, message in messages.items()]
    return f'layer {{\n  name: "{name}"\n  type: "{kind}"\n' + "\n".join(lines) + "\n}\n"


def convolution(name, bottom, outputs, kernel, stride=1, pad=0, extra=""):
    param = f"{{ num_output: {outputs} kernel_size: {kernel} stride: {stride} pad: {pad} {extra} }}"
    return layer(name, "Convolution", bottom, convolution_param=param)


def fully(outputs):
    return layer("f", "InnerProduct", "data", inner_product_param=f"{{ num_output: {outputs} }}")


def in_place(kind, name, blob, **params):
    return layer(name, kind, blob, blob, **params)


def alexnet(groups):
    """BVLC's bvlc_alexnet, deploy.prototxt; published without groups by some, with two by BVLC."""
    group = f"group: {groups}"
    net = 'name: "AlexNet"  # the net\n' + INPUT % (227, 227)
    bottom = "data"
    sizes = (
        (96, 11, 4, 0, ""),
        (256, 5, 1, 2, group),
        (384, 3, 1, 1, ""),
        (384, 3, 1, 1, group),
        (256, 3, 1, 1, group),
    )
    for number, (outputs, kernel, stride, pad, extra) in enumerate(sizes, 1):
        net += convolution(f"conv{number}", bottom, outputs, kernel, stride, pad, extra)
        net += in_place("ReLU", f"relu{number}", f"conv{number}")
        bottom = f"conv{number}"
        if number < 3:
            net += layer(f"norm{number}", "LRN", bottom, lrn_param="{ local_size: 5 alpha: 0.0001 beta: 0.75 }")
            bottom = f"norm{number}"
        if number in (1, 2, 5):
            net += layer(f"pool{number}", "Pooling", bottom, pooling_param="{ pool: MAX kernel_size: 3 stride: 2 }")
            bottom = f"pool{number}"
    for number, outputs in ((6, 4096), (7, 4096), (8, 1000)):
        net += layer(f"fc{number}", "InnerProduct", bottom, inner_product_param=f"{{ num_output: {outputs} }}")
        bottom = f"fc{number}"
        if number < 8:
            net += in_place("ReLU", f"relu{number}", bottom)
            net += in_place("Dropout", f"drop{number}", bottom, dropout_param="{ dropout_ratio: 0.5 }")
    return net + layer("prob", "Softmax", "fc8")


def resnet50():
    """He et al.'s ResNet-50-deploy.prototxt: stride on the first 1x1, batch norm and Scale in place."""

    def conv(name, bottom, outputs, kernel, stride, pad):
        suffix = name.removeprefix("res")
        return (
            convolution(name, bottom, outputs, kernel, stride, pad, "bias_term: false")
            + in_place("BatchNorm", f"bn{suffix}", name, batch_norm_param="{ use_global_stats: true }")
            + in_place("Scale", f"scale{suffix}", name, scale_param="{ bias_term: true }")
        )

    net = 'name: "ResNet-50"\ninput: "data"\ninput_dim: 1\ninput_dim: 3\ninput_dim: 224\ninput_dim: 224\n'
    net += conv("conv1", "data", 64, 7, 2, 3) + in_place("ReLU", "conv1_relu", "conv1")
    net += layer("pool1", "Pooling", "conv1", pooling_param="{ kernel_size: 3 stride: 2 pool: MAX }")
    bottom = "pool1"
    for stage, blocks in enumerate((3, 4, 6, 3), 2):
        width = 64 * 2 ** (stage - 2)
        for block in "abcdef"[:blocks]:
            name, stride = f"res{stage}{block}", 2 if stage > 2 and block == "a" else 1
            shortcut = bottom
            if block == "a":
                shortcut = f"{name}_branch1"
                net += conv(shortcut, bottom, 4 * width, 1, stride, 0)
            for part, (outputs, kernel, step, pad) in zip(
                "abc", ((width, 1, stride, 0), (width, 3, 1, 1), (4 * width, 1, 1, 0))
            ):
                branch = f"{name}_branch2{part}"
                net += conv(branch, bottom if part == "a" else last, outputs, kernel, step, pad)  # noqa: F821
                net += in_place("ReLU", f"{branch}_relu", branch) if part != "c" else ""
                last = branch
            net += layer(name, "Eltwise", f"{shortcut} {last}") + in_place("ReLU", f"{name}_relu", name)
            bottom = name
    net += layer("pool5", "Pooling", bottom, pooling_param="{ kernel_size: 7 stride: 1 pool: AVE }")
    net += layer("fc1000", "InnerProduct", "pool5", inner_product_param="{ num_output: 1000 }")
    return net + layer("prob", "Softmax", "fc1000")


def vgg16():
    """Simonyan and Zisserman's VGG_ILSVRC_16_layers_deploy.prototxt, in Caffe's old format."""
    net = 'name: "VGG_ILSVRC_16_layers"\ninput: "data"\ninput_shape { dim: 10 dim: 3 dim: 224 dim: 224 }\n'
    bottom = "data"
    for stage, (outputs, convolutions) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for number in range(1, convolutions + 1):
            name = f"conv{stage}_{number}"
            net += (
                f'layers {{ bottom: "{bottom}" top: "{name}" name: "{name}" type: CONVOLUTION\n'
                f"  convolution_param {{ num_output: {outputs} pad: 1 kernel_size: 3 }} }}\n"
                f'layers {{ bottom: "{name}" top: "{name}" name: "relu{stage}_{number}" type: RELU }}\n'
            )
            bottom = name
        net += (
            f'layers {{ bottom: "{bottom}" top: "pool{stage}" name: "pool{stage}" type: POOLING\n'
            "  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }\n"
        )
        bottom = f"pool{stage}"
    for number, outputs in ((6, 4096), (7, 4096), (8, 1000)):
        net += (
            f'layers {{ bottom: "{bottom}" top: "fc{number}" name: "fc{number}" type: INNER_PRODUCT\n'
            f"  inner_product_param {{ num_output: {outputs} }} }}\n"
        )
        bottom = f"fc{number}"
        if number < 8:
            net += f'layers {{ bottom: "{bottom}" top: "{bottom}" name: "relu{number}" type: RELU }}\n'
            net += (
                f'layers {{ bottom: "{bottom}" top: "{bottom}" name: "drop{number}" type: DROPOUT\n'
                "  dropout_param { dropout_ratio: 0.5 } }\n"
            )
    return net + 'layers { bottom: "fc8" top: "prob" name: "prob" type: SOFTMAX }\n'


def test_alexnet_has_its_published_parameters():
    """Krizhevsky et al. 2012, section 3.5 and BVLC's readme: "60 million parameters"; 60,965,224 and 724,406,816
    multiply-accumulates by hand from the layers' sizes (ethereon.github.io/netscope, AlexNet)."""
    net = read(alexnet(groups=2))
    assert net.name == "AlexNet"
    assert net.parameters == 60_965_224
    assert int(count(net.layers).column("macs", "inference").sum()) == 724_406_816
    assert net.layer("pool1").outputs == ((1, 96, 27, 27),)
    assert net.layer("fc6").weights == ((4096, 9216), (4096,))
    # Without groups conv2, conv4 and conv5 have twice the weights: 307,200 + 663,552 + 442,368 more.
    assert read(alexnet(groups=1)).parameters == 60_965_224 + 1_413_120


@pytest.mark.parametrize("text, shipped", [(resnet50(), "resnet50-caffe"), (vgg16(), "vgg16")])
def test_networks_equal_traces_of_torch_modules(text, shipped):
    """Compare kinds and totals with the descriptors traced from torch modules."""
    network, traced = read(text), find_network(shipped)
    assert network.parameters == traced.parameters
    # torchvision's VGG ends without softmax, and has a pooling that does nothing.
    kinds = [
        Counter(one.kind for one in net.layers) - Counter(adaptive_avg_pool=1, softmax=1) for net in (network, traced)
    ]
    assert kinds[0] == kinds[1]
    columns = ("macs",) if shipped == "vgg16" else ("flops", "macs", "bytes", "kernels")
    for column in columns:
        ours, theirs = (int(count(net.layers).column(column, "training", 32).sum()) for net in (network, traced))
        assert ours == theirs


@pytest.mark.parametrize(
    "size, kernel, stride, pad, mode, expected",
    [
        (55, 3, 2, 0, "", 27),
        (112, 3, 2, 0, "", 56),  # (112 - 3) / 2 = 54.5, up to 55, plus 1
        (112, 3, 2, 0, "round_mode: FLOOR", 55),
        (112, 3, 2, 0, "ceil_mode: false", 55),
        (7, 2, 2, 1, "", 4),  # ceil(7 / 2) + 1 = 5, whose last window would start in the padding at 8
    ],
)
def test_pooling_rounds_as_caffe_does(size, kernel, stride, pad, mode, expected):
    """pooling_layer.cpp: up, and no window that starts outside of image and padding before it."""
    param = f"{{ pool: MAX kernel_size: {kernel} stride: {stride} pad: {pad} {mode} }}"
    net = read(INPUT % (size, size) + layer("pool", "Pooling", "data", pooling_param=param))
    assert net.layers[0].outputs == ((1, 3, expected, expected),)


def test_layers_of_every_type():
    """Sizes computed by hand from the definitions in caffe.proto."""
    net = read(
        INPUT % (32, 32)
        + layer("conv", "Convolution", "data", convolution_param="< num_output: 8, kernel_h: 3; kernel_w: 5 pad_h: 1 "
                "dilation: 2 bias_term: false >")
        + layer("slice", "Slice", "conv", "left right", slice_param="{ axis: 1 slice_point: [6] }")
        + layer("split", "Split", "left", "left1 left2")
        + layer("concat", "Concat", "left1 right left2")
        + in_place("PReLU", "prelu", "concat")
        + in_place("ReLU", "leaky", "concat", relu_param="{ negative_slope: 0.1 }")
        + layer("up", "Deconvolution", "concat", convolution_param="{ num_output: 4 kernel_size: 4 stride: 2 pad: 1 }")
        + layer("sum", "Eltwise", "up up up", eltwise_param="{ operation: SUM }")
        + layer("max", "Eltwise", "up sum", eltwise_param="{ operation: MAX }")
        + layer("global", "Pooling", "max", pooling_param="{ pool: AVE global_pooling: true }")
        + layer("flat", "Flatten", "global")
        + layer("shaped", "Reshape", "max", reshape_param="{ shape { dim: 0 dim: 2 dim: -1 } }")
        + layer("lrn", "LRN", "max", lrn_param="{ local_size: 3 norm_region: WITHIN_CHANNEL }")
        + layer("scale", "Scale", "lrn")
    )  # fmt: skip
    outputs = {one.name: one.outputs[0][1:] for one in net.layers}
    assert outputs == {
        "conv": (8, 30, 24),  # 32 + 2 - 5 + 1 rows, 32 - 9 + 1 columns
        "slice.left": (6, 30, 24), "slice.right": (2, 30, 24), "concat": (14, 30, 24),
        "prelu": (14, 30, 24), "leaky": (14, 30, 24), "up": (4, 60, 48),  # 2 * (30 - 1) + 4 - 2
        "sum": (4, 60, 48), "sum#2": (4, 60, 48), "max": (4, 60, 48), "global": (4, 1, 1), "flat": (4,),
        "shaped": (2, 5760), "lrn": (4, 60, 48), "scale": (4, 60, 48),
    }  # fmt: skip
    assert net.layer("leaky").kind == "leaky_relu"
    assert net.layer("lrn").attributes == {"size": 9}
    assert [net.layer(name).parameters for name in ("conv", "prelu", "up", "scale")] == [
        8 * 3 * 15,
        14,
        14 * 4 * 16 + 4,
        4,
    ]
    assert not count(net.layers).unknown


def test_training_files():
    data = 'layer { name: "d" type: "Data" top: "data" top: "label" include { phase: %s } '
    data += "transform_param { crop_size: %d } }\n"
    text = (
        data % ("TRAIN", 227)
        + data % ("TEST", 200)
        + layer("fc", "InnerProduct", "data", inner_product_param="{ num_output: 10 }")
        + layer("accuracy", "Accuracy", "fc label", include="{ phase: TEST }")
        + layer("loss", "SoftmaxWithLoss", "fc label")
    )
    net = read(text)
    assert net.inputs == ((1, 3, 227, 227),)
    assert [one.kind for one in net.layers] == ["view", "linear", "softmax"]
    assert "assumed to be 3" in net.notes[0]
    assert read(text, 100).inputs == ((1, 3, 100, 100),)
    assert read(INPUT % (32, 32) + layer("p", "ReLU", "data"), 100).layers[0].outputs == ((1, 3, 100, 100),)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has no input"),
        ("layer { name: \"a\"", "line 1: '}' is missing"),
        ("a: 1\nb 2", "line 2: expected ':' or a message after 'b'"),
        ("a: 1\n@", "line 2: unexpected '@'"),
        ('name: "never closed\n', "line 1: unexpected"),
        ("a: ", "the file ends where a value is expected"),
        ("a {" * 40 + "}" * 40, "nested more than 32 deep"),
        ("name: []", "has no input"),
        (INPUT % (8, 8) + "layer { type: 'ReLU' bottom: { } }", "its input '{}'"),
        (INPUT % (8, 8) + layer("r", "Reshape", "data", reshape_param="{ shape { dim: true } }"), "must be integers"),
        ("layer: 3", "a layer must be a message in braces (got 3)"),
        ('input: "data"', "1 inputs with 0 shapes"),
        ('input: "data" input_dim: 1 input_dim: 0 input_dim: 2 input_dim: 2', "an input shape must be integers"),
        (INPUT % (32, 32), "has no layers"),
        (INPUT % (32, 32) + layer("m", "MadeUp", "data"), "type 'MadeUp' is not supported; supported are "),
        (INPUT % (32, 32) + layer("r", "ReLU", "nothing"), "no earlier layer produces its input 'nothing'"),
        (INPUT % (32, 32) + convolution("c", "data", 8, 40), "a 40x40 window does not fit into 32x32"),
        (INPUT % (32, 32) + convolution("c", "data", 8, 3, stride=0), "stride must be an integer >= 1 (got 0)"),
        (INPUT % (32, 32) + convolution("c", "data", 8, 3, extra="group: 2"), "not divisible by 2 groups"),
        (INPUT % (32, 32) + convolution("c", "data", "many", 3), "num_output must be an integer >= 1 (got 'many')"),
        (INPUT % (32, 32) + layer("c", "Convolution", "data"), "num_output is missing"),
        (INPUT % (8, 8) + layer("p", "Pooling", "data", pooling_param="{ pool: STOCHASTIC }"), "is not supported"),
        (INPUT % (8, 8) + layer("p", "Pooling", "data", pooling_param="{ kernel_size: 50 }"), "does not fit into 8x8"),
        (INPUT % (8, 8) + fully("99999999999"), "integers >= 1 (got 99999999999)"),
        (INPUT % (2**20, 2**20) + fully("9"), "too large"),
        ('layer { name: "d" type: "Data" top: "data" }', "does not specify the size of its images"),
        (INPUT % (8, 8) + layer("s", "Slice", "data", slice_param="{ slice_point: 9 }"), "be split into 1 parts"),
        (INPUT % (8, 8) + layer("r", "Reshape", "data", reshape_param="{ shape { dim: 0 dim: 7 } }"), "be reshaped"),
        (INPUT % (8, 8) + convolution("c", "data", 4, 3) + layer("e", "Eltwise", "data c"), "inputs of one shape"),
        (INPUT % (8, 8) + convolution("c", "data", 4, 3) + layer("e", "Concat", "data c"), "concatenated along axis 1"),
    ],
)  # fmt: skip
def test_malformed_files(text, message):
    with pytest.raises(BadDescriptor, match=r"net\.prototxt") as caught:
        read(text)
    assert message in str(caught.value)


def test_text_format():
    """Comments, lists, adjacent strings, signs, bases, brackets and separators."""
    parsed = parse_text(
        b"a: -1 a: 0x1F, b: 1.5e3; b: .5f # end\nc: 'it''s \\\"q\\\"' d: TRUE e: true f < g { h: [1, 2, 3] } > f: { }",
        "t",
    )
    assert parsed == {
        "a": [-1, 31], "b": [1500.0, 0.5], "c": ['its "q"'], "d": ["TRUE"], "e": [True],
        "f": [{"g": [{"h": [1, 2, 3]}]}, {}],
    }  # fmt: skip
    with pytest.raises(BadDescriptor, match="is not text"):
        parse_text(b"\xff\xfe", "t")


@given(ACCIDENTS)
def test_damaged_files_never_crash(happened):
    try:
        read_prototxt(damaged(alexnet(2).encode(), happened), "net.prototxt", None)
    except BadDescriptor as error:
        assert "net.prototxt" in str(error)


def test_command_line(tmp_path):
    from click.testing import CliRunner

    from paleo_lite.cli import main

    path, mine = tmp_path / "alexnet.prototxt", tmp_path / "mine.json"
    path.write_text(alexnet(2))
    result = CliRunner().invoke(main, ["networks", "export", str(path), "-o", str(mine)])
    assert result.output.strip().endswith("24 layers, 60,965,224 parameters")
    assert find_network(str(mine)) == find_network(str(path))
    assert CliRunner().invoke(main, ["predict", str(path), "--gpu", "k80"]).exit_code == 0
