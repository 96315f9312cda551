"""Distributions of the lengths of responses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paleo_lite.errors import BadFile, BadValue
from paleo_lite.reinforcement.lengths import read_lengths, response_lengths


@pytest.mark.parametrize(("mean", "maximum"), [(1060, 3990), (3200, 3990), (50, 51), (3, 10)])
def test_lengths_have_the_mean_and_end_at_the_maximum(mean: int, maximum: int) -> None:
    lengths = response_lengths(512, mean, maximum)
    assert len(lengths) == 512 and lengths.max() <= maximum and lengths.min() >= 1
    assert lengths.mean() == pytest.approx(mean, rel=0.02)
    assert np.all(np.diff(lengths) >= 0)


def test_a_mean_near_the_maximum_cuts_many_off() -> None:
    few, many = response_lengths(512, 1000, 4000), response_lengths(512, 3500, 4000)
    assert np.mean(few == 4000) < 0.05 < np.mean(many == 4000)


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_the_share_that_is_cut_off_can_be_given(share: float) -> None:
    lengths = response_lengths(1000, 2000, 4000, share)
    assert np.mean(lengths == 4000) == pytest.approx(share, abs=0.01)
    assert lengths.mean() == pytest.approx(2000, rel=0.02)


def test_a_share_that_cannot_be_is_one_sentence() -> None:
    with pytest.raises(BadValue, match=r"`--clipped-share 0.9` cannot be: of responses of 100 tokens on average"):
        response_lengths(1000, 100, 4000, 0.9)


def test_a_mean_above_the_maximum_is_one_sentence() -> None:
    with pytest.raises(BadValue, match=r"`--response-tokens` must be between 1 and 100, what `--max-tokens` leaves"):
        response_lengths(8, 101, 100)


def test_lengths_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("300\n100\n200\n")
    assert read_lengths(path, 3, 1000).tolist() == [133, 200, 267]
    with pytest.raises(BadValue, match="has a response of 300 tokens, but `--max-tokens` leaves 250"):
        read_lengths(path, 3, 250)
    path.write_text("tokens\n100\n")
    with pytest.raises(BadFile, match="one number of tokens per line, and no heading"):
        read_lengths(path, 3, 250)
    with pytest.raises(BadFile, match="cannot be read"):
        read_lengths(tmp_path / "none.txt", 3, 250)
