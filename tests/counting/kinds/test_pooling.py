"""The windows of adaptive pooling, counted without visiting them."""

from __future__ import annotations

import pytest

from paleo_lite.counting import Layer
from paleo_lite.counting.kinds import saved_tensors
from paleo_lite.counting.kinds.pooling import window_elements
from paleo_lite.counting.layer import Op
from paleo_lite.errors import CountFailed


def elements(size: int, out: int) -> int:
    layer = Layer("pool", "adaptive_avg_pool", ((1, 1, size),), ((1, 1, out),), parents=(-1,))
    return window_elements(Op(layer, 1, [True], True, [False]))


@pytest.mark.parametrize("out", [1, 2, 3, 6, 7, 12, 20])
def test_windows_have_the_elements_of_pytorchs_borders(out):
    for size in range(1, 21):
        borders = [(place * size // out, -(-(place + 1) * size // out)) for place in range(out)]
        assert elements(size, out) == sum(end - start for start, end in borders)


def test_as_many_windows_as_a_file_may_state_take_no_steps():
    assert elements(7, 2**40) == 7 + 2**40 - 1
    assert elements(7, 0) == 0


def test_a_layer_without_a_result_saves_nothing_that_could_be_counted():
    layer = Layer("p1", "max_pool", ((1, 1, 8),), (), attributes={"kernel": [2], "stride": [2]}, parents=(-1,))
    with pytest.raises(CountFailed, match="layer 'p1' cannot be counted as max_pool"):
        saved_tensors(layer, [True], True)
