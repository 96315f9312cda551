"""Where JSON may be cut: at every length of a nasty text, against Python's own json module."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from paleo_lite.profiles.json_stream import NestedArrays, array_start, last_comma_and_end, last_seam

ELEMENTS = rb"""{"a": [1, {"b": 2}], "c,": "] , {"} , {"d": "\"}, {\"", "e": "\\"},
  {"f": {}},"g, }" , [2, [3]] , null,{ }  ,	{"h": -1.5e3}"""
WHOLE = b"[" + ELEMENTS + b' ] , "behind": [ {}, {} ] }'


def is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_the_last_comma_between_elements_is_the_last_one_with_an_array_before_it() -> None:
    for length in range(len(WHOLE)):
        buffer = WHOLE[1 : length + 1]
        closing = [at for at, letter in enumerate(buffer) if letter == ord("]") and is_json(b"[" + buffer[: at + 1])]
        end = closing[0] if closing else None
        inside = buffer[:end]
        commas = [at for at, letter in enumerate(inside) if letter == ord(",") and is_json(b"[" + inside[:at] + b"]")]
        assert last_comma_and_end(buffer) == (commas[-1] if commas else None, end), buffer


def test_a_guess_is_the_last_comma_between_braces() -> None:
    """Within a string, too: the decoder then refuses the piece, and brackets are counted."""
    for length in range(len(ELEMENTS)):
        commas = [match.start(1) for match in re.finditer(rb"}\s*(,)(?=\s*{)", ELEMENTS[:length])]
        assert last_seam(ELEMENTS[:length]) == (commas[-1] if commas else None), ELEMENTS[:length]


@pytest.mark.parametrize(
    "before",
    [
        b"[",
        b' {"events": [',
        b'{"other": {"events": [1]}, "events" :\n[',
        b'{"a": "\\"events\\": [", "events": [',
        b'{"my events": [1, 2], "events": [',
        b'{"events": {"events": []}, "b": [[]], "events": [',
    ],
)
def test_the_array_begins_behind_its_bracket(before: bytes) -> None:
    document = before + b'"it"]' + b"}" * before.strip().startswith(b"{")
    found = json.loads(document)
    assert (found if isinstance(found, list) else found["events"]) == ["it"]
    assert array_start(document, b"events") == len(before)
    for length in range(len(before)):
        assert array_start(document[:length], b"events") is None


@pytest.mark.parametrize(
    "document", [b'{"a": [1]}', b'{"events": {"a": [1]}}', b'{"a": {"events": [1]}}', b'{}, "events": [']
)
def test_where_there_is_no_such_array_there_is_no_place(document: bytes) -> None:
    assert array_start(document, b"events") is None


def test_many_small_arrays_are_decoded_once_each(tmp_path):
    """Each array once decoded the rest of the buffer: a megabyte of arrays decoded 10 GB."""
    decoded = []

    def decode(text):
        decoded.append(len(text))
        return msgspec.json.decode(text)

    path = tmp_path / "many.json"
    path.write_text('{"all":[' + ",".join('{"k":[{"a":1},{"a":"]"}]},{"k":[]}' for _ in range(300)) + "]}")
    pieces = list(NestedArrays(path, ("k",), decode, re.compile(rb"\}\s*\Z")).arrays())
    assert [piece.decoded for _, piece in pieces] == [[{"a": 1}, {"a": "]"}], []] * 300
    text = path.read_bytes()
    assert all(text[piece.start : piece.start + len(piece.text)] == piece.text for _, piece in pieces)
    assert sum(decoded) < len(text)
