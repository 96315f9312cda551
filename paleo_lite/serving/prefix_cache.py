"""Prefix caching: prompts that begin as earlier ones did find the keys and values of their first blocks.

A prompt is cut into blocks, and the hash of a block covers all tokens up to its end, so that equal hashes mean equal
prefixes. A block is found if all blocks before it are. Blocks that no request holds stay until their room is needed;
then the least recently used one goes. A request gives its blocks back from the last to the first, so that the ends of
prompts go before their beginnings (vLLM, design document "Automatic Prefix Caching").
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from ..errors import BadValue


class PrefixCache:
    """Blocks of prompts by hash, and the requests that hold them."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # requests that hold a block, of blocks with any
        self._unused: OrderedDict[int, None] = OrderedDict()  # blocks without a holder, the least recently used first

    @property
    def held_blocks(self) -> int:
        """Number of blocks that requests hold."""
        return len(self._holders)

    def count_found(self, hashes: Sequence[int]) -> int:
        """Return how many blocks a prompt finds: those before the first that is not there."""
        for number, block in enumerate(hashes):
            if block not in self._holders and block not in self._unused:
                return number
        return len(hashes)

    def count_unused(self, hashes: Iterable[int]) -> int:
        """Return how many of some blocks nobody holds, so that holding them takes room from new ones."""
        return sum(block not in self._holders for block in hashes)

    def hold(self, hashes: Iterable[int]) -> int:
        """Let a request hold blocks, which are there afterwards; return how many nobody held before."""
        newly_held = 0
        for block in hashes:
            if block not in self._holders:
                newly_held += 1
                self._unused.pop(block, None)
            self._holders[block] = self._holders.get(block, 0) + 1
        return newly_held

    def release(self, hashes: Sequence[int]) -> int:
        """Let a request give blocks back, the last one first; return how many nobody holds any more."""
        unheld = 0
        for block in reversed(hashes):
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                self._unused[block] = None
                unheld += 1
        return unheld

    def evict(self, most: int) -> None:
        """Drop the least recently used blocks that nobody holds, until at most some of them are left."""
        while len(self._unused) > max(most, 0):
            self._unused.popitem(last=False)


def prefix_hit_rate(prompts: Iterable[Sequence[int]], blocks: int | None = None) -> float:
    """Return the fraction of the blocks of prompts that are found, if each prompt ends before the next one begins.

    Parameters
    ----------
    prompts : iterable of sequence of int
        Hashes of the blocks of each prompt, as in `Traffic.hashes`.
    blocks : int, optional
        Blocks that the cache holds; None for a cache without a limit.

    Raises
    ------
    BadValue
        If the number of blocks is below 1, or there is no block.
    """
    if blocks is not None and blocks < 1:
        raise BadValue(f"a prefix cache holds at least 1 block (got {blocks})")
    cache = PrefixCache()
    found = total = 0
    for hashes in prompts:
        found += cache.count_found(hashes)
        total += len(hashes)
        cache.hold(hashes)
        cache.release(hashes)
        if blocks is not None:
            cache.evict(blocks)
    if not total:
        raise BadValue("the prompts have no blocks whose hashes could be found")
    return found / total
