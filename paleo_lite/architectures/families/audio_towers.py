"""Parameters of audio encoders of language models, by the ``model_type`` of their config.

Only their weights are counted: they stay on the device while text is written. Each formula adds up the matrices of the
module of ``transformers`` 5 of the same name. The key ``text_hidden_size`` is that of the text config.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from ..config import Config


def _linear(inputs: int, outputs: int) -> int:
    """Return the parameters of a linear layer with a bias."""
    return (inputs + 1) * outputs


def _whisper_blocks(config: Config, key_bias: int = 0) -> int:
    """Return the parameters of the blocks of a Whisper encoder, whose key projection has no bias."""
    width, inner = config.positive_integer("d_model", 1280), config.positive_integer("encoder_ffn_dim", 5120)
    attention = 4 * width**2 + (3 + key_bias) * width
    block = attention + _linear(width, inner) + _linear(inner, width) + 4 * width
    return config.positive_integer("encoder_layers", 32) * block


def _whisper(config: Config) -> int:
    """Return the parameters of a Whisper encoder without a table of positions: convolutions, blocks and a norm."""
    width, bins = config.positive_integer("d_model", 1280), config.positive_integer("num_mel_bins", 128)
    return _linear(3 * bins, width) + _linear(3 * width, width) + _whisper_blocks(config) + 2 * width


def _qwen2_audio(config: Config) -> int:
    width, positions = config.positive_integer("d_model", 1280), config.positive_integer("max_source_positions", 1500)
    return _whisper(config) + positions * width + _linear(width, config.positive_integer("text_hidden_size"))


def _qwen2_5_omni(config: Config) -> int:
    outputs = config.positive_integer("output_dim", 3584)
    return _whisper(config) + 2 * outputs + _linear(config.positive_integer("d_model", 1280), outputs)


def _qwen3_omni(config: Config) -> int:
    width, channels = config.positive_integer("d_model", 1280), config.positive_integer("downsample_hidden_size", 480)
    bins = config.positive_integer("num_mel_bins", 128)
    convolutions = _linear(9, channels) + 2 * _linear(9 * channels, channels) + channels * ceil(bins / 8) * width
    outputs = _linear(width, width) + _linear(width, config.positive_integer("output_dim", 3584))
    return convolutions + _whisper_blocks(config, key_bias=1) + 2 * width + outputs


def _voxtral(config: Config) -> int:
    width, inner = config.positive_integer("hidden_size", 1280), config.positive_integer("intermediate_size", 5120)
    layers, text = config.positive_integer("num_hidden_layers", 32), config.positive_integer("text_hidden_size")
    names = {"d_model": width, "encoder_ffn_dim": inner, "encoder_layers": layers}
    positions = config.positive_integer("max_source_positions", 1500) * width
    return _whisper(Config({**config.fields, **names}, config.where)) + positions + (inner + text) * text


def _gemma3n(config: Config) -> int:
    """Return the parameters of a conformer (Gulati et al. 2020) behind two convolutions, and of its embedder."""
    width, text = config.positive_integer("hidden_size", 1536), config.positive_integer("text_hidden_size")
    heads, taps = (
        config.positive_integer("conf_num_attention_heads", 8),
        config.positive_integer("conf_conv_kernel_size", 5),
    )
    attention = 5 * width**2 + width // heads + 2 * width  # with the projection of relative positions
    feed_forward = 8 * width**2 + 2 * width
    convolution = 3 * width**2 + taps * width + 2 * width
    blocks = config.positive_integer("conf_num_hidden_layers", 12) * (
        attention + 2 * feed_forward + convolution + width
    )
    channels = config.fields.get("sscp_conv_channel_size", [128, 32])
    if not isinstance(channels, list) or not channels or not all(isinstance(size, int) for size in channels):
        raise config.fail(f"$.sscp_conv_channel_size must list integers (got {channels!r})")
    convolutions = sum(9 * before * after + after for before, after in zip([1, *channels], channels))
    bins = ceil(config.positive_integer("input_feat_size", 128) / 2 ** len(channels))
    embedder = config.positive_integer("vocab_size", 128) * width + 2 * width + width * text
    subsampling: int = convolutions + channels[-1] * bins * width
    return blocks + subsampling + embedder


def _phi4mm(config: Config) -> int:
    """Return the parameters of a conformer behind separable convolutions, and of projections for speech and images."""
    width, inner = config.positive_integer("attention_dim", 1024), config.positive_integer("linear_units", 1536)
    text, channels = config.positive_integer("text_hidden_size"), width
    feed_forward = 2 * width + _linear(width, 2 * inner) + _linear(inner, width)
    separable = (config.positive_integer("kernel_size", 3) + 1) * width + _linear(width, width)
    convolution = 2 * width + _linear(width, 2 * width) + 2 * width + separable + _linear(width, width)
    block = 2 * feed_forward + 4 * _linear(width, width) + convolution + 4 * width
    bins = ceil(config.positive_integer("input_size", 80) / 8)
    subsampling = 10 * channels + 2 * (10 * channels + _linear(channels, channels)) + _linear(channels * bins, width)
    projections = 2 * (_linear(width, text) + _linear(text, text))
    return config.positive_integer("num_blocks", 24) * block + subsampling + projections


ENCODERS: dict[str, Callable[[Config], int]] = {
    "qwen2_audio_encoder": _qwen2_audio, "qwen2_5_omni_audio_encoder": _qwen2_5_omni,
    "qwen3_omni_moe_audio_encoder": _qwen3_omni, "voxtral_encoder": _voxtral, "gemma3n_audio": _gemma3n,
    "phi4mm_audio": _phi4mm,
}  # fmt: skip
"""Formulas by model type."""


def audio_parameters(
    fields: dict[str, Any],  # the audio config, with the key ``text_hidden_size``
    where: str,  # path of the config, for messages
) -> int | None:
    """Return the parameters of an audio encoder and of its projection to the text model; None for an unknown type."""
    formula = ENCODERS.get(str(fields.get("model_type")))
    return None if formula is None else formula(Config(fields, where))
