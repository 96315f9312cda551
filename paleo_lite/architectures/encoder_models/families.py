"""Model types of encoders: one record each, which maps the keys of a config to the traits of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..tape import Config
from .traits import AudioEmbedding, Blocks, EncoderModel, Head, ImageEmbedding, TextEmbedding


class EncoderFamily(NamedTuple):
    """A model type.

    Attributes
    ----------
    describe : callable or None
        Function from a config and the class it names to an `EncoderModel`; None for T5, which has layers of its own.
    classes : tuple of str
        Classes of ``transformers`` that are read; the first one where a config names none.
    positions : str
        The key of the number of positions that the model knows.
    longest : int or None
        That number where the config does not give it; None: unlimited.
    reads : {"text", "images", "audio"}
    layer_count : str
        The key of the number of blocks.
    inputs : int
        Number of sequences that the model reads.
    generates : bool
        Whether the model has a decoder with a KV cache.
    """

    describe: Callable[[Config, str], EncoderModel] | None
    classes: tuple[str, ...]
    positions: str = "max_position_embeddings"
    longest: int | None = 512
    reads: str = "text"
    layer_count: str = "num_hidden_layers"
    inputs: int = 1
    generates: bool = False


def _blocks(config: Config, **traits: object) -> Blocks:
    """Return blocks with the keys that most configs use."""
    hidden_size = config.positive_integer("hidden_size")
    config.size_per_head("num_attention_heads", hidden_size, "hidden_size")
    defaults: dict[str, object] = {
        "count": config.positive_integer("num_hidden_layers"),
        "heads": config.positive_integer("num_attention_heads"),
        "intermediate_size": config.positive_integer("intermediate_size"),
        "activation": config.activation_name("hidden_act", "gelu"),
        "hidden_size": hidden_size,
        "dropout": config.fraction("hidden_dropout_prob", 0.1),
        "attention_dropout": config.fraction("attention_probs_dropout_prob", 0.1),
    }
    return Blocks(**{**defaults, **traits})  # type: ignore[arg-type]


def _bert(config: Config, class_name: str) -> EncoderModel:
    """BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and ELECTRA (Clark et al. 2020)."""
    model_type = config.fields["model_type"]
    blocks = _blocks(config, is_causal=class_name.endswith("LMHeadModel") and config.boolean("is_decoder", False))
    vocabulary = config.positive_integer("vocab_size")
    is_electra = model_type == "electra"
    size = config.positive_integer("embedding_size", 128) if is_electra else blocks.hidden_size
    embedding = TextEmbedding(
        vocabulary=vocabulary,
        size=size,
        positions=config.positive_integer("max_position_embeddings", 512),
        position_kind="padded" if model_type in ("roberta", "xlm-roberta") else "learned",
        token_types=config.positive_integer("type_vocab_size", 2),
        dropout=config.fraction("hidden_dropout_prob", 0.1),
    )
    is_tied = config.boolean("tie_word_embeddings", True)
    if class_name.endswith(("ForMaskedLM", "LMHeadModel", "ForCausalLM")):
        activation = "gelu" if model_type != "bert" else blocks.activation
        head = Head(kind="masked_lm", outputs=vocabulary, activation=activation, size=size, is_tied=is_tied)
    elif is_electra:
        head = Head()
    else:
        head = Head(kind="pooler")
    return EncoderModel(embedding=embedding, blocks=blocks, head=head)


def _distilbert(config: Config, class_name: str) -> EncoderModel:
    """DistilBERT (Sanh et al. 2019)."""
    hidden_size, vocabulary = config.positive_integer("dim", 768), config.positive_integer("vocab_size", 30522)
    config.size_per_head("n_heads", hidden_size, "dim")
    dropout = config.fraction("dropout", 0.1)
    blocks = Blocks(
        count=config.positive_integer("n_layers", 6),
        heads=config.positive_integer("n_heads", 12),
        intermediate_size=config.positive_integer("hidden_dim", 3072),
        activation=config.activation_name("activation", "gelu"),
        hidden_size=hidden_size,
        dropout=dropout,
        attention_dropout=config.fraction("attention_dropout", 0.1),
    )
    embedding = TextEmbedding(
        vocabulary=vocabulary,
        size=hidden_size,
        positions=config.positive_integer("max_position_embeddings", 512),
        position_kind="learned",
        dropout=dropout,
    )
    head = Head()
    if class_name == "DistilBertForMaskedLM":
        is_tied = config.boolean("tie_word_embeddings", True)
        head = Head(kind="masked_lm", outputs=vocabulary, activation=blocks.activation, is_tied=is_tied)
    return EncoderModel(embedding=embedding, blocks=blocks, head=head)


def _modernbert(config: Config, class_name: str) -> EncoderModel:
    """ModernBERT (Warner et al. 2024): rotary positions, GeGLU, and windows in two of three blocks."""
    count = config.positive_integer("num_hidden_layers")
    every = config.positive_integer("global_attn_every_n_layers", 3)
    window = config.positive_integer("local_attention", 128) // 2
    windows = tuple(None if index % every == 0 else window for index in range(count))
    hidden_size, heads = config.positive_integer("hidden_size"), config.positive_integer("num_attention_heads")
    has_norm_bias = config.boolean("norm_bias", False)
    blocks = _blocks(
        config,
        activation=config.activation_name("hidden_activation", "gelu"),
        is_pre_norm=True,
        has_first_norm=False,
        has_final_norm=True,
        has_norm_bias=has_norm_bias,
        is_packed=True,
        is_gated=True,
        has_bias=config.boolean("attention_bias", False),
        rotary_size=config.size_per_head("num_attention_heads", hidden_size, "hidden_size"),
        windows=windows,
        dropout=None,
        attention_dropout=config.fraction("attention_dropout", 0.0),
        heads=heads,
    )
    vocabulary = config.positive_integer("vocab_size")
    embedding = TextEmbedding(vocabulary=vocabulary, size=hidden_size, has_norm_bias=has_norm_bias, dropout=0.0)
    head = Head()
    if class_name == "ModernBertForMaskedLM":
        head = Head(
            kind="masked_lm",
            outputs=vocabulary,
            activation=config.activation_name("classifier_activation", "gelu"),
            has_bias=config.boolean("decoder_bias", True),
            has_dense_bias=config.boolean("classifier_bias", False),
            has_norm_bias=has_norm_bias,
            is_tied=config.boolean("tie_word_embeddings", True),
        )
    return EncoderModel(embedding=embedding, blocks=blocks, head=head)


def _vit(config: Config, class_name: str) -> EncoderModel:
    """The vision transformer (Dosovitskiy et al. 2021)."""
    dropout = config.fraction("hidden_dropout_prob", 0.0)
    blocks = _blocks(
        config,
        is_pre_norm=True,
        has_final_norm=True,
        dropout=dropout,
        attention_dropout=config.fraction("attention_probs_dropout_prob", 0.0),
    )
    embedding = ImageEmbedding(
        image_size=config.positive_integer("image_size", 224),
        patch_size=config.positive_integer("patch_size", 16),
        channels=config.positive_integer("num_channels", 3),
        adds_position_parameter=True,
        dropout=dropout,
    )
    head = Head(kind="pooler")
    if class_name == "ViTForImageClassification":
        labels = len(config.fields.get("id2label", ())) or 2
        head = Head(kind="classifier", outputs=config.positive_integer("num_labels", labels))
    return EncoderModel(embedding=embedding, blocks=blocks, head=head)


def _siglip_vision(config: Config, class_name: str) -> EncoderModel:
    """The image encoder of SigLIP (Zhai et al. 2023)."""
    activation = config.activation_name("hidden_act", "gelu_pytorch_tanh")
    blocks = _blocks(config, activation=activation, is_pre_norm=True, has_final_norm=True, dropout=None,
                     attention_dropout=config.fraction("attention_dropout", 0.0))  # fmt: skip
    embedding = ImageEmbedding(
        image_size=config.positive_integer("image_size", 224),
        patch_size=config.positive_integer("patch_size", 16),
        channels=config.positive_integer("num_channels", 3),
        has_class_token=False,
    )
    head = Head()
    if config.boolean("vision_use_head", True):
        head = Head(kind="attention_pooling", activation=activation, size=blocks.intermediate_size, heads=blocks.heads)
    return EncoderModel(embedding=embedding, blocks=blocks, head=head)


def _clip_vision(config: Config, class_name: str) -> EncoderModel:
    """The image encoder of CLIP (Radford et al. 2021)."""
    blocks = _blocks(config, activation=config.activation_name("hidden_act", "quick_gelu"), is_pre_norm=True,
                     dropout=None, attention_dropout=config.fraction("attention_dropout", 0.0))  # fmt: skip
    embedding = ImageEmbedding(
        image_size=config.positive_integer("image_size", 224),
        patch_size=config.positive_integer("patch_size", 32),
        channels=config.positive_integer("num_channels", 3),
        has_bias=False,
        has_norm=True,
    )
    return EncoderModel(embedding=embedding, blocks=blocks, head=Head(kind="first_token"))


def _clip_text(config: Config, class_name: str) -> EncoderModel:
    """The text encoder of CLIP (Radford et al. 2021), which is causal."""
    blocks = _blocks(config, activation=config.activation_name("hidden_act", "quick_gelu"), is_pre_norm=True,
                     has_final_norm=True, is_causal=True, dropout=None,
                     attention_dropout=config.fraction("attention_dropout", 0.0))  # fmt: skip
    embedding = TextEmbedding(
        vocabulary=config.positive_integer("vocab_size", 49408),
        size=blocks.hidden_size,
        positions=config.positive_integer("max_position_embeddings", 77),
        position_kind="learned",
        has_norm=False,
        dropout=None,
    )
    return EncoderModel(embedding=embedding, blocks=blocks)


def _encoder_decoder_blocks(config: Config, part: str, **traits: object) -> Blocks:
    """Return the blocks of BART's or Whisper's encoder or decoder."""
    hidden_size = config.positive_integer("d_model")
    config.size_per_head(f"{part}_attention_heads", hidden_size, "d_model")
    defaults: dict[str, object] = {
        "count": config.positive_integer(f"{part}_layers"),
        "heads": config.positive_integer(f"{part}_attention_heads"),
        "intermediate_size": config.positive_integer(f"{part}_ffn_dim"),
        "activation": config.activation_name("activation_function", "gelu"),
        "hidden_size": hidden_size,
        "is_causal": part == "decoder",
        "attention_dropout": config.fraction("attention_dropout", 0.0),
    }
    return Blocks(**{**defaults, **traits})  # type: ignore[arg-type]


def _bart(config: Config, class_name: str) -> EncoderModel:
    """BART (Lewis et al. 2020)."""
    dropout = config.fraction("dropout", 0.1)
    vocabulary, hidden_size = config.positive_integer("vocab_size"), config.positive_integer("d_model")
    embedding = TextEmbedding(
        vocabulary=vocabulary,
        size=hidden_size,
        positions=config.positive_integer("max_position_embeddings", 1024) + 2,  # two rows before the first position
        position_kind="learned",
        is_scaled=True,
        dropout=dropout,
    )
    head = Head()
    if class_name == "BartForConditionalGeneration":
        is_tied = config.boolean("tie_word_embeddings", True)
        head = Head(kind="lm", outputs=vocabulary, has_bias=False, is_tied=is_tied, adds_constant_bias=True)
    return EncoderModel(
        embedding=embedding,
        blocks=_encoder_decoder_blocks(config, "encoder", dropout=dropout),
        head=head,
        decoder_embedding=embedding,
        decoder_blocks=_encoder_decoder_blocks(config, "decoder", dropout=dropout),
    )


def _whisper(config: Config, class_name: str) -> EncoderModel:
    """Whisper (Radford et al. 2022): the encoder reads a spectrogram."""
    dropout = config.fraction("dropout", 0.0)
    vocabulary, hidden_size = config.positive_integer("vocab_size"), config.positive_integer("d_model")
    traits = {
        "is_pre_norm": True, "has_final_norm": True, "has_key_bias": False, "scales_queries": True, "dropout": dropout,
    }  # fmt: skip
    head = Head()
    if class_name == "WhisperForConditionalGeneration":
        head = Head(kind="lm", outputs=vocabulary, has_bias=False)
    return EncoderModel(
        embedding=AudioEmbedding(
            bins=config.positive_integer("num_mel_bins", 80),
            positions=config.positive_integer("max_source_positions", 1500),
        ),
        blocks=_encoder_decoder_blocks(config, "encoder", **traits),
        head=head,
        decoder_embedding=TextEmbedding(
            vocabulary=vocabulary,
            size=hidden_size,
            positions=config.positive_integer("max_target_positions", 448),
            position_kind="learned",
            has_norm=False,
            dropout=dropout,
        ),
        decoder_blocks=_encoder_decoder_blocks(config, "decoder", **traits),
    )


_BERT = EncoderFamily(_bert, ("BertForMaskedLM", "BertModel", "BertLMHeadModel"))
_ROBERTA = EncoderFamily(_bert, ("RobertaForMaskedLM", "RobertaModel"))
FAMILIES = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA._replace(classes=("XLMRobertaForMaskedLM", "XLMRobertaModel")),
    "electra": EncoderFamily(_bert, ("ElectraForMaskedLM", "ElectraModel")),
    "distilbert": EncoderFamily(_distilbert, ("DistilBertForMaskedLM", "DistilBertModel"), layer_count="n_layers"),
    "modernbert": EncoderFamily(_modernbert, ("ModernBertForMaskedLM", "ModernBertModel"), longest=8192),
    "vit": EncoderFamily(
        _vit, ("ViTForImageClassification", "ViTModel"), positions="image_size", longest=None, reads="images"
    ),
    "siglip_vision_model": EncoderFamily(
        _siglip_vision, ("SiglipVisionModel",), positions="image_size", longest=None, reads="images"
    ),
    "clip_vision_model": EncoderFamily(
        _clip_vision, ("CLIPVisionModel",), positions="image_size", longest=None, reads="images"
    ),
    "clip_text_model": EncoderFamily(_clip_text, ("CLIPTextModel",), longest=77),
    "bart": EncoderFamily(
        _bart, ("BartForConditionalGeneration", "BartModel"), longest=1024, layer_count="encoder_layers", inputs=2,
        generates=True,
    ),
    "whisper": EncoderFamily(
        _whisper, ("WhisperForConditionalGeneration", "WhisperModel"), positions="max_target_positions", longest=448,
        reads="audio", layer_count="encoder_layers", inputs=2, generates=True,
    ),
    "t5": EncoderFamily(
        None, ("T5ForConditionalGeneration", "T5Model"), positions="n_positions", longest=None,
        layer_count="num_layers", inputs=2,
    ),
}  # fmt: skip
"""All model types of encoders and encoder-decoders."""
