"""Sequences that decode in one batch, against a model that visits every sequence in every iteration."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.serving.decoding import DecodingBatch
from paleo_lite.serving.options import Speculation

REQUESTS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 20), st.integers(1, 30)), min_size=1, max_size=6
)  # tokens in the cache, those of them that are shared, and tokens to decode
NO_DRAFTS = Speculation()
BLOCKS = st.sampled_from([1, 2, 16])


def start_all(requests, block_tokens, speculation=NO_DRAFTS) -> DecodingBatch:
    """A batch in which all requests start at once, with no more shared tokens than it has."""
    batch = DecodingBatch(len(requests), block_tokens, speculation)
    for request, (tokens, shared, remaining) in enumerate(requests):
        batch.start(request, tokens, tokens - min(shared, tokens), remaining)
    return batch


def blocks_of(requests, block_tokens: int, decoded: int) -> int:
    """Blocks of all sequences once each has decoded so many tokens, one by one (PagedAttention, figure 6)."""
    return sum(math.ceil((tokens - min(shared, tokens) + decoded) / block_tokens) for tokens, shared, _ in requests)


@given(requests=REQUESTS, block_tokens=BLOCKS, before=st.integers(0, 40), tokens=st.integers(1, 40))
def test_blocks_grow_as_those_of_each_sequence_do(requests, block_tokens, before, tokens) -> None:
    batch = start_all([(*sizes[:2], 1000) for sizes in requests], block_tokens)
    assert batch.advance(before) == []
    needed = blocks_of(requests, block_tokens, before + tokens) - blocks_of(requests, block_tokens, before)
    assert batch.growth_of(tokens) == needed
    assert batch.next_growth() == batch.growth_of(1)


@given(requests=REQUESTS, block_tokens=BLOCKS, free=st.integers(0, 60), most=st.integers(1, 60))
def test_as_many_iterations_as_free_blocks_hold(requests, block_tokens, free, most) -> None:
    """The first is known to fit."""
    batch = start_all(requests, block_tokens)
    now = blocks_of(requests, block_tokens, 0)
    fitting = [n for n in range(1, most + 1) if blocks_of(requests, block_tokens, n) - now <= free]
    assert batch.iterations_within(free, most) == max(fitting, default=1)


@given(requests=REQUESTS, block_tokens=BLOCKS, data=st.data())
def test_sequences_finish_when_they_have_decoded_all(requests, block_tokens, data) -> None:
    """Some stop before: their place in the order is void, also after they start again."""
    batch = start_all(requests, block_tokens)
    remaining = {request: sizes[2] for request, sizes in enumerate(requests)}
    cached = {request: sizes[0] for request, sizes in enumerate(requests)}
    while remaining:
        stopped = data.draw(st.sampled_from([None, *remaining]))
        if stopped is not None and data.draw(st.booleans()):
            assert batch.holds[stopped] and batch.stop(stopped) == cached[stopped]
            batch.start(stopped, cached[stopped], cached[stopped], remaining[stopped])
        assert batch.sequences == len(remaining) and batch.cached_tokens == sum(cached.values())
        soonest = min(remaining.values())
        assert batch.iterations_to_finish() == soonest
        iterations = data.draw(st.integers(1, soonest))
        finished = batch.advance(iterations)
        for request in remaining:
            remaining[request] -= iterations
            cached[request] += iterations
        assert sorted(finished) == [request for request, left in remaining.items() if left == 0]
        for request in finished:
            assert batch.decoded_by(request) >= iterations and batch.stop(request) == cached.pop(request)
            assert not batch.holds[request]
            del remaining[request]
    assert batch.sequences == batch.cached_tokens == 0


def test_iterations_with_drafts_decode_the_mean_of_the_accepted_ones() -> None:
    """Of two drafted tokens, each accepted with probability one half: 1 + 1/2 + 1/4 (Leviathan et al. 2023)."""
    batch = start_all([(10, 0, 7)], 16, Speculation(draft_length=2, acceptance=0.5))
    assert [batch.tokens_in(iterations) for iterations in (1, 2, 3, 4)] == [1, 3, 5, 7]
    assert batch.iterations_to_finish() == 4
    assert batch.advance(2) == [] and batch.decoded_by(0) == 3 and batch.cached_tokens == 13
    assert batch.iterations_to_finish() == 2 and batch.tokens_in(1) == 2
    assert batch.advance(2) == [0]
