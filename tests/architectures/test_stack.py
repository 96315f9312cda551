"""Blocks that are copied equal those that are built one by one.

Tests: architectures/blocks/block.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.architectures import Network, find_network
from paleo_lite.architectures.blocks import block
from paleo_lite.architectures.network import SequenceOptions

NETWORKS = (
    "llama-3-8b", "gemma-2-9b", "gemma-4-e4b", "gpt-oss-20b", "deepseek-v3", "deepseek-v4-flash", "qwen3-next-80b-a3b",
    "qwen3-vl-8b", "mamba-2.8b", "bert-base",
)  # fmt: skip
"""Dense, mixtures, hybrids, a tower, an encoder; caches that later blocks read, several residual streams."""

OPTIONS = (None, SequenceOptions(phase="decode", context=300, tensor_parallel=2))


def build(name: str, options: SequenceOptions | None) -> Network:
    """Return a network that nothing has kept."""
    from paleo_lite.architectures import catalog, model_config

    catalog._read_shipped.cache_clear()
    model_config._rebuild.cache_clear()
    return find_network(name, None, options)


@pytest.mark.spread(8)
@pytest.mark.parametrize("options", OPTIONS, ids=("whole", "decode"))
@pytest.mark.parametrize("name", NETWORKS)
def test_copied_blocks_equal_built_ones(
    monkeypatch: pytest.MonkeyPatch, name: str, options: SequenceOptions | None
) -> None:
    if options is not None and not find_network(name).is_language_model:
        options = SequenceOptions(length=300)
    copied = build(name, options)
    monkeypatch.setattr(block, "_can_be_copied", lambda built, start: False)
    assert build(name, options).layers == copied.layers
