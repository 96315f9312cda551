"""The kernels of a network that writes what is said, such as Whisper, under an inference engine.

An engine computes once per request what decoding does not compute again: the encoder over the positions of the sound,
and the keys and values of every block of the decoder that attends to them, which stay in the cache. All else is that of
a language model (https://docs.vllm.ai, ``vllm.model_executor.models.whisper``; Radford et al. 2022, figure 1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from msgspec.structs import replace

from ..architectures import Network
from ..architectures.network import SequenceOptions
from ..counting import Layer
from ..counting.kinds import class_of, is_attention, is_cache, is_convolution, is_embedding
from .blocks import ROTARY, VIEWS, Fusion, GroupedKernel, group_layers, sampling_kernels
from .formulas import RESULT_BYTES
from .kernels import AttentionKernel, CountedKernel, ExchangeKernel, Kernel, Pointwise, ProductKernel

_FIRST_TOKENS = 2
"""Tokens of the decoder with which its kernels are found, which depend on no length."""


def speech_kernels(network: Network, phase: str, fusion: Fusion) -> list[CountedKernel]:
    """Return the kernels of one iteration of prefill or decode, in the order of their launch.

    Those of the encoder have a row for each of its positions ("encoded"); prefill alone has them.
    """
    assert network.rebuild is not None
    options = SequenceOptions(phase="decode", context=_FIRST_TOKENS - 1, fused_attention=True)
    decoding = network.rebuild(options).layers
    # Parts of the decoder that add keys of their own tokens; all other attention is that to the encoder.
    own = {layer.place.part for layer in decoding if is_cache(layer) and layer.inputs}
    if phase == "decode":
        parts = group_layers(decoding, phase, fusion, _FIRST_TOKENS - 1, 1)
        return _counted([*_decoder_kernels(decoding, parts, own, 1), *sampling_kernels(decoding, 1, fusion)])
    options = SequenceOptions(phase="prefill", length=_FIRST_TOKENS, fused_attention=True)
    layers = network.rebuild(options).layers
    positions = encoder_positions(layers)
    repeated = {layer.name for layer in decoding}
    parts = group_layers(layers, phase, fusion, _FIRST_TOKENS, _FIRST_TOKENS)
    decoder = [part for part in parts if layers[part.position].name in repeated]
    encoder = [
        part
        for part in group_layers(layers, phase, fusion, positions, positions)
        if layers[part.position].name not in repeated
    ]
    return _counted([
        *_stem_kernels(layers, positions),
        *(_encoded(part.kernel, positions) for part in encoder if part.kernel.name != ROTARY),
        *_cache_kernels(layers, own, positions),
        *_decoder_kernels(layers, decoder, own, _FIRST_TOKENS),
        *sampling_kernels(layers, 1, fusion),
    ])  # fmt: skip


def encoder_positions(layers: Sequence[Layer]) -> int:
    """Return the positions of the encoder in the layers of a prompt: those of the first attention."""
    return next(layer.inputs[0][2] for layer in layers if is_attention(layer))


def _decoder_kernels(
    layers: Sequence[Layer], parts: Sequence[GroupedKernel], own: set[str], tokens: int
) -> list[Kernel]:
    """Return the kernels of the decoder, whose attention to the encoder has as many keys as this has positions.

    What stands before an attention adds keys and values to the cache where they are those of its own tokens; queries
    are scaled by the kernel of attention itself.
    """
    kernels: list[Kernel] = []
    for part in parts:
        kernel, place = part.kernel, layers[part.position].place
        if isinstance(kernel, AttentionKernel) and place.part not in own:
            name = "attention to the encoder"
            kernel = replace(kernel, name=name, positions=layers[part.position].inputs[1][2])
        if kernel.name != ROTARY:
            kernels.append(kernel)
        elif place.part in own:
            cache = next(layer for layer in layers if is_cache(layer) and layer.place.part == place.part)
            kernels.append(Pointwise("cache", _cache_row_bytes(cache, tokens)))
    return kernels


def _cache_row_bytes(layer: Layer, rows: int) -> float:
    """Return the bytes per row of a kernel that writes keys and values into the cache: each is read and written."""
    return 2 * RESULT_BYTES * sum(prod(shape) for shape in layer.inputs) / rows


def _encoded(kernel: Kernel, positions: int) -> Kernel:
    """Return a kernel of the encoder, with a row for each of its positions."""
    assert isinstance(kernel, ProductKernel | AttentionKernel | Pointwise)
    return replace(kernel, name=f"encoder: {kernel.name}", rows="encoded", positions=positions)


def _stem_kernels(layers: Sequence[Layer], positions: int) -> list[Kernel]:
    """Return the kernels before the blocks of the encoder: convolutions as products, and what moves numbers."""
    before = layers[: next(index for index, layer in enumerate(layers) if layer.place.is_in_block)]
    kernels: list[Kernel] = []
    moved_elements = weights = launches = 0
    for layer in before:
        if is_embedding(layer):
            continue
        weights += sum(prod(shape) for shape in layer.weights)
        if is_convolution(layer):
            columns, depth = prod(layer.outputs[0]) // positions, prod(layer.weights[0][1:])
            kernels.append(
                ProductKernel(
                    "encoder: convolution", columns, depth, part="plain", rows="encoded", is_stored=False,
                    positions=positions,
                )
            )  # fmt: skip
        elif class_of(layer) == "elementwise" and layer.kind not in VIEWS:
            moved_elements += sum(prod(shape) for shape in (*layer.inputs, *layer.outputs))
            launches += 1
    kernels.append(
        Pointwise(
            "encoder: activations and positions", RESULT_BYTES * moved_elements / positions, launches=launches,
            rows="encoded", weights=weights, positions=positions,
        )
    )  # fmt: skip
    return kernels


def _cache_kernels(layers: Sequence[Layer], own: set[str], positions: int) -> list[Kernel]:
    """Return the kernels that write keys and values of the encoder into the cache."""
    kernels: list[Kernel] = []
    for layer in layers:
        if is_cache(layer) and layer.place.part not in own:
            row_bytes = _cache_row_bytes(layer, positions)
            kernels.append(Pointwise("encoder: cache", row_bytes, rows="encoded", positions=positions))
    return kernels


def _counted(kernels: Sequence[Kernel]) -> list[CountedKernel]:
    """Return each of some kernels once, in the order of their first launch, with the number of its launches."""
    assert not any(isinstance(kernel, ExchangeKernel) for kernel in kernels), "the network is on one device"
    return [CountedKernel(kernel, count) for kernel, count in Counter(kernels).items()]
