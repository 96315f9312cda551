"""All model types of decoders, and the traits that a config gives with the record of its type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..tape import Config
from .family import (
    STANDARD_ATTENTION,
    STANDARD_DECODER,
    STANDARD_EXPERTS,
    STANDARD_FEED_FORWARD,
    STANDARD_LATENT,
    Family,
    Fields,
)  # fmt: skip
from .keys import Integer
from .records import dense, established, gemma, hybrids, mixtures, qwen
from .traits import (
    Attention,
    Block,
    ChannelMix,
    CompressedAttention,
    Decoder,
    DeltaNet,
    Experts,
    FeedForward,
    HeadExperts,
    Indexer,
    KimiDelta,
    LatentAttention,
    LinearRecurrence,
    Mamba,
    Mamba2,
    MatrixMemory,
    Mixer,
    PerLayerInput,
    SharedTransformer,
    ShortConvolution,
    SideExperts,
    TimeMix,
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    **established.FAMILIES, **dense.FAMILIES, **mixtures.FAMILIES, **hybrids.FAMILIES, **qwen.FAMILIES,
    **gemma.FAMILIES,
}  # fmt: skip
"""Families by ``model_type``."""


def describe_decoder(family: Family, config: Config) -> Decoder:
    """Return the record of the model that a config describes.

    Raises
    ------
    BadDescriptor
        If a key is missing or malformed, or has a value that is not read.
    """
    for key, values in family.unread:
        if config.fields.get(key, values[0]) not in values:
            raise config.fail(f"$.{key} is {config.fields[key]!r}; {family.name} is read with {values[0]!r} only")
    for first, second in family.same:
        if config.fields.get(first) not in (None, config.fields.get(second)):
            raise config.fail(
                f"$.{first} is {config.fields[first]!r}; {family.name} is read only if it equals $.{second}"
            )
    layer_count = Integer(family.layer_count) if isinstance(family.layer_count, str) else family.layer_count
    count = layer_count.read(config)
    assert count is not None
    sparse = family.sparse.choose(config, count) if family.experts is not None else [False] * count
    mixes = family.mixes.choose(config, count)
    mixers = [mixer if has_mixer else () for mixer, has_mixer in zip(_mixers(family, config, count), mixes)]
    feeds = family.feeds.choose(config, count)
    reuses = family.reuses.choose(config, count)
    hashed = family.hashed.choose(config, count)
    sparsely_active = family.sparsely_active.choose(config, count)
    block = _resolve(config, family.block)
    blocks = []
    for index, more in enumerate(_block_extras(family, config, count)):
        part = _feed_forward(family, config, sparse[index], reuses[index]) if feeds[index] else None
        if part is None and not mixers[index]:
            raise config.fail(f"no key says what layer {index} is: a mixer or a feed-forward part")
        if hashed[index] and isinstance(part, Experts):
            part = msgspec.structs.replace(part, is_hashed=True)
        if sparsely_active[index] and isinstance(part, FeedForward):
            part = msgspec.structs.replace(part, has_sparse_activation=True)
        blocks.append(Block(mixers=mixers[index], feed_forward=part, **block, **more))
    return Decoder(blocks=tuple(blocks), **_resolve(config, {**STANDARD_DECODER, **family.decoder}))


def _block_extras(family: Family, config: Config, count: int) -> list[dict[str, Any]]:
    """Return the fields of each block for per-layer embeddings, shared transformers and experts beside its part."""
    extras: list[dict[str, Any]] = [{} for _ in range(count)]
    if family.shared_attention is not None:
        _add_shared_transformers(family, config, family.shared_attention, extras)
    if family.per_layer_input is not None:
        for extra, applies in zip(extras, family.has_per_layer_input.choose(config, count)):
            if applies:
                extra["per_layer_input"] = PerLayerInput(**_resolve(config, family.per_layer_input))
    if family.side_experts is not None:
        for extra, applies in zip(extras, family.has_side_experts.choose(config, count)):
            if applies:
                experts = Experts(**_resolve(config, {**STANDARD_EXPERTS, **family.side_experts}))
                extra["side_experts"] = SideExperts(experts=experts, **family.side_norms)
    return extras


def _add_shared_transformers(family: Family, config: Config, attention: Fields, extras: list[dict[str, Any]]) -> None:
    """Set the shared transformer of each block that has one; after some copies their weights repeat."""
    shared = SharedTransformer(
        attention=Attention(**_resolve(config, {**STANDARD_ATTENTION, **attention})),
        feed_forward=FeedForward(**_resolve(config, {**STANDARD_FEED_FORWARD, **family.shared_feed_forward})),
    )
    copies = family.shared_copies.read(config) or 1
    for extra, applies in zip(extras, family.has_shared.choose(config, len(extras))):
        if applies:
            extra["shared"] = msgspec.structs.replace(shared, is_repeated=copies <= 0)
            copies -= 1


def _resolve(config: Config, fields: Fields) -> dict[str, Any]:
    """Return the fields with every reader replaced by the value that it reads."""
    return {name: value.read(config) if hasattr(value, "read") else value for name, value in fields.items()}


def _mixers(family: Family, config: Config, count: int) -> list[tuple[Mixer, ...]]:
    """Return the mixers of each block."""
    if family.compressed is not None:
        return _compressed_attention(family, config, count)
    other = _other_mixer(family, config)
    attends = family.attends.choose(config, count)
    if other is not None and not any(attends):
        return [(other,)] * count
    own: Sequence[Mixer] = _attention(family, config, count)
    if other is None:
        return [(mixer,) for mixer in own]
    if family.has_both_mixers:
        return [(other, mixer) for mixer in own]
    return [(mixer,) if has_attention else (other,) for mixer, has_attention in zip(own, attends)]


def _attention(family: Family, config: Config, count: int) -> Sequence[Mixer]:
    """Return the attention of each block."""
    if family.latent is None:
        return _usual_attention(family, config, count)
    latent = LatentAttention(**_resolve(config, {**STANDARD_LATENT, **family.latent}))
    if family.indexer is None:
        return [latent] * count
    indexed = msgspec.structs.replace(latent, indexer=Indexer(**_resolve(config, family.indexer)))
    return [indexed if has_own else latent for has_own in family.indexes.choose(config, count)]


def _usual_attention(family: Family, config: Config, count: int) -> list[Attention]:
    """Return the attention of each block, with its window, positions and heads."""
    attention = Attention(**_resolve(config, {**STANDARD_ATTENTION, **family.attention}))
    if family.head_experts is not None:
        attention = msgspec.structs.replace(attention, experts=HeadExperts(**_resolve(config, family.head_experts)))
    full_attention = _resolve(config, family.full_attention)
    window = None
    if family.window is not None and not any(config.fields.get(key) == 0 for key in family.window.key.split()):
        window = family.window.read(config)
    windowed = family.windowed.choose(config, count)
    chunk = family.chunk.read(config) if family.chunk is not None else None
    chunked = family.chunked.choose(config, count)
    rotated = family.rotated.choose(config, count)
    reuses = family.reuses.choose(config, count)
    layers = []
    for has_window, has_chunk, is_rotated, has_none in zip(windowed, chunked, rotated, reuses):
        own = msgspec.structs.replace(
            attention,
            window=window if has_window else None,
            chunk=chunk if has_chunk and family.chunk is not None else None,
            rotary_size=attention.rotary_size if is_rotated else 0,
            reuses_cache=has_none,
        )
        if not has_window:
            own = msgspec.structs.replace(own, **full_attention)
        layers.append(own)
    return layers


def _compressed_attention(family: Family, config: Config, count: int) -> list[tuple[Mixer, ...]]:
    """Return the attention of each block, with the compression of its layer."""
    assert family.compressed is not None
    plain = CompressedAttention(**_resolve(config, family.compressed))
    mixers = [plain] * count
    for layers, record in family.compressions:
        compressed = msgspec.structs.replace(plain, compression=record.read(config))
        chosen = layers.choose(config, count)
        mixers = [compressed if has_own else mixer for mixer, has_own in zip(mixers, chosen)]
    return [(mixer,) for mixer in mixers]


def _other_mixer(family: Family, config: Config) -> Mixer | None:
    """Return the mixer of the layers without attention, or None."""
    kinds: tuple[tuple[Fields | None, type[Any]], ...] = (
        (family.mamba, Mamba), (family.mamba2, Mamba2), (family.delta_net, DeltaNet), (family.kimi_delta, KimiDelta),
        (family.short_convolution, ShortConvolution), (family.linear_recurrence, LinearRecurrence),
        (family.time_mix, TimeMix), (family.matrix_memory, MatrixMemory),
    )  # fmt: skip
    for fields, kind in kinds:
        if fields is not None:
            mixer: Mixer = kind(**_resolve(config, fields))
            return mixer
    return None


def _feed_forward(
    family: Family, config: Config, is_sparse: bool, reuses_cache: bool
) -> FeedForward | ChannelMix | Experts:
    """Return the feed-forward part of a block."""
    if family.channel_mix is not None:
        return ChannelMix(**_resolve(config, family.channel_mix))
    if not is_sparse:
        fields = {**STANDARD_FEED_FORWARD, **family.feed_forward, **family.dense_feed_forward}
        if reuses_cache:
            fields |= family.reusing_feed_forward
        return FeedForward(**_resolve(config, fields))
    assert family.experts is not None
    fields = _resolve(config, {**STANDARD_EXPERTS, **family.experts})
    if fields["active"] > fields["count"]:
        raise config.fail(f"{fields['active']} active experts are more than the {fields['count']} there are")
    shared = None
    if family.shared is not None:
        shared_fields = _resolve(config, {**STANDARD_FEED_FORWARD, **family.feed_forward, **family.shared})
        multiple = shared_fields.pop("multiple", 1)
        if multiple:
            shared_fields["inner_size"] *= multiple
            shared = FeedForward(**shared_fields)
    return Experts(shared=shared, **fields)
