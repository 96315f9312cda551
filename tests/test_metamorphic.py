"""Metamorphic tests: properties of predictions for any network, device, precision, phase, model and strategy.

Questions are drawn from a seed, the same everywhere; `make thorough` draws more of them.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from functools import cache, partial

import msgspec
import pytest

import paleo_lite as pl
from asked import scaling
from paleo_lite.architectures import Network
from paleo_lite.architectures.builder import Blob, Builder, Window
from paleo_lite.counting import GENERATION_PHASES, PHASES
from paleo_lite.distributed.strategies import STRATEGIES
from paleo_lite.errors import PaleoError
from paleo_lite.machines import Device, list_devices
from paleo_lite.reporting.explanations import explain_layer
from paleo_lite.timing import BoundModel, Prediction, RooflineModel
from paleo_lite.timing import predict as evaluate
from paleo_lite.timing.power import unlimited_clock
from paleo_lite.units import parse_quantity
from test_schemas import check

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 30))]
QUESTIONS = 5
close = partial(pytest.approx, rel=1e-9)


@cache
def devices() -> list[Device]:
    return list_devices([])


def drawn(seed: int, many: int = QUESTIONS, **fixed) -> Iterator[Prediction]:
    """Predictions of questions that are possible: half of them forecasts, a quarter of training."""
    choose = random.Random(seed)
    while many:
        device = choose.choice(devices())
        question = {
            "gpu": device,
            "precision": choose.choice(sorted(device.precisions)),
            "batch_size": choose.choice([1, 3, 16, 100]),
            "phase": choose.choice([*PHASES, "training", *GENERATION_PHASES]),
            "execution": choose.choice([None, None, "autocast", "channels-last", "folded", "compiled"]),
            **choose.choice([{}, {}, {"time_model": "peak"}, {"time_model": "roofline"}, {"ppp": 0.5}]),
            **fixed,
        }
        try:
            yield pl.predict(choose.choice(pl.network_names()), **question)
        except PaleoError:  # such as an image network asked to write text
            continue
        many -= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_add_up(seed: int) -> None:
    for found in drawn(seed):
        answer = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        check("answers", "predict", answer)
        assert 0 < found.time_s < math.inf and 0 < found.bound_s < math.inf
        assert sum(row["time_s"] for row in answer["layers"]) + answer["constant_s"] == close(found.time_s)
        assert sum(row["bound_s"] for row in answer["layers"]) == close(found.bound_s)
        assert sum(answer["passes_s"].values()) == close(found.time_s)
        assert sum(row["time_s"] for row in found.steps()) == close(found.time_s)
        kinds = answer["by_kind"].values()
        assert sum(kind["share"] for kind in kinds) == close(1 - answer["constant_s"] / found.time_s)
        assert sum(kind["layers"] for kind in kinds) == len(answer["layers"])
        for name in ("flops", "bytes"):
            assert sum(row[name] or 0 for row in answer["layers"]) == answer[name]
        assert answer["throughput_per_s"] * answer["time_s"] == close(answer["batch_size"])
        if answer["memory"] is not None:
            parts = [value for name, value in answer["memory"].items() if name.endswith("_bytes")]
            assert sum(parts[1:10]) == answer["memory"]["total_bytes"]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_forecast_is_inside_its_intervals_and_above_its_bound(seed: int) -> None:
    for found in drawn(seed, execution=None):
        levels = [found.intervals[level] for level in ("90", "80")] if found.intervals else []
        ends = [low for low, _ in levels] + [found.time_s] + [high for _, high in reversed(levels)]
        assert ends == sorted(ends)
        assert found.is_forecast or found.time_s == found.bound_s
        says = [note for note in found.notes if note.startswith("faster than the bound: ")]
        assert bool(says) == (found.is_forecast and found.time_s < found.bound_s)
        peak = evaluate(found.workload, found.machine, pl.timing.PeakModel())
        assert peak.time_s <= found.bound_s * unlimited_clock(found.device) * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_larger_batch_takes_longer_and_a_sample_less(seed: int) -> None:
    for found in drawn(seed):
        # The bound's caches keep more of a small batch than of a large one.
        model = RooflineModel() if isinstance(found.model, BoundModel) else found.model
        once, twice = (
            evaluate(found.workload.with_changes(batch_size=factor * found.batch_size), found.machine, model)
            for factor in (1, 2)
        )
        assert once.time_s <= twice.time_s * (1 + 1e-9)
        assert twice.time_s <= 2 * once.time_s * (1 + 1e-9)


def _faster(device: Device, what: str) -> Device:
    """The same device with twice the bandwidth, or all peaks twice as high."""

    def doubled(quantity):
        value, _, unit = quantity.value.partition(" ")
        return msgspec.structs.replace(quantity, value=f"{2 * float(value)} {unit}")

    if what == "memory":
        return msgspec.structs.replace(
            device, memory=msgspec.structs.replace(device.memory, bandwidth=doubled(device.memory.bandwidth))
        )
    return msgspec.structs.replace(
        device, peaks=[msgspec.structs.replace(peak, value=doubled(peak).value) for peak in device.peaks]
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("what", ["memory", "peaks"])
def test_a_faster_device_is_never_slower(seed: int, what: str) -> None:
    for found in drawn(seed, 4):
        machine = msgspec.structs.replace(found.machine, device=_faster(found.device, what))
        faster = evaluate(found.workload, machine, found.model)
        assert faster.bound_s <= found.bound_s * (1 + 1e-9)
        assert faster.time_s <= found.time_s * (1 + 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_passes_match_other_phases_except_for_waiting(seed: int) -> None:
    """The update's launches add to the host's time; passes that do not wait for the host are equal.

    Passes alone multiply in the precision of their tensors, not in that of a training recipe.
    """
    for found in drawn(seed, 4, phase="training", execution=None):
        if found.workload.options.products is not None:
            continue
        alone = {
            name: evaluate(found.workload.with_changes(phase=name, training=None), found.machine, found.model)
            for name in ("forward", "backward")
        }
        for name, phase in alone.items():
            mine, theirs = (
                {part: each.passes_s[part] - each.waiting_s[part] for part in each.passes_s} for each in (found, phase)
            )
            assert mine[name] == close(theirs[name])
        assert found.time_s >= sum(each.passes_s[name] - each.waiting_s[name] for name, each in alone.items())


PLACES = 6e-4
"""Four digits are printed of each number: a product of two is as far off as this."""


def _number(text: str) -> float:
    """A printed number, in units without prefix."""
    text = text.replace(",", "").split(" (")[0].strip()
    unit = re.search(r"(FLOP/s|FLOP|B/s|B|s)?$", text)
    return parse_quantity(text, unit[0]) if unit[0] else float(text)


def _value(arithmetic: str) -> float:
    """What an expression of ``--explain`` comes to."""
    if arithmetic.startswith("max("):
        return max(map(_number, arithmetic[4:-1].split(", ")))
    if fourth := re.fullmatch(r"\((.*)\)\^\(1/4\)(?: x ([\d.]+) waiting for the host)?", arithmetic):
        terms = (re.sub(r"( shortest kernel)? \^4$", "", term) for term in fourth[1].split(" + "))
        return sum(_number(term) ** 4 for term in terms) ** 0.25 * float(fourth[2] or 1)
    if scaled := re.fullmatch(r"\((.*)\) / ([\d.]+)", arithmetic):
        return sum(map(_number, scaled[1].split(" + "))) / float(scaled[2])
    first, *others = (re.sub(r" of peak$", "", term) for term in arithmetic.split(" / "))
    return _number(first) / math.prod(map(_number, others))


@pytest.mark.parametrize("seed", SEEDS)
def test_explained_products_and_quotients_multiply_out(seed: int) -> None:
    choose = random.Random(seed)
    for found in drawn(seed):
        page = explain_layer(found, choose.choice(found.names))
        facts = dict(page.facts)
        passes = [fact for fact in page.facts if fact[0].split(": ")[-1] in ("compute", "memory", "time")]
        if facts["bound by"] == "fused":  # no time of its own, so that there is nothing to compute
            assert facts["computed"].removeprefix("in the kernel of ") in found.names
            continue
        assert len(passes) == 3 * len(found.terms.passes)
        for term, arithmetic in passes:
            before, _, after = arithmetic.rpartition(" = ")
            assert _number(after) == pytest.approx(_value(before), rel=5 * PLACES), (term, arithmetic)
        share, _, whole = facts["share"].partition(" of ")
        parts = [facts[f"{part}: time"].rpartition(" = ")[2] for part in found.terms.passes]
        together = sum(map(_number, parts))
        assert float(share.rstrip("%")) / 100 == pytest.approx(together / _number(whole), abs=PLACES, rel=2 * PLACES)
        direct = None
        for term, told in page.facts:
            if not term.startswith("as "):
                continue
            count, ratio, peak_s, *_ = re.fullmatch(
                r"(\S+ \w+), (\S+) of direct; (\S+ \w+) at peak(?:; [\d.]+ of peak if this algorithm runs in .*)?", told
            ).groups()
            direct = direct or _number(count)
            assert float(ratio) == pytest.approx(_number(count) / direct, rel=6e-3)
            assert _number(peak_s) == pytest.approx(_number(count) / found.peak.per_s, rel=5 * PLACES)


SPLITS = [None, pl.Settings(bucket_bytes=2**20), pl.Settings(overlap=False)]
MACHINES = [
    "8x k40m @ pcie3, 4 nodes @ infiniband",
    "4x v100-sxm2 @ nvlink2-x6, 8 nodes @ 25 GB/s",
    "8x a100-sxm-80gb @ nvlink3-x12, 16 nodes @ 8x infiniband-hdr",
    "32x t4 @ ethernet20",
]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_many_devices(seed: int) -> None:
    choose, many = random.Random(seed), 4
    while many:
        question = {
            "topology": choose.choice(MACHINES), "precision": choose.choice(["fp32", "fp16"]),
            "workers": [1, 2, 8, 32], "batch_size": choose.choice([32, 128]),
            "scaling": choose.choice(["weak", "strong"]), "strategy": choose.choice(sorted(STRATEGIES)),
            "settings": choose.choice(SPLITS), "time_model": choose.choice([None, "roofline"]), "images": 10**6,
        }  # fmt: skip
        network = choose.choice(pl.network_names())
        try:
            found = scaling(network, **question)
        except PaleoError:  # such as a strategy for another kind of network
            continue
        many -= 1
        answer = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        check("answers", "train", answer)
        for row in answer["rows"]:
            said = (network, question, row)
            parts = row["compute_s"] + row["exposed_s"] + row["update_s"] + row["input_s"]
            assert 0 < row["time_s"] < math.inf and parts == close(row["time_s"]), said
            assert 0 <= row["exposed_s"] <= row["communication_s"] * (1 + 1e-9), said
            assert row["throughput_per_s"] * row["time_s"] == close(row["batch_size"]), said
            assert row["efficiency"] * row["workers"] == close(row["speedup"]), said
            assert row["hours"] == close(10**6 / row["throughput_per_s"] / 3600), said
            low, high = row["interval"] or (row["time_s"], row["time_s"])
            assert low <= row["time_s"] <= high, said
            if question["time_model"] == "roofline":
                assert row["bound_s"] <= row["time_s"] * (1 + 1e-9), said
            # If the samples do not fit on one worker, it is compared with a smaller batch, which is slower per sample.
            if question["strategy"] == "data" and row["speedup_over"] == 1 and row["fits"] is not False:
                assert row["speedup"] <= row["workers"] * (1 + 1e-9), said


WINDOWS = {
    "plain": {"window": Window((3, 5), (1, 1), (1, 2))},
    "by Fourier transform": {"window": Window((5, 11), (1, 1), (2, 5))},
    "one row": {"window": Window((1, 7), (1, 1), (0, 3))},
    "strided": {"window": Window((5, 3), (2, 1), (2, 0))},
    "dilated": {"window": Window((3, 3), (1, 1), (2, 1), (2, 1))},
    "same": {"window": Window((5, 2), (3, 2), "same")},
    "grouped": {"window": Window((3, 5), (1, 2), (1, 2)), "groups": 4},
    "transposed": {"window": Window((4, 3), (2, 1), (1, 1)), "transposed": True},
}
"""Convolutions that are not square."""


def on_its_side(sizes: object) -> object:
    """Sizes of both directions, in the other order."""
    return sizes[::-1] if isinstance(sizes, tuple) else sizes


def network_of_windows(size: tuple[int, int], *, is_turned: bool) -> Network:
    """A network of all convolutions and of pooling, for pictures of a size, or for those pictures on their side."""
    builder = Builder("windows")
    turn = on_its_side if is_turned else lambda sizes: sizes
    image = builder.add("input", "view", [Blob((1, 128, *turn(size)))], (1, 128, *turn(size)))
    for name, options in WINDOWS.items():
        window = Window(*map(turn, options["window"]))
        blob = builder.convolution(name, image, 128, **{**options, "window": window})
        for is_largest in (True, False):
            pool = Window(*map(turn, Window((3, 2), (2, 1), (1, 0))))
            builder.pooling(f"{name} pool {is_largest}", blob, is_largest, pool, ceil=is_largest)
    return builder.network("windows", ((1, 128, *turn(size)),), "made here")


@pytest.mark.parametrize(("gpu", "precision"), [("v100-sxm2", "fp16"), ("titanx-maxwell", "fp32"), ("k80", "fp32")])
@pytest.mark.parametrize("size", [(56, 30), (9, 200)])
def test_a_picture_on_its_side_takes_as_long(gpu: str, precision: str, size: tuple[int, int]) -> None:
    upright, turned = (
        pl.predict(network_of_windows(size, is_turned=is_turned), gpu=gpu, precision=precision, batch_size=8,
                   phase="training").to_dict()
        for is_turned in (False, True)
    )  # fmt: skip
    assert turned["time_s"] == close(upright["time_s"]) and turned["memory"] == upright["memory"]
    for layer, other in zip(upright["layers"], turned["layers"], strict=True):
        for name in ("time_s", "bound_s", "flops", "bytes"):
            assert other[name] == close(layer[name]), (layer["name"], name)
