"""Published JSON Schemas match the types, and results and shipped files are valid.

What commands print is held against them in test_same_answers.py, predictions at random in test_metamorphic.py.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

import msgspec
import pytest

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("typing_extensions")

ROOT = Path(__file__).parent.parent


@cache
def published():
    spec = importlib.util.spec_from_file_location("schemas", ROOT / "docs/schemas.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def strict(schema):
    """Return the schema without additional fields, which the published schema allows for later versions."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema and schema.get("title") != "Config" else {}
    return closed | {key: strict(value) for key, value in schema.items()}


@cache
def validator(name: str, key: str):
    whole = strict(json.loads((ROOT / f"docs/schemas/{name}.json").read_text(encoding="utf-8")))
    return jsonschema.Draft202012Validator({**whole[name][key], "$defs": whole["$defs"]})


def check(name: str, key: str, data) -> None:
    """Raise if a document is invalid or has additional fields."""
    error = jsonschema.exceptions.best_match(validator(name, key).iter_errors(data))
    assert error is None, f"{key}: {error.json_path}: {error.message[:300]}"


def test_what_is_published_is_of_the_types() -> None:
    for path, text in published().written().items():
        assert path.read_text(encoding="utf-8") == text, "python docs/schemas.py writes it anew"


def test_every_field_of_an_answer_is_documented() -> None:
    """By name, in a page of the documentation."""
    pages = " ".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    schema = json.loads((ROOT / "docs/schemas/answers.json").read_text(encoding="utf-8"))
    fields = {name for each in schema["$defs"].values() for name in each.get("properties", {})}
    assert sorted(name for name in fields if name not in pages) == []


def read(path: Path):
    decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
    return json.loads(json.dumps(decode(path.read_bytes()), default=str))


LARGEST = 12_000
"""Bytes of a file that is held against its schema in an ordinary run, which takes a second for each megabyte."""


@pytest.mark.spread(3)
@pytest.mark.parametrize("where", published().FILES)
@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_shipped_files_are_valid(where: str, large: bool) -> None:
    files = list(ROOT.glob(where))
    assert files
    for path in files:
        if large == (path.stat().st_size > LARGEST):
            check("files", where, read(path))


def test_what_is_not_as_it_says_is_found() -> None:
    device = read(ROOT / "hardware/t4.toml")
    for wrong in ({"year": "soon"}, {"colour": "black"}, {"memory": None}):
        with pytest.raises(AssertionError, match="hardware"):
            check("files", "hardware/*.toml", {**device, **wrong})
