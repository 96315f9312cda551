"""Requests of networks that write what is said: windows of sound, whose answers have few tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BadValue

if TYPE_CHECKING:
    from ..architectures import Network
    from .requests import Traffic


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
