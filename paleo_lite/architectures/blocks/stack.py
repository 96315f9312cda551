"""A list of blocks, most of which equal the block before: such a block is copied instead of built anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...counting import Layer
from ...counting.layer import Place
from ..builder import Blob
from ..tape import Tape
from .attention import Positions
from .block import add_block
from .block_records import Block


class _BuiltBlock(NamedTuple):
    """The layers of a block, from which those of an equal block follow."""

    block: Block
    positions: Positions
    name: str
    first: int  # index of its first layer
    entered: Blob  # the input of the block
    left: Blob  # its output
    layers: tuple[Layer, ...]
    stored: dict[int | None, tuple[Blob, Blob]]  # the keys and values that it stored for later blocks


def add_blocks(
    tape: Tape,
    stack: str,  # name of the list of blocks
    blocks: Iterable[tuple[Block, Positions]],  # and the tensors that each shares with others
    x: Blob,  # input of the first block: see `add_block`
) -> Blob:
    """Add blocks one after another, and return the output of the last."""
    start = len(tape.layers)
    template: _BuiltBlock | None = None
    for number, (block, positions) in enumerate(blocks):
        name = f"{stack}.{number}"
        if template is not None and (template.block, template.positions) == (block, positions):
            x = _copy_block(tape, template, name, number, x)
            continue
        first, entered = len(tape.layers), x
        x = add_block(tape, name, number, block, entered, positions)
        stored = {window: states for window, states in positions.stored.items() if states[0].parent >= first}
        built = _BuiltBlock(block, positions, name, first, entered, x, tuple(tape.layers[first:]), stored)
        template = built if _can_be_copied(built, start) else None
    return x


def _can_be_copied(built: _BuiltBlock, start: int) -> bool:
    """Return whether a block reads only its own layers, its input, and layers before the stack.

    In the first block of a stack the input cannot be told from what all blocks read.
    """
    entered = built.entered.parent
    return entered >= start and all(
        layer.name.startswith(f"{built.name}.")
        and all(parent >= built.first or parent == entered or parent < start for parent in layer.parents)
        for layer in built.layers
    )


def _copy_block(tape: Tape, template: _BuiltBlock, name: str, number: int, x: Blob) -> Blob:
    """Add the layers of a template under another name, which read another input, and return the output."""
    shift = len(tape.layers) - template.first
    old_end = len(template.name)

    def rename(old: str) -> str:
        return name + old[old_end:] if old.startswith(template.name) else old

    def move(parent: int) -> int:
        if parent >= template.first:
            return parent + shift
        return x.parent if parent == template.entered.parent else parent

    copies = []
    for layer in template.layers:
        place = layer.place
        place = Place(
            place.role, rename(place.owner), name, number, rename(place.part), rename(place.module), place.matrix
        )
        parents = tuple([move(parent) for parent in layer.parents])
        copies.append(layer._replace(name=rename(layer.name), parents=parents, place=place))
    tape.extend(copies)
    for window, (key, value) in template.stored.items():
        moved = key._replace(parent=move(key.parent)), value._replace(parent=move(value.parent))
        template.positions.stored[window] = moved
    return template.left._replace(parent=move(template.left.parent))
