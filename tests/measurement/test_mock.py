"""Mock loader and trainer: one batch for ever, and the rate at which batches come when nothing is done with them.

Tests: measurement/loops.py.
"""

from __future__ import annotations

from itertools import count, islice

import numpy as np
import pytest

from paleo_lite.errors import BadValue
from paleo_lite.measurement import mock_loader, mock_trainer
from paleo_lite.measurement.loops import count_samples


class Clock:
    """Stands still but where `spend` moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def test_a_mock_loader_takes_one_batch_and_yields_it_for_ever():
    taken = []
    source = (taken.append(number) or [number] for number in count())
    batches = list(islice(mock_loader(source, place=lambda batch: [batch[0] + 0.5]), 1000))
    assert taken == [0] and all(batch is batches[0] for batch in batches) and batches[0] == [0.5]
    assert len(list(mock_loader([1], batches=7))) == 7


@pytest.mark.parametrize(("source", "batches", "message"), [([], None, "yields no batch"), ([1], 0, "at least 1")])
def test_a_mock_loader_needs_a_batch(source, batches, message):
    with pytest.raises(BadValue, match=message):
        mock_loader(source, batches)


def loader(clock: Clock, batches: int = 20, seconds: float = 0.25, samples: int = 8):
    for number in range(batches):
        clock.spend(10.0 if number == 0 else seconds)  # the first starts the workers
        yield np.zeros((samples, 3)), np.zeros(samples)


def test_a_mock_trainer_measures_loading_alone():
    clock = Clock()
    rate = mock_trainer(loader(clock), clock=clock)
    assert (rate.batches, rate.samples, rate.seconds) == (19, 19 * 8, pytest.approx(19 * 0.25))
    assert rate.samples_per_s == pytest.approx(32)


def test_a_mock_trainer_stops_where_it_is_told():
    clock = Clock()
    assert mock_trainer(loader(clock), batches=5, clock=clock).batches == 5
    assert mock_trainer(loader(clock), seconds=1.0, warm_up=2, clock=clock).batches == 4
    assert mock_trainer(loader(clock), samples_in=len, clock=clock).samples == 19 * 2  # the pair's length
    assert mock_trainer(loader(clock), samples_in=lambda batch: None, clock=clock).samples_per_s is None


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ([1], {}, "no batch left to time after 1 warm-up"),
        ([1, 2], {"batches": 0}, "batches must be >= 1"),
        ([1, 2], {"seconds": 0}, "seconds > 0"),
        ([1, 2], {"clock": lambda: 0.0}, "resolution of the clock"),
    ],
)
def test_invalid_limits_raise(source, options, message):
    with pytest.raises(BadValue, match=message):
        mock_trainer(source, **options)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (np.zeros((5, 3)), 5), ((np.zeros((5, 3)), np.zeros(5)), 5), ({"image": np.zeros((4, 2))}, 4),
        ([(np.zeros((3, 1)),)], 3), (np.float32(1.0), None), ("text", None), ([], None),
    ],
)  # fmt: skip
def test_samples_of_a_batch(batch, samples):
    assert count_samples(batch) == samples
