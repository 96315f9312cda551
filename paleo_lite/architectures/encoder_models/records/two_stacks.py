"""Encoder-decoders: BART, M2M-100, Whisper and T5."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ...blocks.rules import BlockRules
from ...blocks.traits import Norms, Projections, RelativeBias, Sums
from ...config import Config
from ...keys import NOTHING, Activation, Fields, Fraction, HeadSize, Integer, Record, Sum, record
from ...tape import ACTIVATIONS
from ..family import ATTENTION, FEED_FORWARD, IS_TIED, BlocksOf, EncoderFamily, words_head
from ..traits import AddConstant, AudioEmbedding, EncoderModel, Scale, Stack, TextEmbedding


class FeedForwardProjection(NamedTuple):
    """The activation of T5's feed-forward part, such as the last word of ``gated-gelu``."""

    def read(self, config: Config) -> str:
        """Return the name of the activation."""
        projection = str(config.fields.get("feed_forward_proj", "relu"))
        function = projection.rpartition("-")[2]
        if function not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise config.fail(f"$.feed_forward_proj is {projection!r}, known are {known}, also gated-")
        return "gelu_new" if projection == "gated-gelu" else function


class IfGated(NamedTuple):
    """One value where T5's feed-forward part is gated, and another one where it is not."""

    gated: Any = True
    plain: Any = False

    def read(self, config: Config) -> Any:
        """Return the value."""
        return self.gated if str(config.fields.get("feed_forward_proj")).startswith("gated-") else self.plain


def _blocks(
    side: str, norms: Norms, attention: Fields = NOTHING, part: Fields = NOTHING, dropout: float = 0.0
) -> BlocksOf:
    """Return the blocks of the encoder or decoder of BART, M2M-100 or Whisper."""
    heads = f"{side}_attention_heads"
    own = {
        **ATTENTION, "heads": Integer(heads), "kv_heads": Integer(heads),
        "head_size": HeadSize(key="", hidden="d_model", heads=heads), "projections": Projections(output="out_proj"),
        **attention,
    }  # fmt: skip
    rules = BlockRules(
        layer_count=f"{side}_layers",
        attention={**own, "is_causal": side == "decoder"},
        cross_attention={**own, "module": "encoder_attn"} if side == "decoder" else None,
        feed_forward={
            **FEED_FORWARD, "inner_size": Integer(f"{side}_ffn_dim"),
            "activation": Activation(("activation_function",), "gelu"), "inner_dropout": Fraction("activation_dropout"),
            "dropout_origin": "function", **part,
        },
        block={"norm": "layer", "norms": norms, "dropout": Fraction("dropout", dropout), "dropout_origin": "function"},
    )  # fmt: skip
    return BlocksOf(rules)


def _stack(side: str, blocks: BlocksOf, **more: Any) -> Record:
    """Return an encoder or a decoder."""
    return record(
        Stack, name=f"{side}.layers", hidden_size=Integer("d_model"), blocks=blocks, mask_module="decoder", **more
    )


# BART

_POST_NORMS = Norms(
    "", "", "", after_mixer_sum="self_attn_layer_norm", after_cross_attention_sum="encoder_attn_layer_norm",
    after_feed_forward_sum="final_layer_norm",
)  # fmt: skip


def _text_embedding(side: str, position_kind: str, norm: str = "") -> Record:
    """Return the embedding of the encoder or decoder of BART or M2M-100, with the name of its norm."""
    return record(
        TextEmbedding,
        vocabulary=Integer("vocab_size"),
        size=Integer("d_model"),
        positions=Sum("max_position_embeddings", 1024, 2),
        position_kind=position_kind,
        origin="function",
        is_scaled=True,
        dropout=Fraction("dropout", 0.1),
        dropout_origin="function",
        module=side,
        words_name="shared",
        scale_name=f"{side}.embed_tokens",
        positions_name=f"{side}.embed_positions",
        norm_name=norm,
        dropout_name=f"{side}.dropout",
    )


_BART = EncoderFamily(
    name="Bart",
    root="model",
    longest=1024,
    inputs=2,
    generates=True,
    model=record(
        EncoderModel,
        embedding=_text_embedding("encoder", "counted", "encoder.layernorm_embedding"),
        blocks=_stack("encoder", _blocks("encoder", _POST_NORMS, dropout=0.1)),
        decoder_embedding=_text_embedding("decoder", "continued", "decoder.layernorm_embedding"),
        decoder_blocks=_stack("decoder", _blocks("decoder", _POST_NORMS, dropout=0.1)),
        has_shared_embedding=True,
    ),
    heads={"ForConditionalGeneration": (words_head("lm_head", has_bias=False), AddConstant()), "Model": ()},
)

# M2M-100 (Fan et al. 2021) and NLLB-200, whose dense models have its type

_PRE_NORMS = Norms("self_attn_layer_norm", "", "final_layer_norm", before_cross_attention="encoder_attn_layer_norm")
_M2M_ACTIVATION = {"activation": Activation(("activation_function",), "relu")}
_M2M_100 = EncoderFamily(
    name="M2M100",
    root="model",
    longest=1024,
    inputs=2,
    generates=True,
    model=record(
        EncoderModel,
        embedding=_text_embedding("encoder", "waves"),
        blocks=_stack(
            "encoder", _blocks("encoder", _PRE_NORMS, part=_M2M_ACTIVATION, dropout=0.1),
            final_norm="encoder.layer_norm",
        ),
        decoder_embedding=_text_embedding("decoder", "waves_continued"),
        decoder_blocks=_stack(
            "decoder", _blocks("decoder", _PRE_NORMS, part=_M2M_ACTIVATION, dropout=0.1),
            final_norm="decoder.layer_norm",
        ),
        has_shared_embedding=True,
    ),
    heads={"ForConditionalGeneration": (words_head("lm_head", has_bias=False),), "Model": ()},
)  # fmt: skip

# Whisper

_WHISPER_ATTENTION: Fields = {"has_key_bias": False, "scales_queries": True}
_WHISPER = EncoderFamily(
    name="Whisper",
    root="model",
    positions="max_target_positions",
    longest=448,
    reads="audio",
    inputs=2,
    generates=True,
    model=record(
        EncoderModel,
        embedding=record(
            AudioEmbedding, hidden_size=Integer("d_model"), bins=Integer("num_mel_bins", 80),
            positions=Integer("max_source_positions", 1500), dropout=Fraction("dropout"),
        ),
        blocks=_stack(
            "encoder", _blocks("encoder", _PRE_NORMS, _WHISPER_ATTENTION), final_norm="encoder.layer_norm"
        ),
        decoder_embedding=record(
            TextEmbedding, vocabulary=Integer("vocab_size"), size=Integer("d_model"),
            positions=Integer("max_target_positions", 448), position_kind="rows", dropout=Fraction("dropout"),
            dropout_origin="function", module="decoder", words_name="decoder.embed_tokens",
            positions_name="decoder.embed_positions", norm_name="", dropout_name="decoder.dropout",
        ),
        decoder_blocks=_stack(
            "decoder", _blocks("decoder", _PRE_NORMS, _WHISPER_ATTENTION), final_norm="decoder.layer_norm",
            checks_packing=True,
        ),
    ),
    heads={"ForConditionalGeneration": (words_head("proj_out", has_bias=False),), "Model": ()},
)  # fmt: skip

# T5

_T5_DROPOUT = Fraction("dropout_rate", 0.1)


def _t5_embedding(side: str) -> Record:
    """Return the embedding of T5's encoder or decoder."""
    return record(
        TextEmbedding,
        vocabulary=Integer("vocab_size"),
        size=Integer("d_model"),
        dropout=_T5_DROPOUT,
        module=side,
        words_name=f"{side}.embed_tokens",
        norm_name="",
        dropout_name=f"{side}.dropout",
    )


def _t5_stack(side: str) -> Record:
    """Return T5's encoder or decoder."""
    last = "layer.1" if side == "encoder" else "layer.2"
    attention: Fields = {
        **ATTENTION, "heads": Integer("num_heads"), "kv_heads": Integer("num_heads"), "head_size": Integer("d_kv"),
        "bias": False, "output_bias": False, "module": "layer.0.SelfAttention",
        "projections": Projections("q", "k", "v", "o"), "dropout": 0.0,
        "relative_bias": record(RelativeBias, buckets=Integer("relative_attention_num_buckets", 32)),
    }  # fmt: skip
    rules = BlockRules(
        layer_count=Integer("num_layers") if side == "encoder" else Integer("num_decoder_layers num_layers"),
        attention={**attention, "is_causal": side == "decoder"},
        cross_attention={**attention, "module": "layer.1.EncDecAttention"} if side == "decoder" else None,
        feed_forward={
            "inner_size": Integer("d_ff"), "module": f"{last}.DenseReluDense", "is_gated": IfGated(), "gate": "wi_0",
            "up": IfGated("wi_1", "wi"), "down": "wo", "activation": FeedForwardProjection(),
            "activation_module": "act", "inner_dropout": _T5_DROPOUT,
        },
        block={
            "norms": Norms("layer.0.layer_norm", "", f"{last}.layer_norm", before_cross_attention="layer.1.layer_norm"),
            "sums": Sums(
                mixer="layer.0.add", mixer_dropout="layer.0.dropout", cross_attention="layer.1.add",
                cross_attention_dropout="layer.1.dropout", feed_forward=f"{last}.add",
                feed_forward_dropout=f"{last}.dropout",
            ),
            "dropout": _T5_DROPOUT,
        },
    )  # fmt: skip
    return record(
        Stack,
        name=f"{side}.block",
        hidden_size=Integer("d_model"),
        blocks=BlocksOf(rules),
        mask_module="decoder",
        final_norm=f"{side}.final_layer_norm",
        final_dropout=f"{side}.dropout",
    )


_T5_LOGITS = words_head("lm_head", has_bias=False)
_T5 = EncoderFamily(
    name="T5",
    positions="n_positions",
    longest=None,
    inputs=2,
    generates=True,
    model=record(
        EncoderModel, embedding=_t5_embedding("encoder"), blocks=_t5_stack("encoder"),
        decoder_embedding=_t5_embedding("decoder"), decoder_blocks=_t5_stack("decoder"), has_shared_embedding=True,
    ),
    heads={"ForConditionalGeneration": (record(Scale, applies=IS_TIED), _T5_LOGITS), "Model": ()},
)  # fmt: skip

FAMILIES: dict[str, EncoderFamily] = {
    "bart": _BART,
    "m2m_100": _M2M_100,
    "whisper": _WHISPER,
    "t5": _T5,
    "mt5": msgspec.structs.replace(_T5, name="MT5", heads={"ForConditionalGeneration": (_T5_LOGITS,), "Model": ()}),
}
