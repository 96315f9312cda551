"""How a config describes the blocks of a transformer: standard fields, and what a model type changes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from ..config import Config
from ..keys import (
    NOTHING,
    Activation,
    Fields,
    Flag,
    Fraction,
    HeadSize,
    Integer,
    KeyReader,
    KeyValueHeads,
    Record,
    RotarySize,
    read_fields,
)  # fmt: skip
from ..layer_rules import All, LayerSelection
from .block_records import (
    Attention,
    Block,
    ChannelMix,
    CompressedAttention,
    Experts,
    FeedForward,
    HeadExperts,
    Indexer,
    LatentAttention,
    Mixer,
    PerLayerInput,
    SharedTransformer,
    SideExperts,
)
from .mixer_records import Projection

Kind = TypeVar("Kind", bound=msgspec.Struct)

STANDARD: dict[type, Fields] = {
    Attention: {
        "heads": Integer("num_attention_heads"), "kv_heads": KeyValueHeads(), "head_size": HeadSize(),
        "rotary_size": RotarySize(), "dropout": Fraction("attention_dropout"),
    },
    FeedForward: {"inner_size": Integer("intermediate_size"), "activation": Activation()},
    Experts: {
        "count": Integer("num_experts"), "active": Integer("num_experts_per_tok"),
        "inner_size": Integer("moe_intermediate_size"), "activation": Activation(),
        "is_normalised": Flag("norm_topk_prob"),
    },
    LatentAttention: {
        "heads": Integer("num_attention_heads"), "query_rank": Integer("q_lora_rank", None),
        "kv_rank": Integer("kv_lora_rank"), "plain_size": Integer("qk_nope_head_dim"),
        "rotary_size": Integer("qk_rope_head_dim"), "value_size": Integer("v_head_dim"), "bias": Flag("attention_bias"),
        "dropout": Fraction("attention_dropout"),
    },
}  # fmt: skip
"""Fields that most model types have in common: LLaMA's, and DeepSeek's of latent attention."""


class BlockRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the keys of a config say about the blocks of a model type.

    Fields of a record are constants, or readers of `keys`, where they differ from `STANDARD`. A record that is None
    is not part of the blocks. `LayerSelection` select the blocks that have something.
    """

    layer_count: str | KeyReader = "num_hidden_layers"  # the key of the number of blocks, or a reader
    # For each block, the keys in which it differs from the config; None: the config holds for all
    own_keys: KeyReader | None = None
    block: Fields = NOTHING
    # Mixers
    attention: Fields = NOTHING
    full_attention: Fields = NOTHING  # different fields of the attention without a window
    cross_attention: Fields | None = None  # different fields of the attention to an encoder
    head_experts: Fields | None = None
    latent: Fields | None = None
    indexer: Fields | None = None
    indexes: LayerSelection = All()  # the blocks with an indexer of their own
    compressed: Fields | None = None
    compressions: tuple[tuple[LayerSelection, Record], ...] = ()  # the blocks with a `Compression`, and its record
    other: Record | None = None  # a mixer other than attention
    attends: LayerSelection = All()  # the blocks with attention, where there is another mixer
    has_both_mixers: bool = False  # whether every block has attention and the other mixer side by side
    mixes: LayerSelection = All()  # the blocks with a mixer; others are a feed-forward part alone
    replacing: tuple[tuple[LayerSelection, Record], ...] = ()  # the blocks with another record in place of the mixer
    window: KeyReader | None = None
    windowed: LayerSelection = All()
    chunk: KeyReader | None = None
    chunked: LayerSelection = All()
    rotated: LayerSelection = All()  # the blocks with rotary positions
    reuses: LayerSelection = All(False)  # the blocks that attend to the keys and values of a block before
    # Feed-forward parts
    feed_forward: Fields = NOTHING
    dense_feed_forward: Fields = NOTHING  # different fields of those that are no shared experts
    reusing_feed_forward: Fields = NOTHING  # different fields in blocks that reuse a cache
    channel_mix: Fields | None = None
    feeds: LayerSelection = All()  # the blocks with a feed-forward part
    feeds_plainly: LayerSelection = All(False)  # the blocks with one matrix in place of the feed-forward part
    plain_part: Fields = NOTHING
    experts: Fields | None = None
    shared: Fields | None = None  # shared experts, a `FeedForward`
    sparse: LayerSelection = All()  # the blocks with experts
    hashed: LayerSelection = All(False)  # the blocks with experts that a table chooses
    sparsely_active: LayerSelection = All(False)
    # Beside them
    per_layer_input: Fields | None = None
    has_per_layer_input: LayerSelection = All()
    side_experts: Fields | None = None  # the `Experts` of `SideExperts`
    side_norms: Fields = NOTHING  # its further fields
    has_side_experts: LayerSelection = All()
    shared_attention: Fields | None = None  # of a `SharedTransformer`
    shared_feed_forward: Fields = NOTHING
    has_shared: LayerSelection = All(False)
    shared_copies: Integer = Integer("", 1)  # how many shared transformers there are, which take turns
    has_first_norm: bool = True  # whether the first block has a norm before its mixer (ModernBERT's has none)

    def read(self, config: Config) -> tuple[Block, ...]:
        """Return the blocks that a config describes."""
        return describe_blocks(self, config)


def make(kind: type[Kind], config: Config, *fields: Fields) -> Kind:
    """Return a record with the standard fields of its kind, of which the given ones replace some."""
    merged = dict(STANDARD.get(kind, NOTHING))
    for replacements in fields:
        merged.update(replacements)
    return kind(**read_fields(merged, config))


def describe_blocks(rules: BlockRules, config: Config) -> tuple[Block, ...]:
    """Return the blocks that a config describes.

    Raise BadDescriptor if a key is missing or malformed, or no key says what a block is.
    """
    layer_count: KeyReader = Integer(rules.layer_count) if isinstance(rules.layer_count, str) else rules.layer_count
    count: int = layer_count.read(config)
    block_configs = _block_configs(rules, config, count)
    sparse = rules.sparse.choose(config, count) if rules.experts is not None else [False] * count
    mixes = rules.mixes.choose(config, count)
    mixers = [mixer if has_mixer else () for mixer, has_mixer in zip(_mixers(rules, config, block_configs), mixes)]
    for layers, replacement in rules.replacing:
        mixer = replacement.read(config)
        mixers = [
            (mixer,) if is_replaced else block_mixers
            for block_mixers, is_replaced in zip(mixers, layers.choose(config, count))
        ]
    feeds = rules.feeds.choose(config, count)
    feeds_plainly = rules.feeds_plainly.choose(config, count)
    reuses = rules.reuses.choose(config, count)
    hashed = rules.hashed.choose(config, count)
    sparsely_active = rules.sparsely_active.choose(config, count)
    common = read_fields(rules.block, config)
    if rules.cross_attention is not None:
        common["cross_attention"] = make(Attention, config, rules.attention, rules.cross_attention)
    blocks = []
    for index, extras in enumerate(_block_extras(rules, config, count)):
        part = _feed_forward(rules, block_configs[index], sparse[index], reuses[index]) if feeds[index] else None
        if feeds_plainly[index]:
            part = make(Projection, config, rules.plain_part)
        if part is None and not mixers[index] and rules.own_keys is None:
            raise config.fail(f"no key says what layer {index} is: a mixer or a feed-forward part")
        if hashed[index] and isinstance(part, Experts):
            part = msgspec.structs.replace(part, is_hashed=True)
        if sparsely_active[index] and isinstance(part, FeedForward):
            part = msgspec.structs.replace(part, has_sparse_activation=True)
        blocks.append(Block(mixers=mixers[index], feed_forward=part, **common, **extras))
    if not rules.has_first_norm:
        norms = msgspec.structs.replace(blocks[0].norms, before_mixer="")
        blocks[0] = msgspec.structs.replace(blocks[0], norms=norms)
    return tuple(blocks)


def _block_configs(rules: BlockRules, config: Config, count: int) -> list[Config]:
    """Return the config of each block."""
    if rules.own_keys is None:
        return [config] * count
    keys_of_blocks: list[dict[str, Any]] = rules.own_keys.read(config)
    if len(keys_of_blocks) != count:
        raise config.fail(f"the keys of {len(keys_of_blocks)} layers are listed, but there are {count}")
    return [config.with_fields({**config.fields, **keys}) for keys in keys_of_blocks]


def _block_extras(rules: BlockRules, config: Config, count: int) -> list[dict[str, Any]]:
    """Return the fields of each block for per-layer embeddings, shared transformers and experts beside its part."""
    extras: list[dict[str, Any]] = [{} for _ in range(count)]
    if rules.shared_attention is not None:
        shared = SharedTransformer(
            attention=make(Attention, config, rules.shared_attention),
            feed_forward=make(FeedForward, config, rules.shared_feed_forward),
        )
        copies = rules.shared_copies.read(config) or 1
        for extra, applies in zip(extras, rules.has_shared.choose(config, count)):
            if applies:  # after some copies their weights repeat
                extra["shared"] = msgspec.structs.replace(shared, is_repeated=copies <= 0)
                copies -= 1
    if rules.per_layer_input is not None:
        for extra, applies in zip(extras, rules.has_per_layer_input.choose(config, count)):
            if applies:
                extra["per_layer_input"] = make(PerLayerInput, config, rules.per_layer_input)
    if rules.side_experts is not None:
        for extra, applies in zip(extras, rules.has_side_experts.choose(config, count)):
            if applies:
                experts = make(Experts, config, rules.side_experts)
                extra["side_experts"] = SideExperts(experts=experts, **rules.side_norms)
    return extras


def _mixers(rules: BlockRules, config: Config, block_configs: list[Config]) -> list[tuple[Mixer, ...]]:
    """Return the mixers of each block."""
    count = len(block_configs)
    other: Mixer | None = _read_optional(rules.other, config)
    attends = rules.attends.choose(config, count)
    if other is not None and not any(attends):
        return [(other,)] * count
    attention = _attention(rules, config, block_configs)
    if other is None:
        return [(mixer,) for mixer in attention]
    if rules.has_both_mixers:
        return [(other, mixer) for mixer in attention]
    return [(mixer,) if has_attention else (other,) for mixer, has_attention in zip(attention, attends)]


def _attention(rules: BlockRules, config: Config, block_configs: list[Config]) -> Sequence[Mixer]:
    """Return the attention of each block."""
    count = len(block_configs)
    if rules.compressed is not None:
        return _compressed_attention(rules, rules.compressed, config, count)
    if rules.latent is None:
        return _usual_attention(rules, config, block_configs)
    latent = make(LatentAttention, config, rules.latent)
    if rules.indexer is None:
        return [latent] * count
    indexed = msgspec.structs.replace(latent, indexer=make(Indexer, config, rules.indexer))
    return [indexed if has_own else latent for has_own in rules.indexes.choose(config, count)]


def _usual_attention(rules: BlockRules, config: Config, block_configs: list[Config]) -> list[Attention]:
    """Return the attention of each block, with its window, positions and heads."""
    count = len(block_configs)
    attention_by_config = {
        id(block_config): make(Attention, block_config, rules.attention) for block_config in block_configs
    }
    experts = None if rules.head_experts is None else make(HeadExperts, config, rules.head_experts)
    full_attention = read_fields(rules.full_attention, config)
    window = None if _is_zero(rules.window, config) else _read_optional(rules.window, config)
    windowed = rules.windowed.choose(config, count)
    chunk = _read_optional(rules.chunk, config)
    chunked = rules.chunked.choose(config, count)
    rotated = rules.rotated.choose(config, count)
    reuses = rules.reuses.choose(config, count)
    layers = []
    for block_config, has_window, has_chunk, is_rotated, has_none in zip(
        block_configs, windowed, chunked, rotated, reuses
    ):
        attention = attention_by_config[id(block_config)]
        mixer = msgspec.structs.replace(
            attention,
            experts=experts,
            window=window if has_window else None,
            chunk=chunk if has_chunk else None,
            rotary_size=attention.rotary_size if is_rotated else 0,
            reuses_cache=has_none,
        )
        if not has_window:
            mixer = msgspec.structs.replace(mixer, **full_attention)
        layers.append(mixer)
    if rules.indexer is None:
        return layers
    indexer = make(Indexer, config, rules.indexer)
    indexed = zip(layers, rules.indexes.choose(config, count))
    return [msgspec.structs.replace(mixer, indexer=indexer) if has_own else mixer for mixer, has_own in indexed]


def _read_optional(reader: KeyReader | None, config: Config) -> Any:
    return None if reader is None else reader.read(config)


def _is_zero(reader: KeyReader | None, config: Config) -> bool:
    """Return whether a config gives 0 for an integer, which stands for none."""
    return isinstance(reader, Integer) and any(config.fields.get(key) == 0 for key in reader.key.split())


def _compressed_attention(rules: BlockRules, fields: Fields, config: Config, count: int) -> list[CompressedAttention]:
    """Return the attention of each block, with the compression of its layer."""
    plain = make(CompressedAttention, config, fields)
    mixers = [plain] * count
    for layers, compression in rules.compressions:
        compressed = msgspec.structs.replace(plain, compression=compression.read(config))
        chosen = layers.choose(config, count)
        mixers = [compressed if has_own else mixer for mixer, has_own in zip(mixers, chosen)]
    return mixers


def _feed_forward(
    rules: BlockRules, config: Config, is_sparse: bool, reuses_cache: bool
) -> FeedForward | ChannelMix | Experts | Projection:
    """Return the feed-forward part of a block."""
    if rules.channel_mix is not None:
        return make(ChannelMix, config, rules.channel_mix)
    if not is_sparse:
        reusing = rules.reusing_feed_forward if reuses_cache else NOTHING
        return make(FeedForward, config, rules.feed_forward, rules.dense_feed_forward, reusing)
    assert rules.experts is not None
    experts = make(Experts, config, rules.experts)
    if experts.active > experts.count:
        raise config.fail(f"{experts.active} active experts are more than the {experts.count} there are")
    if rules.shared is None:
        return experts
    fields = read_fields({**STANDARD[FeedForward], **rules.feed_forward, **rules.shared}, config)
    multiple = fields.pop("multiple", 1)
    if not multiple:
        return experts
    fields["inner_size"] *= multiple
    return msgspec.structs.replace(experts, shared=FeedForward(**fields))
