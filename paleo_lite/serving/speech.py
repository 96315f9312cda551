"""Requests of networks that write what is said: windows of sound, whose answers have few tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from ..engines.kernels import ExchangeKernel, ExpertsKernel
from ..engines.records.record import Server
from ..errors import BadValue

if TYPE_CHECKING:
    from ..architectures import Network
    from .placement import ModelOnDevice
    from .requests import Traffic


def with_windows(engine: Server, on_device: ModelOnDevice) -> Server:
    """Return an engine that computes no more windows of sound in an iteration than its tokens have positions for.

    vLLM's limit of encoder tokens is that of the tokens of an iteration (``max_num_encoder_input_tokens``), and SGLang
    counts the positions of an encoder among them; at least one window is computed.
    """
    assert on_device.kernels is not None
    encoder = next(
        counted.kernel for counted in on_device.kernels.of_iteration("prefill", 1) if counted.kernel.rows == "encoded"
    )
    assert not isinstance(encoder, ExpertsKernel | ExchangeKernel)
    return structs.replace(engine, most_prompts=max(engine.max_batched_tokens // encoder.positions, 1))


def check_lengths(network: Network, traffic: Traffic) -> None:
    """Raise BadValue if the tokens of a request are more than the decoder has positions."""
    positions = None if network.lengths is None else network.lengths.longest
    longest = int((traffic.input_tokens + traffic.output_tokens).max())
    if positions is not None and longest > positions:
        raise BadValue(
            f"{network.name} writes at most {positions} tokens of a window of sound, with those that begin the answer: "
            f"give fewer `--input-tokens` and `--output-tokens` (got {longest:,})"
        )


def speech_notes(network: Network) -> list[str]:
    """Return notes on the requests of a network that writes what is said."""
    return [
        f"each request is one window of sound, which the encoder of {network.name} reads whole; input tokens are those "
        "that begin the answer",
        "the host's reading of the sound, and its spectrogram, are not counted",
    ]
