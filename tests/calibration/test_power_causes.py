"""Measured watts as evidence, and devices whose power is calibrated by them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.calibration.evidence_file import EvidenceCalibration
from paleo_lite.calibration.posterior import Observation
from paleo_lite.calibration.power_causes import (
    KIND,
    WATTS,
    is_at_limit,
    learned_device,
    power_notes,
    power_shares,
    power_traits,
)
from paleo_lite.errors import BadDevice, BadValue
from paleo_lite.files import shipped_folder
from paleo_lite.machines import find_device
from paleo_lite.machines.device import LearnedPower
from paleo_lite.machines.registry import read_device
from paleo_lite.timing.activity import Shares
from paleo_lite.timing.energy import PARAMETERS, power_of

H100 = find_device("h100-sxm")
BUSY = Shares(arithmetic=0.2, memory=0.5, links=0.0, utilisation=0.1)


def rows_of(factor: float, network: str = "llama-3.1-8b", device: str = H100.id) -> EvidenceCalibration:
    """Return a calibration by watts that are `factor` times their forecast."""
    power = power_of(H100)
    assert power is not None
    forecast_w, traits = float(power.watts(BUSY)), power_traits(device, network)
    shares = power_shares(power, BUSY)
    rows = [Observation(KIND, WATTS, f"{n}", traits, factor * forecast_w, forecast_w, shares) for n in range(2)]
    return EvidenceCalibration(1, "evidence", rows)


def test_shares_are_those_of_the_demand() -> None:
    power = power_of(H100)
    assert power is not None
    assert sum(power_shares(power, BUSY).values()) == pytest.approx(1)
    waiting = power_shares(power, Shares())
    assert waiting["idle"] == pytest.approx(power.idle_w / float(power.demand_w(Shares())))
    assert is_at_limit(power, Shares(arithmetic=1.0, memory=1.0, utilisation=1.0))
    assert not is_at_limit(power, Shares())


def test_factors_multiply_the_power_without_a_limit() -> None:
    twice = msgspec.structs.replace(H100, learned_power=LearnedPower(dict.fromkeys(PARAMETERS, math.log(2)), 0.5))
    before, after = power_of(H100), power_of(twice)
    assert before is not None and after is not None
    assert after.demand_w(BUSY) == pytest.approx(2 * before.demand_w(BUSY))
    assert after.watts(BUSY) <= H100.power_w
    assert after.deviation(BUSY) == pytest.approx(before.deviation(BUSY) / 2)


def test_watts_move_the_same_network_on_the_same_device() -> None:
    evidence = rows_of(0.7)
    learned = learned_device(H100, "llama-3.1-8b", evidence)
    before, after = power_of(H100), power_of(learned)
    assert before is not None and after is not None
    assert 0.65 < float(after.watts(BUSY) / before.watts(BUSY)) < 0.8
    assert after.deviation(BUSY) < before.deviation(BUSY)
    assert power_notes(learned, "llama-3.1-8b", evidence) == ("power calibrated by 2 measured figures",)
    other = power_of(learned_device(H100, "qwen3-8b", evidence))
    assert other is not None
    assert after.watts(BUSY) < other.watts(BUSY) < before.watts(BUSY)  # what the device has in common
    assert learned_device(find_device("l40s"), "llama-3.1-8b", evidence).learned_power is None
    assert learned_device(H100, "llama-3.1-8b", None) == H100
    assert power_notes(H100, "llama-3.1-8b", evidence) == ()


ASKED: dict[str, Any] = {"gpu": "h100-sxm", "precision": "bf16"}


@pytest.mark.thorough
def test_every_kind_of_question_takes_watts() -> None:
    evidence = rows_of(0.7)
    server: dict[str, Any] = {"concurrency": 8, "num_requests": 32, **ASKED}
    shipped, moved = pl.serve("llama-3.1-8b", **server), pl.serve("llama-3.1-8b", calibration=evidence, **server)
    assert moved.power_w is not None and shipped.power_w is not None
    assert moved.power_w < 0.85 * shipped.power_w
    assert moved.latencies["tpot_s"]["mean"].value == shipped.latencies["tpot_s"]["mean"].value
    assert "power calibrated by 2 measured figures" in moved.model
    asked: list[tuple[Any, dict[str, Any]]] = [
        (pl.predict, {"phase": "decode", "context": 1000, **ASKED}),
        (pl.predict, {"phase": "inference", "sequence_length": 256, **ASKED}),
        (pl.train, {"sequence_length": 512, "batch_size": 1, **ASKED}),
        (pl.local, {"gpu": "h100-sxm"}),
        (pl.rl, {"gpu": "h100-sxm", "workers": 8, "prompts": 8, "response_tokens": 200}),
    ]
    for ask, options in asked:
        before, after = ask("llama-3.1-8b", **options), ask("llama-3.1-8b", calibration=evidence, **options)
        assert after.power_w < before.power_w, ask
    pictures = rows_of(0.7, "pixart-sigma")
    before, after = (pl.diffusion("pixart-sigma", gpu="h100-sxm", steps=4, calibration=one) for one in (None, pictures))
    assert after.power_w < before.power_w
    assert after.time_s == before.time_s


def test_watts_of_pictures_and_of_a_waiting_device_are_read(tmp_path: Path) -> None:
    shipped = pl.diffusion("pixart-sigma", gpu="h100-sxm")
    run = {"gpu_model": "H100-SXM", "num_gpus": 1, "batch_size": 1, "image_width": 1024, "image_height": 1024,
           "inference_steps": 20, "batch_latency_s": 3 * shipped.time_s, "avg_power_watts": 300.0}  # fmt: skip
    path = tmp_path / "pictures.json"
    path.write_text(json.dumps({"model_id": "pixart-sigma", "weight_precision": "bf16", "configurations": [run]}))
    found = pl.calibrate(path, gpu="h100-sxm")
    assert isinstance(found, EvidenceCalibration)
    watts = next(row for row in found.observations if row.kind == KIND)
    assert watts.measured == 300.0
    assert shipped.power is not None  # which waits two thirds of the measured time
    assert watts.forecast == pytest.approx(shipped.power.watts(shipped.activity.shares_of(3 * shipped.time_s)))
    log = tmp_path / "idle.csv"
    line = "2026/11/01 12:00:{:02d}.000, 70.{:d} W\n"
    log.write_text("timestamp, power.draw [W]\n" + "".join(line.format(second, second % 3) for second in range(9)))
    idle = pl.calibrate(log, gpu="h100-sxm")
    assert isinstance(idle, EvidenceCalibration)
    assert [(row.situation, row.traits["network"]) for row in idle.observations] == [("waiting", "")]
    log.write_text(log.read_text() + "2026/11/01 12:00:10.000, 600.0 W\n")
    with pytest.raises(BadValue, match="what ran while the power was measured is not in the file"):
        pl.calibrate(log, gpu="h100-sxm")


def test_no_hardware_file_states_what_was_learned(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = (shipped_folder("hardware") / "h100-sxm.toml").read_text()
    path.write_text(f"{text}\n[learned_power]\nwidth = 1.0\nlogs = {{ idle = 0.1 }}\n")
    with pytest.raises(BadDevice, match="learned_power is calibrated by measured watts, and not a figure of a file"):
        read_device(path)
