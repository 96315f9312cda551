"""Decoders like GPT-2: learned positions or ALiBi, layer norms, and feed-forward parts without a gate."""

from __future__ import annotations

from ...blocks.traits import Norms, Projections
from ...keys import Activation, Choice, FalconHeads, Flag, Fraction, HeadSize, Integer, Multiple, RotarySize, Sum
from ...layer_rules import EveryNth, Listed
from ..family import TIED, TWO_LAYER, Family

_GPT = {"root": "transformer", "block_list": "h", "embedding": "wte", "final_norm": "ln_f", "norm": "layer"}
_GPT_HEADS = {
    "heads": Integer("n_head"), "kv_heads": Integer("n_head"),
    "head_size": HeadSize(key="", hidden="n_embd", heads="n_head"), "module": "attn",
}  # fmt: skip
_GPT_PART = {
    "is_gated": False, "up": "c_fc", "down": "c_proj", "bias": True, "activation_module": "act",
    "inner_size": Multiple("n_inner", 4, "n_embd"), "activation": Activation(("activation_function",), "gelu_new"),
}  # fmt: skip
_FOUR_H = {"is_gated": False, "up": "dense_h_to_4h", "down": "dense_4h_to_h"}

_TWO_NORMS = Norms("ln_attn", "", "ln_mlp")
_FALCON_NORMS = Choice(
    "num_ln_in_parallel_attn", {None: _TWO_NORMS, 2: _TWO_NORMS, 1: Norms(before_feed_forward="")}, None
)

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        name="GPT2", head_class="GPT2LMHeadModel", layer_count="n_layer", positions="n_positions", longest=1024,
        decoder={
            **_GPT, "hidden_size": Integer("n_embd"), "learned_positions": Integer("n_positions", 1024),
            "is_tied": TIED, "dropout": Fraction("embd_pdrop", 0.1),
        },
        block={"norm": "layer", "norms": Norms("ln_1", "", "ln_2"), "dropout": Fraction("resid_pdrop", 0.1)},
        attention={
            **_GPT_HEADS,
            "projections": Projections(packed="c_attn", output="c_proj"), "transposed_weights": True, "rotary_size": 0,
            "dropout": Fraction("attn_pdrop", 0.1), "bias": True, "output_bias": True,
        },
        feed_forward={**_GPT_PART, "bias": False, "transposed_weights": True},
    ),
    "gpt_neo": Family(
        name="GPTNeo", layer_count="num_layers",
        decoder={
            **_GPT, "learned_positions": Integer("max_position_embeddings", 2048), "dropout": Fraction("embed_dropout"),
            "is_tied": TIED,
        },
        block={"norm": "layer", "norms": Norms("ln_1", "", "ln_2"), "dropout": Fraction("resid_dropout")},
        attention={
            "heads": Integer("num_heads"), "kv_heads": Integer("num_heads"),
            "head_size": HeadSize(key="", heads="num_heads"), "module": "attn.attention", "rotary_size": 0,
            "projections": Projections(output="out_proj"), "output_bias": True, "is_always_unfused": True,
        },
        feed_forward={**_GPT_PART, "inner_size": Multiple("intermediate_size", 4, "hidden_size")},
        window=Integer("window_size", 256),
        windowed=Listed("local", "attention_layers", otherwise=EveryNth(Integer("local_period", 2))),
    ),
    "gptj": Family(
        name="GPTJ", layer_count="n_layer", positions="n_positions",
        decoder={
            **_GPT, "hidden_size": Integer("n_embd"), "head_bias": True, "dropout": Fraction("embd_pdrop"),
        },
        block={
            "norm": "layer", "norms": Norms("ln_1", "", ""), "is_parallel": True, "dropout": Fraction("resid_pdrop"),
        },
        attention={
            **_GPT_HEADS,
            "projections": Projections(output="out_proj"), "rotary_size": Integer("rotary_dim", 64),
            "rotary_style": "interleaved", "is_always_unfused": True, "dropout": Fraction("attn_pdrop"),
        },
        feed_forward={**_GPT_PART, "up": "fc_in", "down": "fc_out"},
    ),
    "opt": Family(
        name="OPT",
        decoder={
            "root": "model.decoder", "norm": "layer", "final_norm": "final_layer_norm",
            "learned_positions": Sum("max_position_embeddings", 2048, 2), "position_embedding": "embed_positions",
            "is_tied": TIED,
        },
        block={"norm": "layer", "norms": Norms("self_attn_layer_norm", "", "final_layer_norm"),
               "dropout": Fraction("dropout", 0.1)},
        attention={
            "bias": Flag("enable_bias", True), "output_bias": Flag("enable_bias", True), "rotary_size": 0,
            "kv_heads": Integer("num_attention_heads"), "projections": Projections(output="out_proj"),
        },
        feed_forward={
            **TWO_LAYER, "module": "", "bias": Flag("enable_bias", True), "inner_size": Integer("ffn_dim"),
            "activation": Activation(("activation_function",), "relu"),
        },
        unread=(("do_layer_norm_before", (True,)),), same=(("word_embed_proj_dim", "hidden_size"),),
    ),
    "falcon": Family(
        name="Falcon",
        decoder={
            **_GPT, "embedding": "word_embeddings", "is_tied": TIED,
        },
        block={
            "norm": "layer", "is_parallel": Flag("parallel_attn", True), "dropout": Fraction("hidden_dropout"),
            "norms": Choice(
                "new_decoder_architecture",
                {True: _FALCON_NORMS, False: Norms(before_feed_forward="")}, False,
            ),
        },
        attention={
            "module": "self_attention", "projections": Projections(packed="query_key_value", output="dense"),
            "packed_layout": "groups", "kv_heads": FalconHeads(), "bias": Flag("bias"), "output_bias": Flag("bias"),
            "has_alibi": Flag("alibi"), "head_size": HeadSize(key=""),
            "rotary_size": RotarySize(head_size=HeadSize(key="")),
        },
        feed_forward={
            **_FOUR_H, "bias": Flag("bias"),
            "activation_module": "act", "inner_size": Multiple("ffn_hidden_size", 4, "hidden_size"),
            "activation": Activation(("activation",), "gelu"),
        },
    ),
    "bloom": Family(
        name="Bloom", layer_count="n_layer num_hidden_layers", positions="seq_length", longest=2048,
        decoder={
            "hidden_size": Integer("hidden_size n_embed"), "is_tied": TIED,
            **_GPT, "embedding": "word_embeddings", "embedding_norm": "word_embeddings_layernorm",
        },
        block={"norm": "layer", "dropout": Fraction("hidden_dropout")},
        attention={
            "heads": Integer("n_head num_attention_heads"), "kv_heads": Integer("n_head num_attention_heads"),
            "head_size": HeadSize(key="", hidden="hidden_size n_embed", heads="n_head num_attention_heads"),
            "module": "self_attention", "projections": Projections(packed="query_key_value", output="dense"),
            "packed_layout": "heads", "bias": True, "output_bias": True, "rotary_size": 0, "has_alibi": True,
            "is_always_unfused": True,
        },
        feed_forward={
            **_FOUR_H, "bias": True,
            "activation_module": "gelu_impl", "inner_size": Multiple("", 4, "hidden_size n_embed"),
            "activation": "gelu_new",
        },
        unread=(("apply_residual_connection_post_layernorm", (False,)),),
    ),
    "mpt": Family(
        name="Mpt", layer_count="n_layers", positions="max_seq_len",
        decoder={
            "hidden_size": Integer("d_model"), "root": "transformer", "block_list": "blocks", "embedding": "wte",
            "final_norm": "norm_f", "norm": "layer_no_bias", "is_tied": TIED,
        },
        block={"norm": "layer_no_bias", "norms": Norms("norm_1", "", "norm_2"), "dropout": Fraction("resid_pdrop")},
        attention={
            "heads": Integer("n_heads"), "kv_heads": Integer("n_heads"),
            "head_size": HeadSize(key="", hidden="d_model", heads="n_heads"), "module": "attn",
            "projections": Projections(packed="Wqkv", output="out_proj"), "packed_layout": "chunk",
            "rotary_size": 0, "has_alibi": True, "is_always_unfused": True,
        },
        feed_forward={
            "module": "ffn", "is_gated": False, "activation_module": "act", "activation": "gelu",
            "inner_size": Multiple("", Integer("expansion_ratio", 4), "d_model"),
        },
        unread=(("no_bias", (True,)),),
    ),
    "gpt_neox": Family(
        name="GPTNeoX",
        decoder={"root": "gpt_neox", "embedding": "embed_in", "final_norm": "final_layer_norm", "norm": "layer",
                 "dropout": Fraction("hidden_dropout")},
        block={"norm": "layer", "is_parallel": Flag("use_parallel_residual", True),
               "dropout": Fraction("hidden_dropout")},
        attention={
            "module": "attention", "projections": Projections(packed="query_key_value", output="dense"),
            "packed_layout": "heads", "bias": Flag("attention_bias", True),
            "output_bias": Flag("attention_bias", True), "rotary_size": RotarySize(0.25),
            "kv_heads": Integer("num_attention_heads"),
        },
        feed_forward={**_FOUR_H, "bias": True,
                      "activation_module": "act", "activation": Activation(("hidden_act",), "gelu")},
    ),
    "gpt_bigcode": Family(
        name="GPTBigCode", layer_count="n_layer", positions="n_positions", longest=1024,
        decoder={
            **_GPT, "hidden_size": Integer("n_embd"), "learned_positions": Integer("n_positions", 1024),
            "is_tied": TIED, "dropout": Fraction("embd_pdrop", 0.1),
        },
        block={"norm": "layer", "norms": Norms("ln_1", "", "ln_2"), "dropout": Fraction("resid_pdrop", 0.1)},
        attention={
            **_GPT_HEADS, "kv_heads": Choice("multi_query", {True: 1, False: Integer("n_head")}, True),
            "projections": Projections(packed="c_attn", output="c_proj"), "rotary_size": 0,
            "packed_layout": Choice("multi_query", {True: "split", False: "heads"}, True),
            "dropout": Fraction("attn_pdrop", 0.1), "bias": True, "output_bias": True,
        },
        feed_forward={**_GPT_PART, "activation": Activation(("activation_function",), "gelu_pytorch_tanh")},
    ),
    "codegen": Family(
        name="CodeGen", layer_count="n_layer", positions="n_positions",
        decoder={
            **_GPT, "hidden_size": Integer("n_embd"), "head_bias": True, "dropout": Fraction("embd_pdrop"),
        },
        block={
            "norm": "layer", "norms": Norms("ln_1", "", ""), "is_parallel": True, "dropout": Fraction("resid_pdrop"),
        },
        attention={
            **_GPT_HEADS,
            "projections": Projections(packed="qkv_proj", output="out_proj"), "rotary_size": Integer("rotary_dim", 64),
            "dropout": Fraction("attn_pdrop"),
        },
        feed_forward={**_GPT_PART, "up": "fc_in", "down": "fc_out"},
    ),
}  # fmt: skip
