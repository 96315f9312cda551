"""Bytes of the weights of a checkpoint as its files have them, by the parts of the network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import prod

import msgspec

from ..counting import Layer
from ..counting.kinds import is_convolution
from ..counting.places import is_in_tower, parts_of
from ..errors import BadDescriptor
from ..formats import FORMATS, Part
from .safetensors_file import FileTensor
from .stored_weights import StoredWeights

WIDE_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Types of numbers that engines convert to the 16 bits of the model, except of scales."""

_SCALE = re.compile(
    r"(scale|scales|zeros|zero_point|absmax|quant_map|g_idx|input_scale|qzeros|_scale_\w+|quant_state.*)$"
)
_BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.")
_TOWER = re.compile(r"(^|\.)(visual|vision\w*|audio\w*|mm_projector|multi_modal_projector|embed_vision|embed_audio)\.")
_NEXT_TOKEN = re.compile(r"(^|\.)(mtp|nextn)\w*\.")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens\w*|wte|word_embeddings|embeddings?|embed_in|tok_embeddings|embed)\.")
_HEAD = re.compile(r"^(\w+\.)?(lm_head|embed_out|output|head)\.")
_EXPERTS = re.compile(r"\.experts\.|\.experts\w*$|experts_\w+$")
_ROUTER = re.compile(r"\.(gate|router)(\.\w+)*\.(weight|\w*scale\w*)$")

_FORMATS = {"F8_E4M3": "fp8", "F8_E5M2": "fp8", "I8": "int8", "U8": "fp4", "I32": "int4", "F4": "fp4"}
"""Formats of the matrices of a checkpoint whose config does not say how it is quantized, by type."""

MOST_RATIO = 2.0
"""Largest ratio, either way, of the bytes in the files to those of the config's formats."""


def measure_checkpoint(
    path: str,  # path of the config, for messages
    stored: StoredWeights | None,  # formats by the config; None for 16 bits
    tensors: Sequence[FileTensor],  # tensors of the files
    layers: Sequence[Layer],  # layers of the whole network
    blocks: int,  # number of its blocks; further ones in the files predict further tokens, and are left out
) -> StoredWeights | None:
    """Return the formats of a checkpoint with the bytes that its files have.

    Raise BadDescriptor if the files are not of the checkpoint that the config describes.
    """
    if all(tensor.dtype in WIDE_TYPES for tensor in tensors):
        return stored
    measured = _bytes_by_part(tensors, blocks)
    if stored is None:
        stored = _formats_of_files(tensors, blocks)
    ratios: list[tuple[Part, float]] = []
    for part, (predicted, wide) in _predicted_bytes_by_part(stored, layers).items():
        if not predicted or part not in measured:
            continue
        ratio = (measured[part] - wide) / predicted
        if not 1 / MOST_RATIO < ratio < MOST_RATIO:
            raise BadDescriptor(
                f"{path}: the files beside it have {measured[part]:,} bytes of {part} weights, but its formats would "
                f"be {round(predicted + wide):,}: they are not of one checkpoint"
            )
        ratios.append((part, ratio))
    return msgspec.structs.replace(stored, ratios=tuple(ratios))


def _bytes_by_part(tensors: Sequence[FileTensor], blocks: int) -> dict[Part, int]:
    """Return the bytes of matrices and scales by part, with wide numbers in 16 bits."""
    sizes: dict[Part, int] = {}
    for tensor in tensors:
        part = part_of_tensor(tensor, blocks)
        if part is not None:
            is_wide = tensor.dtype in WIDE_TYPES and not _SCALE.search(tensor.name)
            sizes[part] = sizes.get(part, 0) + (2 * prod(tensor.shape) if is_wide else tensor.stored_bytes)
    return sizes


def part_of_tensor(tensor: FileTensor, blocks: int) -> Part | None:
    """Return the part of a tensor by its name; None for norms and biases, vision towers and next-token layers."""
    name = tensor.name
    block = _BLOCK.search(name)
    if _TOWER.search(name) or _NEXT_TOKEN.search(name) or (block is not None and int(block[1]) >= blocks):
        return None
    is_vector = len(tensor.shape) < 2 or name.endswith((".bias", "_bias", "conv1d.weight", "norm.weight"))
    if is_vector and tensor.dtype in WIDE_TYPES and not _SCALE.search(name):
        return None
    if _HEAD.search(name):
        return "head"
    if block is None:
        return "embedding" if _EMBEDDING.search(name) else None
    if _EXPERTS.search(name):
        return "experts"
    return "router" if _ROUTER.search(name) else "dense"


def _predicted_bytes_by_part(stored: StoredWeights, layers: Sequence[Layer]) -> dict[Part, tuple[float, float]]:
    """Return the bytes of the quantized and of the 16-bit matrices of a network, by part and by the formats."""
    sizes: dict[Part, tuple[float, float]] = {}
    for layer, part in zip(layers, parts_of(layers, reads_tokens=True)):
        if part is None or not layer.parameters or is_convolution(layer) or is_in_tower(layer):
            continue
        layer_format, numbers = stored.format_of(layer, part), prod(layer.weights[0])
        predicted, wide = sizes.get(part, (0.0, 0.0))
        if layer_format is None:
            wide += 2 * numbers
        else:
            predicted += layer_format.bytes_per_number * numbers
        sizes[part] = predicted, wide
    return sizes


def _formats_of_files(tensors: Sequence[FileTensor], blocks: int) -> StoredWeights:
    """Return the formats of a checkpoint by the types of its tensors."""
    parts: dict[Part, None] = {}
    bytes_of_type = Counter[str]()
    for tensor in tensors:
        part = part_of_tensor(tensor, blocks)
        if part is not None and tensor.dtype in _FORMATS and not _SCALE.search(tensor.name):
            parts[part] = None
            bytes_of_type[tensor.dtype] += tensor.stored_bytes
    if not parts:
        return StoredWeights("files", None)
    [(main_type, _)] = bytes_of_type.most_common(1)
    main = FORMATS[_FORMATS[main_type]]
    return StoredWeights("files", main, parts=tuple(part for part in parts if part != "router"))
