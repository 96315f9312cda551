"""Sequences that decode in one batch: when they finish, and when they need blocks of a paged KV cache.

Their tokens are counted by a common clock of decoded tokens, `position`: a sequence that starts at position p has
decoded ``position - p`` tokens, and finishes when it has decoded all. So no sequence is visited while it only grows.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from .options import Speculation


class DecodingBatch:
    """Sequences that decode together, by the number of their request."""

    def __init__(self, requests: int, block_tokens: int, speculation: Speculation) -> None:
        self.block_tokens = block_tokens
        self.draft_length, self.tokens_per_iteration = speculation.draft_length, speculation.tokens_per_iteration
        self.sequences = self.cached_tokens = 0  # those that decode, and the tokens of all of them in the cache
        self.position, self.position_exact = 0, 0.0
        self.holds = [False] * requests  # whether a request decodes
        self._start_position = [0] * requests
        self._start_tokens = [0] * requests  # in the cache when the request started
        # Heap of (position at the end, request, its start); a start other than the last one of a request is void.
        self._ends: list[tuple[int, int, int]] = []
        self._starts = [0] * requests  # how often a request has started or stopped
        # Sequences by the position, modulo a block, at which they need a new block, and that position of each request.
        self._growth = [0] * block_tokens
        self._grows_at = [0] * requests

    def start(self, request: int, tokens: int, own_tokens: int, remaining: int) -> None:
        """Let a request with some tokens in the cache decode the remaining ones; its own are in blocks of its own."""
        self.holds[request] = True
        self.sequences += 1
        self.cached_tokens += tokens
        self._start_position[request] = self.position
        self._start_tokens[request] = tokens
        grows_at = (self.position - own_tokens) % self.block_tokens  # for the token after a full block
        self._growth[grows_at] += 1
        self._grows_at[request] = grows_at
        heappush(self._ends, (self.position + remaining, request, self._starts[request]))

    def stop(self, request: int) -> int:
        """Let a request decode no longer, finished or not; return its tokens in the cache."""
        tokens = self._start_tokens[request] + self.decoded_by(request)
        self.holds[request] = False
        self.sequences -= 1
        self.cached_tokens -= tokens
        self._growth[self._grows_at[request]] -= 1
        self._starts[request] += 1
        return tokens

    def decoded_by(self, request: int) -> int:
        """Return the tokens that a request has decoded since it started."""
        return self.position - self._start_position[request]

    def advance(self, iterations: int) -> list[int]:
        """Decode some iterations, and return the requests that are finished, which are still to be stopped."""
        position = self.position_after(iterations)
        self.cached_tokens += (position - self.position) * self.sequences
        self.position = position
        if self.draft_length:
            self.position_exact += iterations * self.tokens_per_iteration
        finished = []
        while self._ends and self._ends[0][0] <= position:
            _, request, start = heappop(self._ends)
            if start == self._starts[request]:
                finished.append(request)
        return finished

    def position_after(self, iterations: int) -> int:
        """Return the position after some iterations; with speculation an iteration decodes a fraction of a token more
        than one on average."""
        if not self.draft_length:
            return self.position + iterations
        return int(self.position_exact + iterations * self.tokens_per_iteration + 1e-9)

    def tokens_in(self, iterations: int) -> int:
        """Return the tokens that a sequence decodes in the next iterations."""
        return iterations if not self.draft_length else self.position_after(iterations) - self.position

    def iterations_to_finish(self) -> int:
        """Return the iterations until the next sequence finishes."""
        ends, starts = self._ends, self._starts
        end, request, start = ends[0]
        while start != starts[request]:
            heappop(ends)
            end, request, start = ends[0]
        if not self.draft_length:
            return max(end - self.position, 1)
        return max(math.ceil((end - self.position_exact) / self.tokens_per_iteration - 1e-9), 1)

    def growth_of(self, tokens: int) -> int:
        """Return the blocks that all sequences need for their next tokens."""
        growth, block_tokens = self._growth, self.block_tokens
        first = self.position % block_tokens
        if tokens == 1 and block_tokens > 1:  # the usual case, apart for speed
            return growth[first]
        whole_blocks, rest = divmod(tokens, block_tokens)
        end = first + rest
        blocks = sum(growth[first:end]) + whole_blocks * self.sequences
        return blocks if end <= block_tokens else blocks + sum(growth[: end - block_tokens])

    def next_growth(self) -> int:
        """Return the blocks that all sequences need in the next iteration."""
        return self.growth_of(self.tokens_in(1))

    def iterations_within(self, free_blocks: int, iterations: int) -> int:
        """Return the iterations that fit into free blocks, at most `iterations`; the first is known to fit."""
        tokens = self.tokens_in(iterations)
        if (tokens // self.block_tokens + 1) * self.sequences <= free_blocks or self.growth_of(tokens) <= free_blocks:
            return iterations
        low, high = 1, iterations
        while high - low > 1:
            middle = (low + high) // 2
            if self.growth_of(self.tokens_in(middle)) <= free_blocks:
                low = middle
            else:
                high = middle
        return low
