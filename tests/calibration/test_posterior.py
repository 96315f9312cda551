"""Evidence: rows of result files move causes, transfer, and name what does not fit.

Tests: calibration/evidence_file.py.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from paleo_lite.calibration.evidence_file import LEAST_S, EvidenceCalibration, best_rows, is_interval
from paleo_lite.calibration.posterior import (
    COMMANDS,
    KINDS,
    EvidencePrior,
    KindPrior,
    LeftOut,
    Observation,
    Posterior,
    condition,
    evidence_prior,
)
from paleo_lite.calibration.store import read_calibration, write_calibration
from paleo_lite.errors import BadFile, BadValue, CalibrationFailed

PRIOR = KindPrior(
    {"engine": ["engine"], "device": ["engine", "device"]},
    {"host": {"engine": 0.6, "device": 0.2}, "kernels": {"engine": 0.1, "device": 0.4}},
    {"tpot_s": 0.05},
)


def row(ratio: float, host: float = 0.0, device: str = "a", situation: str = "one") -> Observation:
    """Return a row with a share of the host, and a ratio of measured over forecast."""
    return Observation(
        "server",
        "tpot_s",
        situation,
        {"engine": "vllm", "device": device},
        ratio,
        1.0,
        {"host": host, "kernels": 1 - host},
    )


def test_without_rows_nothing_moves() -> None:
    factors = Posterior((), PRIOR).factors({"engine": "vllm", "device": "a"})
    log_time, after, before = factors.log_time({"host": 0.5, "kernels": 0.5}, 0.05)
    assert log_time == 0.0
    assert after == before == pytest.approx(0.25 * (0.6**2 + 0.2**2) + 0.25 * (0.1**2 + 0.4**2) + 0.05**2)


def test_one_row_is_the_update_of_a_normal_distribution() -> None:
    """With one cause the mean is ratio * variance / (variance + noise), and the variance their harmonic mean."""
    factors = Posterior((row(1.2),), PRIOR).factors({"engine": "vllm", "device": "a"})
    variance, noise = 0.1**2 + 0.4**2, 0.05**2
    assert factors.mean[1] == pytest.approx(np.log(1.2) * variance / (variance + noise), rel=1e-6)
    assert factors.covariance[1, 1] == pytest.approx(variance * noise / (variance + noise), rel=1e-6)
    assert factors.mean[0] == 0.0
    assert factors.covariance[0, 0] == pytest.approx(0.4)


def test_the_common_part_of_a_cause_transfers_to_another_device() -> None:
    posterior = Posterior((row(2.0, host=1.0),), PRIOR)
    own = posterior.factors({"engine": "vllm", "device": "a"})
    other = posterior.factors({"engine": "vllm", "device": "b"})
    stranger = posterior.factors({"engine": "sglang", "device": "a"})
    assert own.of("host") > other.of("host") > 1.5
    assert own.covariance[0, 0] < other.covariance[0, 0] < stranger.covariance[0, 0]
    assert stranger.of("host") == 1.0


def test_two_mixtures_tell_causes_apart() -> None:
    """Seconds are 2 * host + 1 * kernels, which is not linear in the logarithms."""
    rows = tuple(row(2.0 * share + (1 - share), share, situation=str(share)) for share in (0.05, 0.3, 0.6, 0.9))
    factors = Posterior(rows, PRIOR).factors({"engine": "vllm", "device": "a"})
    assert factors.of("host") == pytest.approx(2.0, rel=0.06)
    assert factors.of("kernels") == pytest.approx(1.0, abs=0.06)


def test_an_outlier_is_named_and_counts_less() -> None:
    good = [row(1.3, 0.1 * index, situation=f"row {index}") for index in range(6)]
    posterior = Posterior((*good, row(4.0, 0.35, situation="wrong")), PRIOR)
    ((outlier, distance),) = posterior.outliers
    assert outlier.situation == "wrong"
    assert distance > 3
    factors = posterior.factors({"engine": "vllm", "device": "a"})
    assert np.exp(factors.log_time({"host": 0.3, "kernels": 0.7}, 0.05)[0]) == pytest.approx(1.3, rel=0.06)


def test_left_out_rows_are_forecast_by_the_others() -> None:
    rows = tuple(row(1.5, 0.2, situation=str(index)) for index in range(5))
    left_out = Posterior(rows, PRIOR).left_out()
    assert all(abs(one.error) < 0.02 < abs(one.row.log_ratio) for one in left_out)
    assert all(one.deviation < one.deviation_before for one in left_out)


def test_a_run_that_is_left_out_informs_none_of_its_figures() -> None:
    """Each row is forecast as by a posterior of the rows of the other runs, to the accuracy of the linearisation."""
    rows = tuple(
        msgspec.structs.replace(row(ratio, host, situation=str(number)), figure=figure)
        for number, (ratio, host) in enumerate([(1.05, 0.1), (1.08, 0.5), (1.06, 0.3)])
        for figure in ("tpot_s", "ttft_s")
    )
    prior = msgspec.structs.replace(PRIOR, noise={"tpot_s": 0.05, "ttft_s": 0.1})
    posterior = Posterior(rows, prior)
    assert posterior.runs() == [[0, 1], [2, 3], [4, 5]]
    for one in posterior.left_out():
        others = Posterior(tuple(other for other in rows if other.situation != one.row.situation), prior)
        total, after, before = others.factors(one.row.traits).log_time(one.row.shares, prior.noise[one.row.figure])
        assert one.error == pytest.approx(one.row.log_ratio - total, abs=1e-3)
        assert (one.deviation, one.deviation_before) == pytest.approx((after**0.5, before**0.5), rel=0.02)


def test_a_single_run_keeps_its_errors() -> None:
    rows = (row(1.5, 0.2), msgspec.structs.replace(row(1.7, 0.9), figure="ttft_s"))
    left_out = Posterior(rows, msgspec.structs.replace(PRIOR, noise={"tpot_s": 0.05, "ttft_s": 0.1})).left_out()
    for one in left_out:
        assert one.error == pytest.approx(one.row.log_ratio)
        assert one.deviation == pytest.approx(one.deviation_before)


def test_intervals_are_those_of_the_command() -> None:
    """An interval of 0.8 to 1.5 is 0.63 wide in logarithms; 1.645 deviations are an end of one of the posterior.

    Half of the deviation is left of a prior that is narrower than the interval, which is half as wide then. Of a wider
    prior more is left: the interval is that of the posterior. Without a change of the deviation it stays.
    """
    stated = msgspec.structs.replace(row(1.2), interval=(0.8, 1.5))
    whole = np.log(0.8), np.log(1.5)
    assert LeftOut(stated, 0.1, 0.2, 0.4).ends_before == pytest.approx(whole)
    assert LeftOut(stated, 0.1, 0.05, 0.1).ends == pytest.approx((whole[0] / 2, whole[1] / 2))
    narrow = LeftOut(stated, 0.1, 0.1, 0.4).ends
    assert narrow[1] - narrow[0] == pytest.approx(2 * 1.645 * 0.1) and narrow[0] / narrow[1] == pytest.approx(
        whole[0] / whole[1]
    )
    assert LeftOut(stated, 0.1, 0.1, 0.1).ends == LeftOut(stated, 0.1, 0.4, 0.4).ends == pytest.approx(whole)
    assert LeftOut(row(1.2), 0.1, 0.2, 0.4).ends == pytest.approx((-1.645 * 0.2, 1.645 * 0.2))


def test_rows_of_something_else_surprise() -> None:
    assert abs(Posterior((row(1.1), row(1.2, 0.5)), PRIOR).surprise()) < 1
    assert Posterior((row(8.0), row(8.5, 0.1)), PRIOR).surprise() > 3.5


def test_thousand_rows_are_conditioned_on() -> None:
    generator = np.random.default_rng(0)
    rows = tuple(
        row(1.5 * float(np.exp(generator.normal(0, 0.05))), share, situation=str(share))
        for share in np.linspace(0, 1, 200)
    )
    factors = Posterior(rows, PRIOR).factors({"engine": "vllm", "device": "a"})
    assert factors.of("host") == pytest.approx(1.5, rel=0.05)
    assert factors.of("kernels") == pytest.approx(1.5, rel=0.05)


def test_the_next_measurement_is_that_which_tells_most() -> None:
    posterior = Posterior((row(1.2, 0.0),), PRIOR)
    candidates = [row(1.0, 0.05, situation="kernels"), row(1.0, 0.9, situation="host")]
    first, second = best_rows(posterior, candidates, 2)
    assert (first.situation, second.situation) == ("host", "kernels")
    assert first.ends_before > first.ends_after == second.ends_before > second.ends_after
    assert best_rows(posterior, [], 1) == []


def test_unknown_kind_is_a_sentence() -> None:
    with pytest.raises(BadValue, match="nothing calibrates forecasts of the kind weather"):
        condition([], "weather", EvidencePrior({"server": PRIOR}))


def test_the_shipped_prior_knows_servers_and_machines() -> None:
    prior = evidence_prior()
    assert set(prior.kinds) == set(KINDS) == set(COMMANDS)
    for kind in prior.kinds.values():
        assert kind.rows > kind.groups > 25
        assert all(0 < one < 1.5 for levels in kind.causes.values() for one in levels.values())


def server_row(ratio: float = 1.5, situation: str = "16 users") -> Observation:
    """Return a row of a server for the shipped prior."""
    traits = {"source": "", "engine": "vllm", "device": "h100-sxm", "format": "bf16", "network": "llama-3-8b"}
    return Observation("server", "tpot_s", situation, traits, ratio * 0.01, 0.01, {"products": 0.7, "host": 0.3})


def test_a_network_takes_its_own_factor_to_another_device() -> None:
    posterior = condition([server_row(2.0), server_row(2.0, "64 users")], "server")

    def products(**changes: str) -> float:
        return posterior.factors(server_row().traits | changes).of("products")

    same, elsewhere = products(), products(device="h200-sxm")
    assert same > elsewhere > products(device="h200-sxm", network="qwen3-8b") > 1
    assert products(engine="sglang", network="qwen3-8b") == pytest.approx(1)


def test_a_file_keeps_what_it_says(tmp_path: Path) -> None:
    calibration = EvidenceCalibration(1, "evidence", [server_row(), server_row(1.6, "64 users")])
    write_calibration(calibration, tmp_path / "mine.toml")
    found = read_calibration(tmp_path / "mine.toml")
    assert isinstance(found, EvidenceCalibration)
    assert found.to_dict() == calibration.to_dict()
    assert found.label == "2 measured figures of servers"
    text = found.describe_distance("server", server_row().traits | {"device": "l40s"})
    assert text == "calibrated by 2 measured figures of another device (h100-sxm): only what both have in common moves"
    with pytest.raises(CalibrationFailed, match="not single passes of networks"):
        found.model()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measured": float("nan")}, "measured is nan, expected a finite number"),
        ({"forecast": 1e308}, "forecast must be above 0"),
        ({"forecast": -1.0}, "forecast must be above 0"),
        ({"kind": "weather"}, "kind must be one of"),
        ({"figure": "rain_s"}, "figure must be one of"),
        ({"shares": {"products": 0.2}}, "add up to 1"),
        ({"shares": {"products": -1.0, "host": 2.0}}, "add up to 1"),
        ({"shares": {"magic": 1.0}}, "'magic' is not among the causes"),
        ({"traits": {}}, "traits must name the device"),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path: Path, change: dict[str, object], message: str) -> None:
    damaged = msgspec.structs.replace(server_row(), **change)
    write_calibration(EvidenceCalibration(1, "evidence", [damaged]), tmp_path / "mine.toml")
    with pytest.raises(BadFile, match=message):
        read_calibration(tmp_path / "mine.toml")


@pytest.mark.parametrize(("ratio", "share"), [(0.7, 0.0), (1.0, 1.0), (1.4, 0.0)])
def test_a_row_is_inside_an_interval_between_its_ends(ratio: float, share: float) -> None:
    """Without another run the interval is that of the command, here 0.8 to 1.25 times the forecast of 10 ms."""
    stated = msgspec.structs.replace(server_row(ratio), interval=(0.008, 0.0125))
    (accuracy,) = EvidenceCalibration(1, "evidence", [stated]).accuracy()
    assert accuracy.inside_before == share and accuracy.ends_before == pytest.approx(1.25 / 0.8)


def test_warnings_name_outliers_and_files_of_something_else() -> None:
    rows = [server_row(12.0 + index / 100, f"{index} users") for index in range(4)]
    (first, *_) = EvidenceCalibration(1, "evidence", rows).warnings()
    assert "the rows of servers take 12 times their forecasts" in first
    assert "check the network, the device, the number of devices and the format" in first


def test_an_outlier_below_the_others_is_below() -> None:
    good = [row(1.3, 0.1 * index, situation=f"row {index}") for index in range(6)]
    ((outlier, distance),) = Posterior((*good, row(0.4, 0.35, situation="wrong")), PRIOR).outliers
    assert outlier.situation == "wrong" and distance < -3


def test_an_interval_contains_its_figure_and_its_ends() -> None:
    for time_s, is_inside in ((1.0, True), (2.0, True), (0.99, False), (2.01, False)):
        assert is_interval((1.0, 2.0), time_s) == is_inside
    assert not is_interval((LEAST_S / 2, 2.0), 1.0)
