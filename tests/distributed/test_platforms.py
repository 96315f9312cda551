"""Platforms: use of their parameters in predictions, and invalid files."""

from __future__ import annotations

import msgspec
import pytest

from asked import scaling
from paleo_lite.distributed.job import Step
from paleo_lite.distributed.platforms import find_platform
from paleo_lite.distributed.settings import Settings
from paleo_lite.errors import BadFile, BadValue, UnknownName

TEXT = """
format = 1
description = "a rack"
software = "some"
device = "k80-die"
devices_per_node = 2
nodes = 4
inside = "10 GB/s"
between = "1 GB/s"
sources = ["nobody"]
measurements = 3
held_out = "nothing"
slowdown = 0.1
overlap = false
bucket = "64 MiB"
computing = 0.5
"""


@pytest.fixture
def rack(tmp_path):
    path = tmp_path / "rack.toml"
    path.write_text(TEXT)
    return path


def test_platform_parameters_are_used_in_predictions(rack):
    """By hand: half the computation time, a tenth more on several devices, an exposed ring of 8 over 1 GB/s."""
    options = {"gpu": "k80-die", "time_model": "roofline", "batch_size": 32, "workers": [1, 8]}
    plain = scaling("vgg16", link="1 GB/s", settings=Settings("ring"), **options)
    alone, eight = scaling("vgg16", platform=str(rack), **options)
    assert alone.time_s == pytest.approx(plain[0].time_s / 2)
    assert eight.compute_s == pytest.approx(1.1 * alone.compute_s)
    assert eight.exposed_s == pytest.approx(2 * 7 / 8 * 138_357_544 * 4 / 1e9)
    assert eight.limited_by == "communication over a rack network"


def test_user_settings_take_precedence_over_fitted_ones(rack):
    asked = find_platform(str(rack)).apply_to_settings(Settings("tree", slowdown=0.2, bucket_bytes=1e6))
    assert (asked.collective, asked.slowdown, asked.bucket_bytes, asked.overlap) == ("tree", 0.2, 1e6, False)


def test_steps_are_as_often_longer_as_shorter_by_a_factor(rack):
    """The interval of a log-normal distribution: the product of its ends is the square of the expected step."""
    scattered = msgspec.structs.replace(find_platform(str(rack)), scatter=0.1)
    forecast = scattered.forecast_step(lambda *_: Step(2.0), scattered.topology(8), Settings())
    assert forecast.best_s < 2.0 < forecast.worst_s
    assert forecast.best_s * forecast.worst_s == pytest.approx(2.0**2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format = 1", "format = 2", "format"),
        ("nodes = 4", "", "nodes"),
        ("nodes = 4", "nodes = 0", "nodes"),
        ("slowdown", "slowness", "slowness"),
        ("10 GB/s", "0 GB/s", "> 0"),
        ("10 GB/s", "fast", "fast"),
        ("0.1", "-0.1", "slowdown"),
        ("0.5", "0.0", "computing"),
        ("0.5", "1e300", r"computing must be a ratio from 1e-06 to 1e\+06 \(got 1e\+300\)"),
        ("0.5", "0.5\nscatter = 1e300", "scatter must be from 0 to 10"),
        ("0.5", "0.5\nscatter = -1.0", "scatter must be from 0 to 10"),
        ("1 GB/s", "1e30 GB/s", r"the bandwidth must be from 1 to 1e\+18 B/s"),
        ("0.1", "1e300", r"slowdown must be at most 1e\+06"),
        ("=", "", "rack.toml"),
    ],
)
def test_invalid_files(rack, old, new, message):
    rack.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(BadFile, match=message) as error:
        find_platform(str(rack))
    assert str(rack) in str(error.value)


def test_unknown_platforms_and_conflicting_arguments(rack, tmp_path):
    with pytest.raises(UnknownName, match="dgx1-p100"):
        find_platform("dgx1")
    with pytest.raises(BadFile, match="cannot be read"):
        find_platform(str(tmp_path / "none.toml"))
    for more in ({"link": "1 GB/s"}, {"topology": "2x @ pcie3"}, {"ppp_comm": 0.5}):
        with pytest.raises(BadValue, match=r"only one of|leave out `--communication ppp`"):
            scaling("vgg16", platform=str(rack), gpu="k80-die", **more)
