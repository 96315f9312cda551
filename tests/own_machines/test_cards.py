"""Different cards in one machine: how they share the layers, and what that makes of time, memory and watts.

Tests: own_machines/split.py.
"""

from __future__ import annotations

import re

import pytest

import paleo_lite as pl
from paleo_lite.api.local import advise_local, predict_local
from paleo_lite.errors import BadValue, PaleoError
from paleo_lite.machines import find_device, list_devices
from paleo_lite.own_machines.energy import LocalEnergy
from paleo_lite.own_machines.memory import usable_bytes
from paleo_lite.own_machines.predict import LocalPrediction
from paleo_lite.own_machines.question import LocalQuestion
from paleo_lite.own_machines.split import fill_fastest, room_bytes, split_layers
from paleo_lite.reporting.charts.local import local_chart
from paleo_lite.web.cards import _local_card

SMALL, LARGE = "rtx4060ti-16gb", "rtx3090"


def alone(gpu: str, **asked: object) -> LocalPrediction:
    return predict_local("llama-3.1-8b", gpu, LocalQuestion(weights="q4_k_m", **asked))  # type: ignore[arg-type]


def together(*gpus: str, **asked: object) -> LocalPrediction:
    return predict_local("llama-3.1-8b", gpus, LocalQuestion(weights="q4_k_m", **asked))  # type: ignore[arg-type]


def energy_of(prediction: LocalPrediction) -> LocalEnergy:
    assert prediction.energy is not None
    return prediction.energy


def test_blocks_are_split_by_memory() -> None:
    """By hand: of 80 blocks and the head, those whose number over 81 is below 24 / 40 GB, less what is reserved."""
    devices = [find_device(name) for name in (LARGE, SMALL)]
    large, small = split_layers(devices, LocalQuestion(), 80)
    most = usable_bytes(devices[0]) / sum(map(usable_bytes, devices))
    expected = sum(number / 81 < most for number in range(81))
    assert (large.share, small.share) == (pytest.approx(expected / 81), pytest.approx(1 - expected / 81))
    assert abs(expected - 81 * 24 / 40) < 2
    assert room_bytes([large, small], LocalQuestion()) == pytest.approx(
        min(usable_bytes(devices[0]) / large.share, usable_bytes(devices[1]) / small.share)
    )


@pytest.mark.parametrize(("proportions", "expected"), [((3, 1), (61, 20)), ((1, 0), (81, 0)), ((1, 1), (40.5, 40.5))])
def test_blocks_are_split_as_stated(proportions: tuple[float, ...], expected: tuple[float, float]) -> None:
    devices = [find_device(name) for name in (LARGE, SMALL)]
    kinds = split_layers(devices, LocalQuestion(tensor_split=proportions), 80)
    assert [kind.share * 81 for kind in kinds] == pytest.approx(expected)


def test_devices_of_a_kind_are_counted_together() -> None:
    """By hand of 2, 1 and 1 parts of 81: numbers below 40.5, below 60.75 and the rest."""
    devices = [find_device(name) for name in (LARGE, SMALL, SMALL)]
    large, small = split_layers(devices, LocalQuestion(tensor_split=(2, 1, 1)), 80)
    assert (large.number, small.number) == (1, 2)
    assert (large.share * 81, small.share * 81, small.largest_share * 81) == pytest.approx((41, 40, 20))


def test_a_token_takes_the_share_of_each_card() -> None:
    """Cards take turns: a token takes the time of either, each for its share of the blocks."""
    both, large, small = together(LARGE, SMALL), alone(LARGE), alone(SMALL)
    expected = both.split[LARGE] * large.token_s + both.split[SMALL] * small.token_s
    assert both.token_s == pytest.approx(expected)
    assert large.token_s < both.token_s < small.token_s
    assert large.prompt_s < both.prompt_s < small.prompt_s
    assert any(f"{large.device} alone holds everything and is faster" in note for note in both.notes)


def test_a_long_prompt_overlaps_on_both_cards() -> None:
    """Batches of a prompt follow each other, so that a long one takes less than cards which take turns."""
    both, large, small = (
        predict(*gpus, prompt_tokens=4096)
        for predict, gpus in ((together, (LARGE, SMALL)), (alone, (LARGE,)), (alone, (SMALL,)))
    )
    in_turn_s = both.split[LARGE] * large.prompt_s + both.split[SMALL] * small.prompt_s
    slowest_s = max(both.split[LARGE] * large.prompt_s, both.split[SMALL] * small.prompt_s)
    assert slowest_s < both.prompt_s < 0.95 * in_turn_s


def test_equal_cards_named_twice_are_two_of_one_kind() -> None:
    named, counted = together(LARGE, LARGE, prompt_tokens=2048), alone(LARGE, gpus=2, prompt_tokens=2048)
    assert (named.token_s, named.prompt_s, named.usable_bytes) == (
        counted.token_s, counted.prompt_s, counted.usable_bytes,
    )  # fmt: skip
    assert (named.gpu, named.gpus, named.energy) == (counted.gpu, counted.gpus, counted.energy)


def test_all_on_one_card_is_that_card_beside_one_that_waits() -> None:
    both, large = together(LARGE, SMALL, tensor_split=(1, 0)), alone(LARGE)
    assert both.token_s == pytest.approx(large.token_s)
    assert both.usable_bytes == pytest.approx(large.usable_bytes)
    idle_w = energy_of(both).token_w - energy_of(large).token_w
    assert 0 < idle_w < energy_of(alone(SMALL)).token_w / 2


def test_watts_lie_between_one_card_at_work_and_both() -> None:
    both, large, small = (energy_of(each) for each in (together(LARGE, SMALL), alone(LARGE), alone(SMALL)))
    assert min(large.token_w, small.token_w) < both.token_w < large.token_w + small.token_w
    low_w, high_w = both.token_interval_w
    assert low_w < both.token_w < high_w


def test_two_cards_hold_what_neither_holds() -> None:
    """Llama 3.3 70B in iq4_xs is 38 GB: more than either card, less than both."""
    question = LocalQuestion(weights="iq4_xs")
    both = predict_local("llama-3.3-70b", (LARGE, SMALL), question)
    assert both.is_whole and both.usable_bytes < (24 + 16) * 2**30
    assert not predict_local("llama-3.3-70b", LARGE, question).is_whole


def test_formats_and_machines_are_ranked() -> None:
    formats = advise_local("llama-3.3-70b", [(LARGE, SMALL)])
    assert formats.by == "formats" and formats.rows[0].weights == "iq4_xs" and formats.rows[0].is_whole
    question = LocalQuestion(weights="iq4_xs")
    machines = advise_local("llama-3.3-70b", [LARGE, (LARGE, SMALL), (LARGE, LARGE)], question)
    assert [row.gpus for row in machines.rows] == [2, 2, 1] and machines.rows[0].gpu == LARGE
    assert [row.is_whole for row in machines.rows] == [True, True, False]


def test_a_plus_sign_joins_cards() -> None:
    found = pl.local("llama-3.1-8b", gpu="RTX 3090 + rtx4060ti-16gb", weights="q4_k_m")
    assert isinstance(found, LocalPrediction)
    assert (found.gpu, found.gpus) == (f"{LARGE}+{SMALL}", 2)
    assert found.token_s == together(LARGE, SMALL).token_s


@pytest.mark.parametrize("device", [device for device in list_devices() if "+" in device.name], ids=lambda row: row.id)
def test_a_plus_sign_may_belong_to_a_name(device: object) -> None:
    name, device_id = device.name, device.id  # type: ignore[attr-defined]
    found = pl.local("llama-3.2-1b", gpu=name)
    assert isinstance(found, LocalPrediction) and (found.gpu, found.gpus) == (device_id, 1)
    if found.backend != "cpu":
        both = pl.local("llama-3.2-1b", gpu=f"{name}+{LARGE}", backend="vulkan")
        assert isinstance(both, LocalPrediction) and both.gpu == f"{device_id}+{LARGE}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu": "rtx3090+"}, "lacks a name beside a plus sign"),
        ({"gpu": "rtx3090+rtx4090", "workers": 2}, "names every device of the machine: leave `--workers` out"),
        ({"gpu": "rtx3090+rtx4090", "tensor_split": "1,1,1"}, "gives 3 proportions for 2 devices: give one for each"),
        ({"gpu": "rtx3090+ryzen-9-7950x"}, "is the processor of the machine: name it with `--cpu`"),
        ({"gpu": "rtx3090+rx7900xtx"}, r"the usual ones differ \(cuda of rtx3090, .*\): give `--backend vulkan`"),
        ({"gpu": "rtx3090+rtx4090", "engine": "exllama"}, r"for `--engine llama\.cpp` \(got exllama\)"),
        ({"gpu": "rtx3090+rtx9999"}, "no GPU is called 'rtx9999'"),
    ],
)
def test_what_is_not_possible(options: dict[str, object], said: str) -> None:
    with pytest.raises(PaleoError, match=said):
        pl.local("llama-3.1-8b", **options)  # type: ignore[arg-type]


def test_a_backend_of_both_makers() -> None:
    found = together(LARGE, "rx7900xtx", backend="vulkan")
    assert found.backend == "vulkan" and found.gpus == 2
    with pytest.raises(BadValue):
        together(LARGE, "rx7900xtx")


def test_every_view_names_all_cards() -> None:
    prediction = together(LARGE, SMALL, SMALL)
    named = "GeForce RTX 3090 + 2 x GeForce RTX 4060 Ti 16GB"
    assert prediction.document().title.startswith(f"llama-3.1-8b in q4_k_m on {named}, llama.cpp: ")
    assert _local_card(prediction).device == named
    assert local_chart(prediction).to_dict()["title"]["text"] == f"llama-3.1-8b in q4_k_m on {named}"


@pytest.mark.parametrize(("first", "expected"), [(0, (64, 16)), (1, (16, 64))])
def test_the_fastest_card_is_filled_first(first: int, expected: tuple[int, int]) -> None:
    """By hand: all needs 1.25 times the memory of a card, which holds 64 of 79 blocks and the head."""
    devices = [find_device("rtx3090"), find_device("rtx3090")]
    token_s = [1.0 if number == first else 2.0 for number in range(2)]
    found = fill_fastest(devices, token_s, 1.25 * usable_bytes(devices[0]), LocalQuestion(), 79)
    assert found == expected


def test_a_faster_split_is_named() -> None:
    """A user's three cards: 13.0 tokens/s by memory and 15.6 with a split tuned by hand (validation/local/cards.csv).

    The speed that the note names is that of its split.
    """
    cards, question = (LARGE, "rtx3060", "rtx3060"), {"weights": "q8_0", "context": 512}
    by_memory = predict_local("qwen3-32b", cards, LocalQuestion(**question))  # type: ignore[arg-type]
    (note,) = [note for note in by_memory.notes if "--tensor-split" in note]
    says = re.match(r"`--tensor-split ([0-9,]+)` fills the fastest cards first: ([0-9.]+) tokens/s instead of", note)
    assert says is not None
    split = tuple(map(float, says[1].split(",")))
    tuned = predict_local("qwen3-32b", cards, LocalQuestion(**question, tensor_split=split))  # type: ignore[arg-type]
    assert tuned.tokens_per_s == pytest.approx(float(says[2]), abs=0.05)
    assert by_memory.tokens_per_s == pytest.approx(13.0, rel=0.1) and tuned.tokens_per_s == pytest.approx(15.6, rel=0.1)
    assert not any("--tensor-split" in note for note in tuned.notes if "fills" in note)
