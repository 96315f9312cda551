"""Families are read from files: what a file names wrongly, or what a new one lacks, is named."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from paleo_lite.architectures.blocks import block_records as records
from paleo_lite.architectures.blocks import rules
from paleo_lite.architectures.blocks.rules import BlockRules
from paleo_lite.architectures.config import Config
from paleo_lite.architectures.families.family import FAMILIES, Families, read_family_file
from paleo_lite.architectures.keys import Integer, Record, RoundedUp
from paleo_lite.errors import BadDescriptor
from paleo_lite.files import shipped_folder

DOCS = Path(__file__).parents[3] / "docs" / "transformers.md"
RECORDS = {
    "attention": records.Attention,
    "full_attention": records.Attention,
    "cross_attention": records.Attention,
    "shared_attention": records.Attention,
    "latent": records.LatentAttention,
    "compressed": records.CompressedAttention,
    "indexer": records.Indexer,
    "head_experts": records.HeadExperts,
    "feed_forward": records.FeedForward,
    "dense_feed_forward": records.FeedForward,
    "reusing_feed_forward": records.FeedForward,
    "shared_feed_forward": records.FeedForward,
    "plain_part": records.Projection,
    "channel_mix": records.ChannelMix,
    "experts": records.Experts,
    "side_experts": records.Experts,
    "per_layer_input": records.PerLayerInput,
    "side_norms": records.SideExperts,
    "block": records.Block,
}
"""Records of the tables of fields in ``[blocks]``."""


def rules_of(value):
    """Yield the rules of blocks inside a record."""
    if isinstance(value, BlockRules):
        yield value
    elif isinstance(value, Record):
        for own in value.fields.values():
            yield from rules_of(own)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_fields_of_a_file_are_those_of_its_records(model_type):
    family = FAMILIES[model_type]
    assert family.classes
    for own in rules_of(family.model):
        for name, record in RECORDS.items():
            unknown = set(getattr(own, name) or ()) - set(record.__struct_fields__)
            assert not unknown, f"models/families/{model_type}.toml: [blocks.{name}] names {unknown}, not in {record}"


def test_every_table_of_fields_has_a_record():
    hints = {name for name, hint in BlockRules.__annotations__.items() if hint.startswith("Fields")}
    assert hints - set(RECORDS) == {"shared"}, "name the record of the new table in RECORDS"  # `multiple` is no field


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_is_documented(model_type):
    table = DOCS.read_text().partition("## Supported model types")[2].partition("\n\n#")[0]
    assert re.search(rf"\b{re.escape(model_type)}\b", table), f"add {model_type} to the table of docs/transformers.md"


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes a family and reads it."""

    def read(text, name="mine"):
        (tmp_path / f"{name}.toml").write_text(text)
        return read_family_file(tmp_path / f"{name}.toml")

    return read


def test_reader_has_one_argument_or_several_or_named_ones(folder):
    attention = """
    name = "Mine"
    [blocks.attention]
    heads = {Integer = "heads"}
    kv_heads = {Integer = ["kv_heads", 2]}
    head_size = {HeadSize = {key = "size"}}
    """
    rules_of_mine = folder(attention).model.fields["blocks"]
    assert rules_of_mine.attention["heads"] == Integer("heads")
    assert rules_of_mine.attention["kv_heads"] == Integer("kv_heads", 2)
    assert rules_of_mine.attention["head_size"] == rules.HeadSize(key="size")


def test_null_is_none(folder):
    family = folder('name = "Mine"\nlongest = "null"\nunread = [["bias", ["null", false]]]')
    assert family.longest is None
    assert family.unread == (("bias", (None, False)),)


def test_like_takes_over_what_is_not_stated(folder):
    folder('name = "Base"\nlongest = 7\n[blocks.attention]\nbias = true\nheads = {Integer = "a"}', "base")
    family = folder('like = "base"\nname = "Mine"\n[blocks.attention]\nheads = {Integer = "b"}')
    assert (family.name, family.longest) == ("Mine", 7)
    assert family.model.fields["blocks"].attention == {"bias": True, "heads": Integer("b")}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = ", "Invalid value"),
        ("longest = 3", "name"),
        ('name = "Mine"\nlongst = 3', "longst"),
        ('name = "Mine"\n[blocks]\natention = {}', "atention"),
        ('name = "Mine"\n[blocks]\nattention = {heads = {Intger = "a"}}', "Intger is not a reader"),
        ('name = "Mine"\n[blocks]\nother = {Mamba = {taps = 4}}', "Mamba has no field taps, its fields are inner_size"),
        ('name = "Mine"\n[blocks]\nattention = {heads = {Integer = ["a", 1, 2]}}', "arguments"),
        ('name = "Mine"\nlike = "nobody"', "like names nobody, but there is no nobody.toml"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(folder, text, problem):
    with pytest.raises(BadDescriptor, match=rf"mine\.toml: .*{problem}"):
        folder(text)


def test_a_family_is_no_path(tmp_path):
    (tmp_path / "families").mkdir()
    (tmp_path / "other.toml").write_text('name = "Other"')
    assert Families(tmp_path / "families").get("../other") is None
    assert FAMILIES.decoder("bert") is None
    assert FAMILIES.decoder(None) is None


def test_all_files_are_families():
    files = sorted(path.stem for path in (shipped_folder("models") / "families").glob("*.toml"))
    assert list(FAMILIES) == files
    assert len(FAMILIES) == len(files)
    assert isinstance(FAMILIES["llama"], msgspec.Struct)


@pytest.mark.parametrize(
    ("hidden", "factor", "multiple", "published"),
    [
        (4096, None, None, 11008),  # Llama 2 7B: no factor, and a multiple of 256
        (5120, None, 256, 13824),  # 13B
        (8192, 1.3, 4096, 28672),  # 70B
        (3072, None, 256, 8192),  # as Llama 3.2 3B, a multiple already
    ],
)
def test_inner_sizes_are_rounded_up_as_llama_does(hidden, factor, multiple, published):
    """The width of feed-forward layers by ``dim``, ``ffn_dim_multiplier`` and ``multiple_of`` of their params.json.

    (meta-llama/llama, model.py: two thirds of four times the width, times the factor.)
    """
    fields = {"dim": hidden, "ffn_dim_multiplier": factor, "multiple_of": multiple}
    config = Config({name: value for name, value in fields.items() if value is not None}, "params.json")
    assert RoundedUp("dim", "ffn_dim_multiplier", 1.0, "multiple_of", 256, 8 / 3).read(config) == published
