"""A network under an engine on the devices of a replica: formats, division, and the kernels of one device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import product

import msgspec

from ..architectures import Network
from ..architectures.network import SequenceOptions
from ..architectures.stored_weights import StoredWeights
from ..counting import Layer
from ..counting.kinds import is_attention, is_expert_layer
from ..counting.places import parts_of
from ..errors import BadDegree, BadValue
from ..formats import Part
from ..machines import Device
from ..timing.memory import model_bytes
from ..timing.workload import Workload
from .blocks import Fusion, exchange_tokens, network_kernels
from .constants import EngineConstants, generation_of
from .division import LinkedDevices
from .kernel_formats import (
    Formats,
    PartFormats,
    checkpoint_formats,
    choose_formats,
    has_constants,
    kernel_rates,
    kernels_on,
)
from .kernels import AttentionKernel, CountedKernel, ExpertsKernel
from .memory import padding_bytes, stored_weight_bytes
from .records import ENGINES, KERNELS, kernels_of
from .speech import speech_kernels
from .step import EngineStep

CHECKED_CONTEXT = 512
"""Tokens in the cache of the network that is checked: enough for caches that hold a vector for several tokens."""

KERNEL_MODEL = "kernels of the engine, with constants fitted to published kernels and servers"
"""The time model of networks whose engine's kernels are known, as text."""

NEEDS_KERNELS = (
    "needs the kernels of an engine, which are known for NVIDIA's GPUs from Ampere on and Intel's Xe2 with the "
    "calibrated time model"
)
"""End of the sentence on an option that needs the kernels of an engine, where layers are timed."""

_MIXERS = ("attention", "indexer", "recurrence")
"""Roles of the layers whose products are projections of attention, or of what stands in its place."""


class _FusedNetwork:
    """A network under an engine, as a key: equal to another one made from the same config, with the same fusion."""

    def __init__(self, network: Network, fusion: Fusion) -> None:
        self.network, self.fusion = network, fusion

    def __hash__(self) -> int:
        return hash((self.network.rebuild, id(self.fusion)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _FusedNetwork):
            return False
        return self.network.rebuild == other.network.rebuild and self.fusion is other.fusion


@cache
def fusion_of(engine: str) -> Fusion:
    """Return what an engine fuses."""
    return Fusion(KERNELS[engine].launches, KERNELS[engine].sources)


@lru_cache(maxsize=64)
def _cached_kernels(fused: _FusedNetwork, phase: str, context: int, tensor: int) -> tuple[CountedKernel, ...]:
    """Return the kernels of a network, which deployments in other formats or with other experts share."""
    if fused.network.is_speech_model:
        return tuple(speech_kernels(fused.network, phase, fused.fusion))
    return tuple(network_kernels(fused.network, phase, context=context, tensor=tensor, fusion=fused.fusion))


class EngineKernels(msgspec.Struct, frozen=True, eq=False):
    """A network under an engine, on one of the devices that it is divided among."""

    step: EngineStep  # times of kernels
    fusion: Fusion  # what the engine fuses
    workload: Workload  # the undivided network, and its formats

    def of_iteration(self, phase: str, context: int) -> list[CountedKernel]:
        """Return the kernels of an iteration, with the exchanges of tokens between attention groups.

        The context is that in the cache, or the length of the longest prompt.
        """
        devices, division = self.step.devices, self.step.devices.division
        fused = _FusedNetwork(self.workload.network, self.fusion)
        kernels = list(_cached_kernels(fused, phase, context, division.attention_tensor))
        if division.attention_data_parallel > 1:
            _, _, operand_bytes = kernel_rates(self.step.device, self.step.formats.experts)
            of_engine = KERNELS[self.step.engine]
            mode = of_engine.decode_exchange if phase == "decode" else of_engine.prompt_exchange
            kernels = exchange_tokens(kernels, division.tensor, operand_bytes, devices.nodes, mode)
        return kernels

    def weight_bytes(self, kernels: Sequence[CountedKernel]) -> float:
        """Return the bytes of the weights on one device, as the engine stores them, from its kernels of decoding."""
        division, network = self.step.devices.division, self.workload.network
        stored_bytes = stored_weight_bytes(self.step, kernels)
        if network.is_speech_model:  # decoding does not launch the kernels of the encoder
            encoder = [counted for counted in self.of_iteration("prefill", 1) if counted.kernel.rows == "encoded"]
            stored_bytes += stored_weight_bytes(self.step, encoder)
        has_own_formats = isinstance(self.workload.stored_format, StoredWeights)
        if has_own_formats and division.attention_data_parallel == 1 and network.rebuild is not None:
            # Checkpoints have modules in another format than most.
            options = SequenceOptions(
                context=CHECKED_CONTEXT, phase="decode", tensor_parallel=division.attention_tensor
            )
            stored_bytes = float(model_bytes(self.workload.with_changes(network=network.rebuild(options)))[0])
        return stored_bytes + padding_bytes(self.step, kernels)


def engine_speaks_for(network: Network, precision: str, device: Device) -> bool:
    """Return whether the kernels of engines were measured for a question: a config, a precision and a device."""
    is_served = network.rebuild is not None and (network.is_language_model or network.is_speech_model)
    return is_served and precision not in ("fp64", "fp32", "tf32") and has_constants(device)


def place_kernels(
    workload: Workload,
    device: Device,
    engine: str,
    *,
    kv_cache: str,
    devices: LinkedDevices,
    constants: EngineConstants | None = None,
) -> EngineKernels:
    """Return a network with the kernels of an engine of `ENGINES`, on one of the devices that it is divided among.

    Raise BadValue if a degree does not divide the heads or the experts.
    """
    name = kernels_of(engine)
    network, fusion = workload.network, fusion_of(name)
    assert network.rebuild is not None
    division = devices.division
    network.rebuild(SequenceOptions(phase="decode", tensor_parallel=division.attention_tensor, blocks=1))
    fused = _FusedNetwork(network, fusion)
    kernels = [
        counted.kernel for counted in _cached_kernels(fused, "decode", CHECKED_CONTEXT, division.attention_tensor)
    ]
    _check_experts(
        [kernel for kernel in kernels if isinstance(kernel, ExpertsKernel)], division.expert_parallel, network.name
    )
    formats = _formats_of(
        workload,
        device,
        kv_cache,
        has_experts=any(isinstance(kernel, ExpertsKernel) for kernel in kernels),
        is_latent=any(isinstance(kernel, AttentionKernel) and kernel.is_latent for kernel in kernels),
    )
    engine_kernels = ENGINES[engine].kernels
    if engine_kernels is not None:
        generation = generation_of(device)
        replaced = engine_kernels.expert_formats.get(generation, {})
        quantising = engine_kernels.quantising.get(generation, ())
        experts = replaced.get(formats.experts, formats.experts)
        formats = msgspec.structs.replace(formats, experts=experts, quantising=quantising)
    return EngineKernels(EngineStep(device, name, formats, devices, constants), fusion, workload)


def _check_experts(mixtures: list[ExpertsKernel], degree: int, name: str) -> None:
    if degree == 1:
        return
    if not mixtures:
        raise BadDegree("--expert-parallel", None, f"needs a mixture of experts; {name} is not one")
    for mixture in mixtures:
        if mixture.experts % degree:
            raise BadDegree("--expert-parallel", degree, f"does not divide the {mixture.experts} experts of {name}")


def _formats_of(workload: Workload, device: Device, kv_cache: str, *, has_experts: bool, is_latent: bool) -> Formats:
    """Return the formats of the kernels: those of a checkpoint, or those that the question names."""
    stored = part_formats(workload)
    if stored is not None:
        return kernels_on(checkpoint_formats(workload.precision, stored, kv_cache, device), device)
    if workload.weights == "mxfp4" and not has_experts:
        raise BadValue(
            f"engines have mxfp4 kernels for experts only, and {workload.network.name} has none: "
            "store weights in nvfp4, fp8 or int4"
        )
    chosen = choose_formats(
        workload.precision, workload.weights, kv_cache, has_experts=has_experts, has_latent_attention=is_latent
    )
    return kernels_on(chosen, device)


def part_formats(workload: Workload) -> PartFormats | None:
    """Return the formats that most weights of a checkpoint have by part; None where the question names a format."""
    stored = workload.stored_format
    if not isinstance(stored, StoredWeights):
        return None
    layers = workload.layers
    parts = parts_of(layers, workload.reads_tokens)

    def main_name(part: Part, is_projection: bool = False) -> str | None:
        chosen = [
            (layer, layer_part)
            for layer, layer_part in zip(layers, parts)
            if layer_part == part and (part == "experts" or (layer.place.role in _MIXERS) == is_projection)
        ]
        main = stored.main_format([layer for layer, _ in chosen], [layer_part for _, layer_part in chosen])
        return None if main is None else main.name

    return PartFormats(
        main_name("dense", is_projection=True), main_name("dense"), main_name("experts"), stored.has_narrow_activations
    )


def possible_divisions(layers: Sequence[Layer], devices: int) -> list[tuple[int, int]]:
    """Return pairs of an expert-parallel degree and a number of attention groups that are worth trying, without (1, 1).

    Experts of a mixture are divided among all devices or by tensor parallelism. Attention is computed for sequences of
    their own where there are fewer heads of keys and values than devices, as with latent attention, so that tensor
    parallelism would store keys and values several times. The layers are those of the undivided network.
    """
    experts = {layer.weights[0][0] for layer in layers if is_expert_layer(layer)}
    if not experts or devices == 1:
        return []
    kv_heads = [layer.inputs[1][1] for layer in layers if is_attention(layer)]
    has_few_kv_heads = bool(kv_heads) and min(kv_heads) < devices
    degrees = (1, devices) if all(number % devices == 0 for number in experts) else (1,)
    groups = (1, devices) if has_few_kv_heads else (1,)
    return [pair for pair in product(degrees, groups) if pair != (1, 1)]
