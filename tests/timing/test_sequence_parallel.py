"""Denoisers on several devices, against published batches."""

from __future__ import annotations

import pytest

from asked import predict_any, scaling
from paleo_lite.errors import BadValue

FLUX = {"gpu": "h100-sxm", "precision": "bf16", "steps": 50}

# Seconds of FLUX.1-dev at 1024 x 1024 with 50 steps on H100 SXM under xDiT 0.4.5 (ML.ENERGY Benchmark v3).
MEASURED = {(1, 2, 1): 8.026, (4, 1, 1): 4.647, (4, 2, 8): 17.594, (8, 1, 8): 16.187}


@pytest.mark.parametrize("ulysses, ring, images", MEASURED)
def test_published_batches_are_inside_the_intervals(ulysses: int, ring: int, images: int) -> None:
    prediction = predict_any("flux.1-dev", ulysses=ulysses, ring=ring, batch_size=images, **FLUX)
    low_s, high_s = prediction.interval
    assert low_s < MEASURED[ulysses, ring, images] < high_s
    assert prediction.to_dict()["devices"] == ulysses * ring


def test_more_devices_take_less_time_and_more_energy() -> None:
    one, four = (predict_any("wan-2.1-1.3b", gpu="h100-sxm", precision="bf16", ulysses=number) for number in (1, 4))
    assert 2 < one.time_s / four.time_s < 4
    assert four.energy_j > 0.9 * one.energy_j
    assert four.bound_s < one.bound_s


@pytest.mark.parametrize(
    "options, message",
    [
        ({"ulysses": 48}, "--ulysses must divide the 24 heads"),
        ({"ring": 0}, "--ring must be an integer >= 1"),
        ({"ring": 10**6}, "at most 4,096 devices"),
    ],
)
def test_bad_splits_get_one_sentence(options: dict[str, int], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        predict_any("flux.1-dev", **options, **FLUX)


@pytest.mark.parametrize("options", [{"ulysses": 2}, {"ring": 2}, {"ulysses": 2, "guidance_parallel": True}])
def test_the_sequence_of_a_u_net_is_not_split(options: dict[str, object]) -> None:
    """The table of xDiT's README has guidance in parallel for SDXL, and no sequence parallelism."""
    with pytest.raises(BadValue, match="the denoiser of sdxl is a U-Net, whose convolutions xDiT does not split"):
        predict_any("sdxl", **options, **FLUX)


def test_scaling_a_u_net_divides_pictures_and_guidance_only() -> None:
    asked = {"gpu": "h100-sxm", "precision": "bf16", "phase": "inference"}
    rows = scaling("sdxl", workers=[2, 4], batch_size=2, **asked).rows()
    assert [(row["replicas"], row["guidance"], row["ulysses"], row["ring"]) for row in rows] == [
        (2, 1, 1, 1),
        (2, 2, 1, 1),
    ]
    with pytest.raises(BadValue, match="4 devices cannot be divided among copies of sdxl"):
        scaling("sdxl", workers=[4], **asked)


def test_a_split_that_takes_longer_is_noted() -> None:
    asked = {**FLUX, "image_size": 256, "steps": 4}
    alone, eight = (predict_any("sana-1.5-1.6b", ulysses=number, **asked) for number in (1, 4))
    assert eight.time_s > alone.time_s
    assert any("takes longer on 4 devices that share the sequence" in note for note in eight.notes)
    assert not any("takes longer on" in note for note in predict_any("flux.1-dev", ulysses=4, **FLUX).notes)
