"""Descriptors: written and read back; errors are a `BadDescriptor` that names file and field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from paleo_lite.architectures import Network, read_descriptor, write_descriptor
from paleo_lite.counting import INPUT, Layer
from paleo_lite.counting.places import place_layers
from paleo_lite.errors import BadDescriptor
from paleo_lite.files import shipped_folder
from strategies import ACCIDENTS, damaged

NETWORK = Network(
    name="two",
    inputs=((1, 3),),
    layers=place_layers(
        [
            Layer("0", "linear", ((1, 3),), ((1, 4),), ((4, 3), (4,)), (INPUT,), 16, {}, "module:Linear"),
            Layer("1", "relu", ((1, 4),), ((1, 4),), (), (0,), 0, {"function": "relu"}, "module:ReLU"),
        ]
    ),
    parameters=16,
    source="by hand",
    notes=("a note",),
)


@pytest.fixture
def document(tmp_path):
    """Return the path of a descriptor and its contents."""
    path = tmp_path / "two.json"
    write_descriptor(NETWORK, path)
    return path, json.loads(path.read_text())


def test_round_trip(tmp_path):
    write_descriptor(NETWORK, tmp_path / "new" / "two.json")
    assert read_descriptor(tmp_path / "new" / "two.json") == NETWORK
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["two.json"]


def put(*keys_and_value):
    *keys, last, value = keys_and_value

    def change(document):
        for key in keys:
            document = document[key]
        document[last] = value

    return change


WRONG = {
    "newer format": (put("format", 99), r"\$\.format is 99, this version of paleo-lite reads 1"),
    "misspelt": (put("paramters", 3), "unknown field `paramters`"),
    "misspelt column": (put("layers", "kinds", []), r"unknown field `kinds` - at `\$\.layers`"),
    "wrong type": (put("parameters", "many"), r"Expected `int`, got `str` - at `\$\.parameters`"),
    "negative parameters": (put("parameters", -1), r"\$\.parameters"),
    "negative size": (put("shapes", 0, 0, -3), r"\$\.shapes"),
    "unequal columns": (put("layers", "kind", ["linear"]), r"\$\.layers\.kind has 1 entries, \$\.layers\.name has 2"),
    "shape pointer": (put("layers", "inputs", 0, [77]), r"layer '0' points outside \$\.shapes"),
    "negative shape pointer": (put("layers", "weights", 0, [-1]), r"points outside \$\.shapes"),
    "attribute pointer": (put("layers", "attributes", 1, 9), r"layer '1' points outside \$\.attributes"),
    "later parent": (put("layers", "parents", 0, [1]), r"\$\.layers\.parents must name one earlier layer per input"),
    "unknown parent": (put("layers", "parents", 0, [-3]), r"\$\.layers\.parents"),
    "missing parent": (put("layers", "parents", 0, []), r"\$\.layers\.parents"),
    "no inputs": (put("inputs", []), r"\$\.inputs"),
    "huge number": (put("shapes", 0, 0, 10**30), r"\$\.shapes|Integer|integer|number"),
    "name twice": (put("layers", "name", ["0", "0"]), r"\$\.layers\.name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_fields_are_named(name, document):
    path, content = document
    change, message = WRONG[name]
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(BadDescriptor, match=message) as caught:
        read_descriptor(path)
    assert str(path) in str(caught.value)


def test_missing_fields_are_named(document):
    path, content = document
    del content["layers"]["parents"]
    path.write_text(json.dumps(content))
    with pytest.raises(BadDescriptor, match=r"missing required field `parents` - at `\$\.layers`"):
        read_descriptor(path)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b"[]", b"\x00\xff\xfe", b"\x80PNG", b'{"format":1', b"1e999", b"[" * 9999]
)
def test_invalid_files(data, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(BadDescriptor, match=r"x\.json"):
        read_descriptor(path)


def test_unreadable_files(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(BadDescriptor, match="cannot be read"):
            read_descriptor(path)
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(BadDescriptor, match="larger than"):
        read_descriptor(large)


ALEXNET = (shipped_folder("models") / "alexnet.json").read_bytes()


@given(ACCIDENTS)
def test_damage_is_a_bad_descriptor_or_another_network(tmp_path, happened):
    path = tmp_path / "damaged.json"
    path.write_bytes(damaged(ALEXNET, happened))
    try:
        assert isinstance(read_descriptor(path), Network)
    except BadDescriptor as error:
        assert "damaged.json" in str(error)
