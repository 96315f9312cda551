"""Speculative decoding: acceptance by position, and the load up to which it pays.

Tests: serving/options.py.
"""

from __future__ import annotations

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.notes import most_sequences_that_pay
from paleo_lite.serving.options import SimulationOptions, Speculation, make_speculation
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic

PUBLISHED = (0.7568, 0.6011, 0.4976, 0.4113, 0.3538, 0.2980, 0.2608, 0.2229)
"""Shares of a model with 8 drafted tokens (vLLM, GSM8K with 64 users), which yield 4.40 tokens per iteration."""


def pays_up_to(deployment: Deployment, speculation: Speculation) -> int:
    """Return the number of sequences up to which drafting pays."""
    drafting = msgspec.structs.replace(deployment, options=SimulationOptions(speculation=speculation))
    traffic = generate_traffic(Lengths(500), Lengths(200), count=1024, concurrency=512)
    return most_sequences_that_pay(prepare(drafting, traffic), 600.0)


def test_tokens_of_published_shares() -> None:
    assert make_speculation(8, PUBLISHED).tokens_per_iteration == pytest.approx(4.40, abs=0.005)
    assert make_speculation(4, 0.8).tokens_per_iteration == pytest.approx(3.3616)


def test_the_more_is_accepted_the_longer_drafting_pays(deployment: Deployment) -> None:
    """It pays at few sequences, where weights are read once for all tokens, and stops before many sequences."""
    most = [pays_up_to(deployment, make_speculation(3, accepted)) for accepted in (0.0, 0.4, 0.9)]
    assert most[0] == 0 and 8 <= most[1] < most[2]


def test_the_answer_says_up_to_where_drafting_pays() -> None:
    answer = pl.serve(
        "llama-3-8b", gpu="h100-sxm", rate=1, num_requests=10, speculation="tokens=3,acceptance=0.7,0.5,0.3"
    )
    assert any(note.startswith("drafting pays up to") for note in answer.notes)


@pytest.mark.parametrize(
    ("shares", "message"), [((0.7, 0.5), "one per drafted token: 3 of them"), ((0.5, 0.7, 0.1), "by position falls")]
)
def test_nonsense_gets_a_sentence(shares: tuple[float, ...], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        make_speculation(3, shares)
