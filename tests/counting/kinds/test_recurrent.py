"""Mixers with a state: counts by hand, from the formulas of their papers.

Tests: counting/kinds/recurrent.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.counting import CONSTANT, INPUT, Layer, count

CHANNELS, STATES, TOKENS = 6, 4, 10
SCAN = Layer(
    "scan",
    "selective_scan",
    ((1, CHANNELS, TOKENS), (1, CHANNELS, TOKENS), (1, STATES, TOKENS), (1, STATES, TOKENS), (1, CHANNELS, TOKENS)),
    ((1, CHANNELS, TOKENS),),
    ((CHANNELS, STATES), (CHANNELS,)),
    (INPUT, *[CONSTANT] * 4),
    attributes={"states": STATES},
)

HEADS, SIZE, GROUPS, CHUNK = 2, 3, 1, 5
DUAL = Layer(
    "dual",
    "state_space_dual",
    ((1, HEADS, TOKENS, SIZE), (1, GROUPS, TOKENS, STATES), (1, GROUPS, TOKENS, STATES), (1, HEADS, TOKENS)),
    ((1, HEADS, TOKENS, SIZE),),
    ((HEADS,),),
    (INPUT, *[CONSTANT] * 3),
    attributes={"chunk": CHUNK},
)

KEY, VALUE = 4, 3
DELTA = Layer(
    "delta",
    "gated_delta_rule",
    ((1, HEADS, TOKENS, KEY), (1, HEADS, TOKENS, KEY), (1, HEADS, TOKENS, VALUE), (1, HEADS, TOKENS),
     (1, HEADS, TOKENS)),
    ((1, HEADS, TOKENS, VALUE),),
    (),
    (INPUT, *[CONSTANT] * 4),
    attributes={"chunk": CHUNK},
)  # fmt: skip


def total(layer, column, batch_size=1):
    return int(count([layer]).column(column, "inference", batch_size).sum())


def test_selective_scan_matches_its_authors_count():
    """state-spaces/mamba, ``selective_scan_flop_jit``: 9 B L D N, B L D for the skip connection, B L D for the gate."""
    assert total(SCAN, "flops") == 9 * TOKENS * CHANNELS * STATES + 2 * TOKENS * CHANNELS
    assert total(SCAN, "macs") == 0  # no matrix product


def test_a_state_space_dual_counts_four_products():
    """Dao and Gu 2024, listing 1: within a chunk scores and values, and the states at its end and start."""
    scores = TOKENS * CHUNK * GROUPS * STATES
    values = TOKENS * CHUNK * HEADS * SIZE
    states = 2 * TOKENS * HEADS * SIZE * STATES
    assert total(DUAL, "macs") == scores + values + states


def test_a_gated_delta_rule_counts_its_products():
    """Yang et al. 2024: with a chunk C, per token C (3 K + 2 V) + C^2 / 3 within it, and 3 K V with the state."""
    within = CHUNK * (3 * KEY + 2 * VALUE) + CHUNK**2 // 3
    assert total(DELTA, "macs") == TOKENS * HEADS * (within + 3 * KEY * VALUE)


@pytest.mark.parametrize("layer", [SCAN, DUAL, DELTA])
def test_counts_grow_with_the_batch_and_linearly_with_the_tokens(layer):
    longer = layer._replace(
        inputs=tuple(tuple(2 * size if size == TOKENS else size for size in shape) for shape in layer.inputs),
        outputs=tuple(tuple(2 * size if size == TOKENS else size for size in shape) for shape in layer.outputs),
    )
    assert total(layer, "flops", 3) == 3 * total(layer, "flops")
    assert total(longer, "flops") == 2 * total(layer, "flops")
