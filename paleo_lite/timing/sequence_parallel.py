"""The time of a denoiser whose sequence is split over devices: Ulysses and ring attention, as xDiT combines them.

Each of ``ulysses * ring`` devices holds its share of the tokens, with all parameters. Before and after attention an
all-to-all in groups of ``ulysses`` devices exchanges tokens for heads (Jacobs et al. 2023, DeepSpeed Ulysses), and the
keys and values of ``ring`` groups pass around a ring (Liu et al. 2023), whose partial results are merged after every
step (Fang and Zhao 2024, USP)::

    device = device of one / devices + all-to-all + ring / 2 + merging
    host = host of one + attentions * (attention_s + 4 * all_to_all_s + (ring - 1) * ring_step_s)
    time = sqrt(device^2 + host^2)

Half of the ring's traffic is hidden behind the attention of the previous step.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import msgspec
import numpy as np

from ..counting import Layer
from ..errors import BadValue
from ..machines import Device
from ..units import check_integer, element_bytes
from .offload import peer_bandwidth_bytes_per_s
from .prediction import Prediction

_MAX_DEVICES = 4096
_HIDDEN_SHARE_OF_RING = 0.5


class SequenceConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constants of splitting the sequence under xDiT."""

    # Seconds of the host per attention, per all-to-all and per further step of the ring.
    attention_s: float
    all_to_all_s: float
    ring_step_s: float
    bandwidth_share: float  # share of the data-sheet bandwidth between devices that the exchanges reach
    merge_bytes: float  # bytes that a step of the ring moves in the device's memory per element of its queries
    deviation: float  # deviation of the logarithm of the time of held-out pipelines on several devices


class SequenceSplit(NamedTuple):
    """Number of devices over which a denoiser's sequence is split, by tokens for heads and around a ring; and number of
    such groups, of which each computes one of the predictions of classifier-free guidance."""

    ulysses: int = 1
    ring: int = 1
    guidance: int = 1

    @property
    def sequence_devices(self) -> int:
        """Number of devices that share a sequence."""
        return self.ulysses * self.ring

    @property
    def devices(self) -> int:
        """Number of all devices."""
        return self.sequence_devices * self.guidance


ONE_DEVICE = SequenceSplit()


def make_split(ulysses: int | None, ring: int | None, guidance_parallel: bool) -> SequenceSplit:
    """Return a split; raise BadValue if a number is not an integer >= 1, or there are too many devices."""
    split = SequenceSplit(1 if ulysses is None else ulysses, 1 if ring is None else ring, 2 if guidance_parallel else 1)
    for name, value in zip(("--ulysses", "--ring"), split[:2]):
        check_integer(name, value, 1)
    if split.devices > _MAX_DEVICES:
        raise BadValue(f"--ulysses times --ring must be at most {_MAX_DEVICES:,} devices (got {split.devices:,})")
    return split


def self_attentions(layers: tuple[Layer, ...]) -> list[Layer]:
    """Return the attentions of a denoiser over its own tokens; all attentions where those are not softmax attention."""
    attentions = [layer for layer in layers if layer.kind == "attention"]
    return [layer for layer in attentions if layer.inputs[0][-2] == layer.inputs[1][-2]] or attentions


def split_time_s(prediction: Prediction, split: SequenceSplit, constants: SequenceConstants) -> float:
    """Return the seconds of a run of a denoiser over several devices, from its prediction on one.

    Raise BadValue if the heads or tokens cannot be divided, or the devices have no link.
    """
    terms, device = prediction.terms, prediction.device
    attentions = self_attentions(prediction.layers)
    _check_split(prediction.network, attentions, split)
    link = _peer_bandwidth(device) * constants.bandwidth_share
    elements = sum(prod(layer.inputs[0]) for layer in attentions) * prediction.batch_size / split.sequence_devices
    exchanged_bytes = elements * element_bytes(prediction.workload.precision)
    all_to_all_s = 4 * exchanged_bytes * (split.ulysses - 1) / split.ulysses / link
    ring_s = 2 * exchanged_bytes * (split.ring - 1) / link
    merge_s = constants.merge_bytes * elements * (split.ring - 1) / device.bandwidth_bytes_per_s
    total_s = float(terms.layers_s.sum())
    alone_s = total_s / terms.host_slowdown
    device_s = alone_s / split.sequence_devices + all_to_all_s + (1 - _HIDDEN_SHARE_OF_RING) * ring_s + merge_s
    per_attention_s = 0.0
    if split.sequence_devices > 1:
        per_attention_s = constants.attention_s + (split.ring - 1) * constants.ring_step_s
    if split.ulysses > 1:
        per_attention_s += 4 * constants.all_to_all_s
    exchanges_s = constants.all_to_all_s * (split.guidance - 1)
    host_s = float(np.sqrt(max(total_s**2 - alone_s**2, 0.0))) + len(attentions) * per_attention_s + exchanges_s
    return float(np.hypot(device_s, host_s)) + terms.overhead_s


def _check_split(network: str, attentions: list[Layer], split: SequenceSplit) -> None:
    heads = min((layer.inputs[0][-3] for layer in attentions), default=1)
    tokens = min((layer.inputs[0][-2] for layer in attentions), default=1)
    if heads % split.ulysses:
        raise BadValue(
            f"--ulysses must divide the {heads} heads of {network} (got {split.ulysses}): use --ring for more devices"
        )
    if split.sequence_devices > tokens:
        raise BadValue(f"{network} has {tokens:,} tokens, which {split.sequence_devices:,} devices cannot share")


def _peer_bandwidth(device: Device) -> float:
    bandwidth = peer_bandwidth_bytes_per_s(device)
    if bandwidth is None:
        raise BadValue(
            f"--ulysses and --ring need a link between devices, and the hardware file of {device.name} names none"
        )
    return bandwidth
