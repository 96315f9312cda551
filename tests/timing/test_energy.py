"""The power that devices draw: the formula by hand, the limit, and measured servers.

Tests: timing/energy.py, timing/activity.py.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from asked import predict_any, scaling
from paleo_lite import files
from paleo_lite.errors import BadFile, BadValue
from paleo_lite.machines import find_device, list_devices
from paleo_lite.machines.registry import limit_power
from paleo_lite.timing import energy
from paleo_lite.timing.activity import Activity, Shares
from paleo_lite.timing.energy import (
    PARAMETERS,
    EnergyModel,
    PowerConstants,
    below_limit,
    demand,
    demand_slopes,
    energy_model,
    power_of,
)
from paleo_lite.timing.power import era_of

THETA = np.log([0.2, 0.5, 0.4, 0.1, 0.6])
NO_COVARIANCE = tuple((0.0,) * len(PARAMETERS) for _ in PARAMETERS)


def test_the_demand_is_the_sum_of_shares_and_the_root_of_the_utilisation() -> None:
    """0.2 + 0.5 * 0.3 + 0.4 * 0.5 + 0.1 * 0.1 + 0.6 * sqrt(0.25)."""
    assert demand(THETA, Shares(0.3, 0.5, 0.1, 0.25)) == pytest.approx(0.86)


def test_slopes_are_those_of_finite_differences() -> None:
    shares = Shares(np.array([0.3, 0.1]), np.array([0.5, 0.0]), 0.1, np.array([0.25, 0.04]))
    for index, slope in enumerate(demand_slopes(THETA, shares, 0.7)):
        step = np.zeros(5)
        step[index] = 1e-6
        above, below = (np.log(demand(THETA + sign * step, shares, 0.7)) for sign in (1, -1))
        assert slope == pytest.approx((above - below) / 2e-6, rel=1e-6)


def test_no_step_draws_more_than_the_limit_or_less_than_nothing() -> None:
    for device in list_devices():
        power = power_of(device)
        if power is None:
            continue
        everything = Shares(0.5, 0.5, 0.0, 1.0)
        low_w, high_w = power.interval_w(everything)
        assert 0 < power.idle_w < low_w < power.watts(everything) < power.limit_w
        assert power.watts(everything) < high_w < (power.highest_w or power.limit_w)
        limited = power_of(limit_power(device, 0.5 * power.rated_w))
        assert limited is not None and limited.watts(everything) < 0.5 * power.rated_w


def test_below_the_limit_the_demand_is_drawn() -> None:
    assert below_limit(100.0, 200.0) == pytest.approx(100.0, rel=1e-4)
    assert below_limit(400.0, 200.0) == pytest.approx(200.0, rel=1e-4)


def test_a_locked_clock_draws_its_share_of_the_dynamic_power() -> None:
    """Half of the clock at the lowest voltage, whose square is the inverse of the slope, 1 / 0.6 ** 2."""
    device = find_device("h100-sxm")
    whole, half = power_of(device), power_of(device, 0.5)
    assert whole is not None and half is not None
    shares = Shares(0.0, 0.6, 0.0, 0.01)
    above = half.demand_w(shares) - half.idle_w
    assert above / (whole.demand_w(shares) - whole.idle_w) == pytest.approx(0.5 * 0.6**2, rel=1e-3)


def test_boards_that_exceed_their_boost_clock_draw_more_below_the_limit() -> None:
    """An RTX 3090 holds 1.93 GHz in place of 1.695 GHz; one decodes at 309 W (github.com/noonghunna/club-3090, issue
    698: two of them at 618 W under limits of 330 to 350 W each)."""
    card, shares = find_device("rtx3090"), Shares(0.0, 0.8, 0.0, 0.01)
    free, locked = power_of(card), power_of(card, 1 - 1e-9)
    assert free is not None and locked is not None
    above = free.demand_w(shares) - free.idle_w
    assert above / (locked.demand_w(shares) - locked.idle_w) == pytest.approx((1.93 / 1.695) ** 2, rel=1e-3)
    low_w, high_w = free.interval_w(shares)
    assert low_w < 309 < high_w < 1.25 * 350
    asked = power_of(limit_power(card, 350))
    assert asked is not None and asked.interval_w(shares)[1] < 350
    server = power_of(find_device("a40"))
    assert server is not None and server.dynamic == 1 and server.highest_w is None


def test_kernels_that_read_and_unpack_at_the_same_time_do_both_for_the_whole_time() -> None:
    assert Activity(0.6, 0.9, 0.0, 0.1).overlapping_shares_of(1.0) == Shares(0.6, 0.9, 0.0, 0.1)
    assert Activity(0.6, 1.9, 0.0, 0.1).overlapping_shares_of(1.0).memory == 1


def test_cards_of_an_unknown_process_have_the_constants_of_their_era_and_memory() -> None:
    radeon = power_of(find_device("rx7800xt"))
    assert radeon is not None and radeon.constants == energy_model().others["recent GDDR"]


def test_activities_add_up_and_fill_no_more_than_the_time() -> None:
    total = Activity(1.0, 2.0, 0.5, 0.25).plus(Activity(1.0, 1.0, 0.0, 0.25)).times(2.0)
    assert total == Activity(4.0, 6.0, 1.0, 1.0)
    assert total.shares_of(22.0) == pytest.approx((4 / 22, 6 / 22, 1 / 22, 1 / 22, 0.0))
    assert sum(total.shares_of(5.5)[:3]) == pytest.approx(1.0)


def test_the_activity_of_a_prediction_is_its_time_less_waiting_and_starting() -> None:
    predicted = predict_any("bert-base", gpu="v100-pcie", batch_size=64)
    activity = predicted.activity
    device_s = float(predicted.terms.layers_s.sum()) / predicted.terms.host_slowdown
    assert 0.8 * device_s < activity.arithmetic_s + activity.memory_s < device_s
    assert 0 < activity.peak_s < activity.arithmetic_s + activity.memory_s


def test_unmeasured_devices_are_less_certain_than_measured_ones() -> None:
    """H200 shares the generation of the H100; nothing newer than 2022 with GDDR was measured."""
    shares = Shares(0.2, 0.5, 0.0, 0.05)
    deviations = []
    for name in ("h100-sxm", "h200-sxm", "l40s"):
        power = power_of(find_device(name))
        assert power is not None
        deviations.append(float(power.deviation(shares)))
    assert deviations[0] < deviations[1] < deviations[2]
    assert era_of(find_device("l40s")) == "recent" and era_of(find_device("v100-pcie")) == "older"


def test_a_device_of_several_computes_as_alone_while_it_does_not_wait() -> None:
    alone = Activity(2.0, 1.0, 0.0, 0.5)
    assert alone.in_larger_step(4.0, 5.0, 2.0, 1.0) == pytest.approx((1.0, 0.5, 2.0, 0.25, 0.0))


def test_predict_scale_and_sweep_give_the_same_watts_for_the_same_step(tmp_path) -> None:
    asked = {"gpu": "v100-sxm2", "precision": "fp32", "batch_size": 128}
    predicted = predict_any("resnet50", phase="training", **asked)
    (row,) = scaling("resnet50", workers=[1], samples="1M", **asked)
    question = pl.Train(
        "resnet50", gpu="v100-sxm2", precision="fp32", global_batch_size=128, workers=[1, 2], link="nvlink2"
    )
    swept = pl.sweep(question, tmp_path / "swept.csv", jobs=1).to_frame()
    line, pair = (swept[swept.workers == workers].iloc[0] for workers in (1, 2))
    assert predicted.power_w is not None
    assert row.power_w == pytest.approx(predicted.power_w, rel=0.03)
    assert 1000 * line["kwh"] / line["hours"] == pytest.approx(predicted.power_w, rel=1e-9)
    assert 1000 * pair["kwh"] / pair["hours"] < 2 * predicted.power_w  # both wait for the exchange


def test_kinds_of_layers_share_the_energy_of_the_step() -> None:
    """Linear layers of a prompt compute, and draw more than their share of the time; norms only move data."""
    predicted = predict_any("bert-base", gpu="a40", precision="fp16", batch_size=32)
    kinds = predicted.by_kind()
    assert predicted.layers_energy_j is not None and predicted.power is not None and predicted.energy_j is not None
    idle_j = predicted.energy_j - sum(entry["energy_j"] for entry in kinds.values())
    assert 0 <= idle_j <= 2 * predicted.power.idle_w * predicted.terms.overhead_s
    watts = {kind: entry["energy_j"] / entry["time_s"] for kind, entry in kinds.items() if entry["time_s"]}
    assert watts["linear"] > 1.15 * watts["layer_norm"]


def test_processors_and_unknown_processes_have_no_power_model() -> None:
    assert all(power_of(device) is None for device in list_devices() if device.scope == "cpu")


def test_a_malformed_file_is_named(tmp_path, monkeypatch) -> None:
    broken = EnergyModel(
        devices={"k80": PowerConstants((0.0,), NO_COVARIANCE)},
        generations={},
        others={},
        scatter=0.1,
        expert_scatter=0.1,
        sources=[],
    )
    (tmp_path / "energy.toml").write_bytes(msgspec.toml.encode(broken))
    monkeypatch.setattr(files, "shipped_folder", lambda name: tmp_path)
    energy_model.cache_clear()
    with pytest.raises(BadFile, match=r"energy.toml: theta of k80 must have 5 numbers"):
        energy_model()
    energy_model.cache_clear()


@pytest.mark.parametrize(
    "network, asked",
    [
        ("resnet50", {"batch_size": 64}),
        ("resnet50", {"phase": "training", "batch_size": 8}),
        ("bert-base", {"execution": "compiled"}),
        ("sdxl", {}),
    ],
)
def test_joules_of_layers_and_kinds_add_up_to_those_of_the_step(network: str, asked: dict) -> None:
    """The kinds are ranked by joules, and the overhead of a step is not a layer."""
    device = {"gpu": "h100-sxm", "precision": "fp16"}
    predicted, counts = predict_any(network, **device, **asked), pl.layers(network, **device, **asked)
    answer = counts.to_dict()
    assert answer["on"]["energy_j"] == pytest.approx(predicted.energy_j)
    assert answer["on"]["time_s"] == pytest.approx(predicted.time_s)
    overhead_j = answer["on"].get("overhead_j", 0.0)
    for rows in (answer["by_kind"].values(), answer["parts"] if network == "sdxl" else answer["layers"]):
        assert sum(row["energy_j"] for row in rows) + overhead_j == pytest.approx(predicted.energy_j)
    joules = [entry["energy_j"] for entry in answer["by_kind"].values()]
    assert joules == sorted(joules, reverse=True)


@pytest.mark.parametrize("network", ["resnet50", "sdxl"])
def test_layers_at_the_meter(network: str) -> None:
    """The same as `predict` says, also of a pipeline."""
    site = {"electricity": 0.12, "carbon_intensity": 400, "pue": 1.1}
    asked = {"gpu": "h100-sxm", "precision": "fp16"}
    counts, predicted = pl.layers(network, site=site, **asked), predict_any(network, **site, **asked)
    assert counts.to_dict()["on"]["site"] == pytest.approx(predicted.to_dict()["site"])


def test_layers_at_the_meter_need_a_device() -> None:
    with pytest.raises(BadValue, match="give `--gpu`"):
        pl.layers("resnet50", site={"electricity": 0.12})


def test_joules_of_layers_need_a_forecast_of_the_power() -> None:
    with pytest.raises(BadValue, match="no forecast of joules for Apple M1 in fp32"):
        pl.layers("resnet50", gpu="apple-m1")


def test_joules_of_a_pipeline_by_kind_add_up_on_several_devices_and_with_copies() -> None:
    """What is not a layer, exchanges and copies of parameters, is the overhead."""
    asked = {"gpu": "h100-sxm", "precision": "bf16", "steps": 4}
    for options in ({"ulysses": 4}, {"offload": "sequential"}):
        prediction = predict_any("flux.1-dev", **asked, **options)
        kinds = prediction.by_kind()
        assert sum(kind["energy_j"] for kind in kinds.values()) == pytest.approx(prediction.energy_j)
        assert sum(kind["time_s"] for kind in kinds.values()) == pytest.approx(prediction.time_s)
        assert 0 < kinds["overhead"]["energy_j"] < prediction.energy_j


def test_the_limit_is_a_smooth_minimum_of_the_twelfth_order() -> None:
    # The p-norm of the reciprocals with p = 12: at equality 2^(-1/12) of both, the 6% of `SHARPNESS`
    assert energy.below_limit(200.0, 200.0) == pytest.approx(200 * 2 ** (-1 / 12))
    assert energy.below_limit(400.0, 200.0) == pytest.approx((400.0**-12 + 200.0**-12) ** (-1 / 12))
