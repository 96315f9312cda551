"""Prefix caching: prompts that begin as earlier ones did find the keys and values of their first blocks.

A prompt is cut into blocks, and the hash of a block covers all tokens up to its end, so that equal hashes mean equal
prefixes. A block is found if all blocks before it are. Blocks that no request holds stay until their room is needed;
then the least recently used one goes. A request gives its blocks back from the last to the first, so that the ends of
prompts go before their beginnings (vLLM, design document "Automatic Prefix Caching").

Below the memory of the devices there may be tiers: host memory, disk, and a store of all replicas. Computed blocks are
written through to the first tier, and evicted from each tier to the next (SGLang's HiCache, LMCache, vLLM's offloading
connector). What is found there is read before the iteration that needs it: in most engines reading and computing do
not overlap usefully (vLLM, blog of 2026-01-08: its rates at several shares of hits are those of both one after the
other within 3%). Others read a block of the network while the one before it is computed (`Server.overlaps_host_reads`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from ..errors import BadValue
from .requests import Traffic

Block = int | tuple[int, int]
"""Hash of a block; of a part of one with its tokens."""


class PrefixCache:
    """Blocks of prompts by hash, and the requests that hold them.

    Where every block has the same blocks before it in all prompts, those before one that is there are there, and those
    before one that is held are held: who holds a block holds them, and gives them back, or keeps them, after it. What
    is found is looked for by bisection then. Sizes are in blocks of the KV cache; only the last block of a prompt may
    be smaller than the others.
    """

    def __init__(
        self,
        *,
        is_chained: bool = False,  # whether every block has the same blocks before it
        size: int = 1,  # of a block
        lacking: Mapping[Block, int] | None = None,  # by how much some blocks are smaller
    ) -> None:
        self.is_chained, self.size, self.lacking = is_chained, size, lacking or {}
        self._holders: dict[Block, int] = {}  # requests that hold a block, of all blocks that are there
        self._unused: OrderedDict[Block, None] = OrderedDict()  # blocks without a holder, the least recently used first
        self._unused_lacking = 0  # by how much these are smaller than as many whole blocks

    @property
    def unused_size(self) -> int:
        """Size of the blocks that nobody holds."""
        return len(self._unused) * self.size - self._unused_lacking

    def count_found(self, hashes: Sequence[Block]) -> int:
        """Return how many blocks a prompt finds: those before the first that is not there."""
        holders = self._holders
        if self.is_chained:
            return bisect_left(hashes, True, key=lambda block: block not in holders)
        return len(list(takewhile(holders.__contains__, hashes)))

    def measure_unheld(self, hashes: Sequence[Block]) -> int:
        """Return the size of those of some blocks that nobody holds, so that holding them takes room from new ones."""
        if self.is_chained:
            unheld = len(hashes) - bisect_left(hashes, True, key=lambda block: not self._holders.get(block))
        else:
            holders = list(map(self._holders.get, hashes))
            unheld = holders.count(0) + holders.count(None)
        return unheld * self.size - self._lacking_of_unheld(hashes)

    def _lacking_of_unheld(self, hashes: Sequence[Block]) -> int:
        """Return by how much the last of some blocks is smaller than a whole one, if nobody holds it."""
        if not self.lacking or not hashes or self._holders.get(hashes[-1]):
            return 0
        return self.lacking.get(hashes[-1], 0)

    def hold(self, hashes: Sequence[Block]) -> int:
        """Let a request hold blocks, which are there afterwards; return the size of those that nobody held before."""
        newly_held = 0
        holders, unused = self._holders, self._unused
        lacking = self._lacking_of_unheld(hashes)
        if lacking and hashes[-1] in unused:
            self._unused_lacking -= lacking
        for block in hashes:
            number = holders.get(block)
            if number:
                holders[block] = number + 1
            else:
                newly_held += 1
                holders[block] = 1
                if number is not None:
                    del unused[block]
        return newly_held * self.size - lacking

    def release(self, hashes: Sequence[Block]) -> int:
        """Let a request give blocks back, the last one first; return the size of those that nobody holds any more."""
        unheld = 0
        holders, unused = self._holders, self._unused
        for block in reversed(hashes):
            number = holders[block] - 1
            holders[block] = number
            if not number:
                unused[block] = None
                unheld += 1
        lacking = self._lacking_of_unheld(hashes)
        self._unused_lacking += lacking
        return unheld * self.size - lacking

    def keep(self, block: Block) -> None:
        """Keep a whole block that nobody holds, as the most recently used one."""
        if not self._holders.setdefault(block, 0):
            self._unused[block] = None
            self._unused.move_to_end(block)

    def evict(self, most: int) -> None:
        """Drop the least recently used blocks that nobody holds, until those that are left have at most some size."""
        if self.lacking:
            while self._unused and self.unused_size > most:
                self._unused_lacking -= self.lacking.get(self._drop_oldest(), 0)
            return
        for _ in range(len(self._unused) - max(most, 0) // self.size):
            self._drop_oldest()

    def _drop_oldest(self) -> Block:
        """Drop the least recently used block that nobody holds, and return it."""
        block, _ = self._unused.popitem(last=False)
        del self._holders[block]
        return block


class Tier:
    """A store of blocks below the memory of the device, from which the least recently used ones go."""

    def __init__(
        self,
        blocks: int,  # room
        block_s: float,  # seconds in which a block is read
        *,
        is_overlapped: bool = False,  # whether what is read is computed with at the same time
    ) -> None:
        self.most_blocks, self.block_s, self.is_overlapped = blocks, block_s, is_overlapped
        self._blocks: OrderedDict[Block, None] = OrderedDict()

    def has(self, block: Block) -> bool:
        """Return whether a block is there, which counts as its use."""
        if block not in self._blocks:
            return False
        self._blocks.move_to_end(block)
        return True

    def add(self, blocks: Iterable[Block]) -> list[Block]:
        """Store blocks; return those that had to go."""
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        excess = max(len(self._blocks) - self.most_blocks, 0)
        return [self._blocks.popitem(last=False)[0] for _ in range(excess)]


class BlocksOfRequests:
    """Hashes of the blocks of requests, which replicas of an engine share.

    Only full blocks are found again. A trace also hashes the part of a block that a prompt ends with: prompts that end
    with the same find the full blocks of the engine in it.
    """

    def __init__(self, traffic: Traffic, block_tokens: int) -> None:  # tokens of a block of the engine
        assert traffic.hashes is not None
        hashed_tokens = self.hashed_tokens = traffic.hashed_tokens
        self.is_chained = traffic.follows is not None  # those of sessions, not of any file
        self.size = -(-hashed_tokens // block_tokens)  # of a block, in those of the engine
        self.lacking: dict[Block, int] = {}  # by how much parts are smaller
        self.hashes: list[tuple[Block, ...]] = []  # of each prompt, with the part that it ends with
        self.whole_blocks: list[int] = []  # of each prompt, without that part
        self.full_tokens: list[int] = []  # in the full blocks of each prompt
        self.answers: list[tuple[Block, ...]] = []  # of the answers, which the next prompts of a session contain
        for hashes, tokens, answer in zip(
            traffic.hashes, traffic.input_tokens.tolist(), traffic.output_tokens.tolist()
        ):
            whole = tokens // hashed_tokens
            blocks: tuple[Block, ...] = hashes[:whole]
            full_tokens = len(blocks) * hashed_tokens
            part_blocks = (tokens - full_tokens) // block_tokens if traffic.is_trace else 0
            if part_blocks:
                part = (hashes[whole], tokens - full_tokens)
                blocks, full_tokens = (*blocks, part), full_tokens + part_blocks * block_tokens
                self.lacking[part] = self.size - part_blocks
            self.hashes.append(blocks)
            self.whole_blocks.append(whole)
            self.full_tokens.append(full_tokens)
            self.answers.append(() if traffic.is_trace else hashes[whole : (tokens + answer) // hashed_tokens])


class PrefixesOfRequests:
    """Prefix cache of a replica.

    A request holds the blocks that it found and, after prefill, all full blocks of its prompt. At least its last token
    is computed, without which there are no logits. Engines that reuse whole blocks compute that token's own block, one
    of the engine, however many tokens a block of the prompts' hashes has: vLLM's `get_computed_blocks` looks for
    `num_tokens - 1` tokens, as SGLang's `init_next_round_input` and TensorRT-LLM's `addSequence` do. Tiers store whole
    blocks of the hashes only.
    """

    def __init__(
        self,
        blocks: BlocksOfRequests,
        block_tokens: int,
        tiers: Sequence[Tier] = (),
        *,
        reuses_parts: bool,  # whether a part of a block of the engine is reused, too
    ) -> None:
        self.cache = PrefixCache(is_chained=blocks.is_chained, size=blocks.size, lacking=blocks.lacking)
        self.tiers = tiers  # what is below the device's memory, the fastest first
        # Seconds in which the prompt that was found last is read from the tiers: before it is computed, and meanwhile.
        self.load_s = self.overlapped_s = 0.0
        self.blocks, self.hashes = blocks, blocks.hashes
        self.reused_tokens = 1 if reuses_parts else block_tokens  # a multiple of which is reused of a prompt
        self.held = [0] * len(self.hashes)

    def find(self, request: int, tokens: int) -> tuple[int, int]:
        """Return how many tokens of a prompt, of so many in all, need not be computed, and what holding them takes.

        The latter is in blocks of the KV cache: those with the tokens that nobody holds.
        """
        hashes = self.hashes[request]
        found_blocks = self.cache.count_found(hashes)
        self.load_s = self.overlapped_s = 0.0
        for block in hashes[found_blocks:] if self.tiers else ():
            tier = next((store for store in self.tiers if store.has(block)), None)
            if tier is None:
                break
            found_blocks += 1
            if tier.is_overlapped:
                self.overlapped_s += tier.block_s
            else:
                self.load_s += tier.block_s
        self.held[request] = found_blocks
        return self._count_reused(request, found_blocks, tokens), self.cache.measure_unheld(hashes[:found_blocks])

    def _count_reused(self, request: int, found_blocks: int, tokens: int) -> int:
        """Return the tokens of a prompt of so many tokens that need not be computed where blocks of it are there."""
        most_tokens = (tokens - 1) // self.reused_tokens * self.reused_tokens
        return min(found_blocks * self.blocks.hashed_tokens, self.blocks.full_tokens[request], most_tokens)

    def hold_found(self, request: int) -> None:
        """Let a request hold what it has found."""
        self.cache.hold(self.hashes[request][: self.held[request]])

    def hold_computed(self, request: int) -> tuple[int, int]:
        """Let a request hold all full blocks of its prompt; return their tokens, and blocks that nobody held before."""
        hashes, held = self.hashes[request], self.held[request]
        newly_held = self.cache.hold(hashes[held:])
        self._write(hashes[held : self.blocks.whole_blocks[request]])
        self.held[request] = len(hashes)
        return self.blocks.full_tokens[request], newly_held

    def count_cached(self, request: int, tokens: int) -> int:
        """Return how many tokens of a prompt, of so many in all, are in the device's memory and reused."""
        return self._count_reused(request, self.cache.count_found(self.hashes[request]), tokens)

    def keep_answer(self, request: int) -> None:
        """Keep the full blocks of an answer, which go before those of its prompt."""
        for block in reversed(self.blocks.answers[request]):
            self.cache.keep(block)
        self._write(self.blocks.answers[request])

    def _write(self, blocks: Sequence[Block]) -> None:
        """Write blocks through to the first tier; what has no more room in a tier goes to the next one."""
        for tier in self.tiers:
            blocks = tier.add(blocks)

    def release(self, request: int) -> int:
        """Let a request give its blocks back; return the blocks of the KV cache that nobody holds any more."""
        unheld = self.cache.release(self.hashes[request][: self.held[request]])
        self.held[request] = 0
        return unheld

    def keep_within(self, blocks: int) -> None:
        """Drop what nobody holds and does not fit into some blocks of the KV cache."""
        if self.cache.unused_size > blocks:
            self.cache.evict(blocks)


def prefix_hit_rate(
    prompts: Iterable[Sequence[int]],  # hashes of the blocks of each prompt, as in `Traffic.hashes`
    blocks: int | None = None,  # that the cache holds; None for a cache without a limit
) -> float:
    """Return the fraction of the blocks of prompts that are found, if each prompt ends before the next one begins.

    Raise BadValue if the number of blocks is below 1, or there is no block.
    """
    if blocks is not None and blocks < 1:
        raise BadValue(f"a prefix cache holds at least 1 block (got {blocks})")
    cache = PrefixCache()
    found_blocks = total = 0
    for hashes in prompts:
        found_blocks += cache.count_found(hashes)
        total += len(hashes)
        cache.hold(hashes)
        cache.release(hashes)
        if blocks is not None:
            cache.evict(blocks)
    if not total:
        raise BadValue("the prompts have no blocks whose hashes could be found")
    return found_blocks / total
