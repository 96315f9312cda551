"""PALEO's network files, and its networks as they are shipped, against the lists read from its release."""

from __future__ import annotations

import csv
import json

import pytest

from measured import REFERENCES
from paleo_lite.architectures import find_network
from paleo_lite.counting import count
from paleo_lite.errors import BadDescriptor
from paleo_lite.paleo.network_file import read_paleo_json

NETWORKS = REFERENCES / "paleo_networks"


def conv(parents, filter, padding="SAME", stride=1, **more):
    return {"type": "Convolution", "parents": parents, "filter": filter, "padding": padding,
            "strides": [1, stride, stride, 1], **more}  # fmt: skip


DATA_LAYER = {"type": "Input", "parents": [], "tensor": [64, 32, 32, 3]}


def read(layers, image_size=None):
    return read_paleo_json(json.dumps({"name": "net", "layers": layers}).encode(), "net.json", image_size)


def rebuilt(name):
    """PALEO's JSON again from the list of its layers."""
    rows = list(csv.DictReader((NETWORKS / f"{name}.csv").open()))
    blocks = {row["layer"]: row for row in rows if row["type"] == "BlockEnd"}
    layers = {}
    for row in rows:
        if row["type"] == "BlockEnd":
            continue
        fields = {"type": row["type"], **(json.loads(row["extra"]) if row["extra"] else {})}
        if row["filter"]:
            fields["filter" if row["type"] == "Convolution" else "ksize"] = [int(n) for n in row["filter"].split("x")]
            fields |= {"strides": [int(n) for n in row["strides"].split("x")], "padding": row["padding"]}
        if row["normalizer"]:
            fields["normalizer_fn"] = row["normalizer"]
        if row["layer"].endswith(("fc8", "Conv2d_1c_1x1")):  # the only ones whose activation_fn is null
            fields["activation_fn"] = None
        fields["parents"] = [] if row["parents"].startswith("(block input)") else row["parents"].split()
        block = next((known for known in blocks if row["layer"].startswith(f"{known}/")), None)
        if block is None:
            layers[row["layer"]] = fields
        else:
            end = {"parents": blocks[block]["parents"].split(), "endpoint": blocks[block]["endpoint"], "layers": {}}
            inside = layers.setdefault(block, {"type": "Block", **end})["layers"]
            inside[row["layer"].removeprefix(f"{block}/")] = fields
    return layers


@pytest.mark.needs_data
@pytest.mark.parametrize("name", ["alex_v2", "inception_v3", "nin", "overfeat", "vgg16"])
def test_shipped_networks_match_the_release(name):
    shipped, fresh = find_network(f"paleo_{name}"), read(rebuilt(name))
    assert shipped.layers == fresh.layers
    assert shipped.inputs == fresh.inputs
    assert f"nets/{name}.json" in shipped.source


def test_the_hybrid_network_is_narrower_and_split():
    """nets/alex_v2_2gpu.json: conv4 has 256 maps where alex_v2 has 384, and fc6 and fc7 are split."""
    whole, hybrid = find_network("paleo_alex_v2"), find_network("paleo_alex_v2_hybrid")
    narrower = 9 * 384 * 128 + 128 + 9 * 128 * 256  # conv4's missing maps, and conv5's weights for them
    assert whole.parameters - hybrid.parameters == narrower
    split = [layer.name for layer in hybrid.layers if layer.attributes.get("model_parallel") and layer.weights]
    assert split == ["parallel_fc67/fc6", "parallel_fc67/fc7"]


def test_blocks_splits_and_order():
    """nets/README.md: block name spaces and endpoints, parents by @self and @all, layers in any order."""
    net = read(
        {
            "softmax": {"type": "Softmax", "parents": ["fc8"], "num_classes": 10},
            "fc8": {"type": "InnerProduct", "parents": ["join"], "num_outputs": 10},
            "join": {"type": "Concatenate", "parents": ["split/drop@all"], "dim": 3},
            "split": {"type": "ModelParallel", "splits": 2, "parents": ["block"], "layers": {
                "fc": conv([], [16, 16, 12, 6], "VALID"),
                "drop": {"type": "Dropout", "parents": ["fc@self"], "dropout_keep_prob": 0.5}}},
            "block": {"type": "Block", "parents": ["pool"], "endpoint": "concat", "layers": {
                "a": conv([], [1, 1, -1, 4], normalizer_fn="batch_norm", activation_fn=None),
                "b": conv([], [3, 3, 8, 8], activation_fn="sigmoid"),
                "concat": {"type": "Concatenate", "parents": ["a", "b"], "dim": 3}}},
            "pool": {"type": "AvgPool", "parents": ["conv"], "ksize": [1, 3, 3, 1], "strides": [1, 2, 2, 1],
                     "padding": "SAME"},
            "conv": conv(["data"], [5, 5, 3, 8]),
            "data": DATA_LAYER,
        }
    )  # fmt: skip
    assert [(layer.name, layer.kind, layer.outputs[0][1:], layer.parents) for layer in net.layers] == [
        ("conv", "conv2d", (8, 32, 32), (-1,)),
        ("conv.relu", "relu", (8, 32, 32), (0,)),  # PALEO's default activation
        ("pool", "avg_pool", (8, 16, 16), (1,)),  # ceil(32 / 2)
        ("block/a", "conv2d", (4, 16, 16), (2,)),
        ("block/a.batch_norm", "batch_norm", (4, 16, 16), (3,)),
        ("block/b", "conv2d", (8, 16, 16), (2,)),
        ("block/b.sigmoid", "sigmoid", (8, 16, 16), (5,)),
        ("block/concat", "concat", (12, 16, 16), (4, 6)),
        ("split/fc", "conv2d", (6, 1, 1), (7,)),
        ("split/fc.relu", "relu", (6, 1, 1), (8,)),
        ("split/drop", "dropout", (6, 1, 1), (9,)),
        ("fc8.flatten", "view", (6,), (10,)),
        ("fc8", "linear", (10,), (11,)),
        ("softmax", "softmax", (10,), (12,)),
    ]
    assert not count(net.layers).unknown
    assert net.parameters == 5 * 5 * 3 * 8 + 8 + 8 * 4 + 4 + 9 * 8 * 8 + 8 + 16 * 16 * 12 * 6 + 6 + 60 + 10


@pytest.mark.parametrize(
    "size, kernel, stride, out, before", [(224, 3, 2, 112, 0), (224, 7, 2, 112, 2), (32, 5, 1, 32, 2)]
)
def test_same_padding_is_tensorflows(size, kernel, stride, out, before):
    """tf.nn: out = ceil(in / stride), total = (out - 1) stride + kernel - in, the smaller half first."""
    layer = read({"data": DATA_LAYER, "c": conv(["data"], [kernel, kernel, 3, 2], stride=stride)}, size).layers[0]
    assert layer.outputs[0][2:] == (out, out)
    assert layer.attributes["padding"] == [before, before]


@pytest.mark.parametrize(
    "layers, message",
    [
        ({"a": {"type": "Input", "parents": []}}, "layer 'a': tensor must be"),
        ({"data": DATA_LAYER}, "has no layers"),
        ({"c": {"type": "Dropout", "parents": []}}, "layer 'c': has no parents"),
        ({"data": DATA_LAYER, "c": conv(["nowhere"], [3, 3, 3, 3])}, "a parent 'nowhere', which is not in the file"),
        ({"a": conv(["b"], [1, 1, 3, 3]), "b": conv(["a"], [1, 1, 3, 3])}, "depend on each other in a circle: a, b"),
        ({"data": DATA_LAYER, "c": conv(["data"], [3, 3, 4, 8])}, "its filter has 4 input channels, but its parent"),
        ({"data": DATA_LAYER, "c": conv(["data"], [3, 3, 3])}, "its fields do not fit type Convolution"),
        ({"data": DATA_LAYER, "c": conv(["data"], [3, 3, 3, 8], "FULL")}, "padding must be VALID, SAME or two"),
        ({"data": DATA_LAYER, "c": conv(["data"], [3, 3, 3, 8], stride=-1)}, "sizes must be integers >= 1 (got -1)"),
        ({"data": DATA_LAYER, "c": conv(["data"], [3, 3, 3, 8], activation_fn="magic")}, "activation must be one of"),
        ({"data": DATA_LAYER, "c": conv(["data"], [64, 64, 3, 8], "VALID")}, "a 64x64 window does not fit into 32x32"),
        ({"data": DATA_LAYER, "c": {"parents": ["data"]}}, "layer 'c': has no type"),
        ({"data": DATA_LAYER, "c": {"type": "Magic", "parents": ["data"]}}, "type 'Magic' is not supported"),
        ({"data": DATA_LAYER, "c": {"type": "Dropout", "parents": "data"}}, "parents must be a list of names"),
        ({"data": DATA_LAYER, "b": {"type": "Block", "parents": ["data"]}}, "layer 'b': is a block without layers"),
        ({"data": DATA_LAYER, "s": {"type": "Softmax", "parents": ["data"], "num_classes": 9}}, "9 classes from 3"),
    ],
)  # fmt: skip
def test_bad_files_get_one_sentence(layers, message):
    with pytest.raises(BadDescriptor, match=r"net\.json") as caught:
        read(layers)
    assert message in str(caught.value)


def test_file_types_are_recognised(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"name": "net", "layers": {"data": DATA_LAYER, "c": conv(["data"], [3, 3, 3, 8])}}))
    assert find_network(str(path)).layer("c").outputs == ((1, 8, 32, 32),)
    assert find_network(str(path), 64).layer("c").outputs == ((1, 8, 64, 64),)
    for text in (b"", b"[]", b'{"layers": {}}', b'{"format": 1, "layers": {"a": {}}}', b"\xff"):
        assert read_paleo_json(text, "net.json") is None
    path.write_text('{"format": 1}')
    with pytest.raises(BadDescriptor, match="missing required field"):
        find_network(str(path))
    with pytest.raises(BadDescriptor, match="a fixed image size, here 224"):
        find_network("paleo_nin", 96)
