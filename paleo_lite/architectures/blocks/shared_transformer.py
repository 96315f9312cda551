"""Transformers whose weights several blocks share, before the mixers of these blocks (Zamba2)."""

from __future__ import annotations

from ..builder import Blob
from ..tape import Tape
from .attention import Positions, add_attention
from .block_records import NormKind, SharedTransformer
from .feed_forward import add_feed_forward
from .norms import add_norm

_ADAPTERS = "_adapter_list."
"""Part of the names of adapters, which no two blocks share."""


def add_shared_transformer(
    tape: Tape,
    name: str,  # name of the block
    shared: SharedTransformer,
    norm: NormKind,
    x: Blob,  # input of the block, ``(1, tokens, hidden_size)``
    positions: Positions,
) -> Blob:
    """Add a shared transformer to the input of a block's mixer, and return that input, of the same shape."""
    module = f"{name}.{shared.module}"
    first = len(tape.layers)
    assert positions.embedding is not None
    shape = (*x.shape[:-1], 2 * x.shape[-1])
    both = tape.op(f"{module}.concat", "concat", x, positions.embedding, out=shape, origin="function")
    both = add_norm(tape, f"{module}.{shared.norms.before_mixer}", norm, both)
    name_of_attention = f"{module}.{shared.attention.module}"
    with tape.role("attention", name_of_attention):
        output = add_attention(tape, name_of_attention, shared.attention, both, positions)
    output = add_norm(tape, f"{module}.{shared.norms.before_feed_forward}", norm, output)
    name_of_part = f"{module}.{shared.feed_forward.module}"
    with tape.role("feed-forward", name_of_part):
        output = add_feed_forward(tape, name_of_part, shared.feed_forward, output)
    if shared.is_repeated:
        _share_parameters(tape, first)
    output = tape.linear(f"{name}.{shared.projection}", output, x.shape[-1], bias=False)
    return tape.op(f"{name}.add", "add", x, output)


def _share_parameters(tape: Tape, first: int) -> None:
    """Count the parameters of the layers from an index on with the block that had them first."""
    for index in range(first, len(tape.layers)):
        layer = tape.layers[index]
        if layer.parameters and _ADAPTERS not in layer.name:
            tape.layers[index] = layer._replace(parameters=0)
