"""What surrounds the devices: energy at the meter, its cost and CO2, by hand and in answers.

Tests: timing/facility.py.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from asked import scaling
from paleo_lite.cli import main
from paleo_lite.errors import BadValue
from paleo_lite.timing.facility import Facility, make_facility

SITE = {"electricity": "0.12 USD/kWh", "carbon_intensity": "400 g/kWh", "pue": 1.25, "host_watts": "100 W"}


def test_the_meter_counts_hosts_and_cooling() -> None:
    """Two devices draw 500 W for half an hour, their hosts 100 W each: 0.6 kWh, times 1.25 = 0.75 kWh."""
    facility = make_facility(**SITE)
    assert facility == Facility(1.25, 100.0, 0.12, 400.0)
    site = facility.site_energy(2 * 500 * 1800, 2 * 1800)
    assert site.energy_j / 3.6e6 == pytest.approx(0.75)
    assert (site.usd, site.co2_g) == pytest.approx((0.09, 300))
    assert facility.describe() == "hosts of 100 W per device and a PUE of 1.25"


def test_nothing_is_added_unless_it_is_asked_for() -> None:
    assert make_facility() is None and Facility().describe() == ""
    site = Facility(usd_per_kwh=0.2).site_energy(3.6e6, 100.0)
    assert site.to_dict() == {"energy_j": 3.6e6, "usd": pytest.approx(0.2), "co2_g": None}
    assert pl.predict("alexnet", gpu="k40m").to_dict()["site"] is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pue": 0.9}, "`--site pue` must be a number between 1 and 10"),
        ({"host_watts": -5}, "`--site host-watts` must be >= 0 W per device (got -5)"),
        ({"electricity": "0.1 USD/h"}, "`--site electricity`: '0.1 USD/h' is not in USD/kWh"),
        ({"electricity": -1}, "`--site electricity` must be >= 0 USD/kWh (got -1)"),
        ({"carbon_intensity": "much"}, "`--site carbon-intensity`: 'much' is not a quantity"),
        ({"carbon_intensity": float("nan")}, "`--site carbon-intensity` must be >= 0 g/kWh (got nan)"),
    ],
)
def test_bad_values_get_one_sentence(given, message) -> None:
    with pytest.raises(BadValue) as caught:
        make_facility(**given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_predict_and_scale_agree_on_the_meter() -> None:
    asked = {"gpu": "v100-sxm2", "precision": "fp32", "batch_size": 128}
    predicted = pl.predict("resnet50", phase="training", **asked, site=SITE)
    (row,) = scaling("resnet50", workers=[1], **asked, **SITE)
    assert predicted.site is not None and row.site is not None and predicted.energy_j is not None
    assert predicted.site.energy_j == pytest.approx(1.25 * (predicted.energy_j + 100 * predicted.time_s))
    assert row.site.energy_j == pytest.approx(predicted.site.energy_j, rel=0.03)


def test_serve_counts_the_time_in_which_devices_wait() -> None:
    serving = pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=1, num_requests=32, site=SITE)
    values = {name: figure.value for name, figure in serving.figures.items()}
    devices_j = values["joules_per_million_output_tokens"]
    hosts_j = 100 / (1 * 256) * 1e6  # one request of 256 tokens a second, in the long run
    assert values["site_joules_per_million_output_tokens"] == pytest.approx(1.25 * (devices_j + hosts_j))
    assert values["electricity_usd_per_million_output_tokens"] == pytest.approx(
        0.12 * values["site_joules_per_million_output_tokens"] / 3.6e6
    )


def test_options_of_the_command() -> None:
    words = "predict resnet50 --gpu t4 --site electricity=0.3,carbon-intensity=400g/kWh,pue=1.5,host-watts=50W"
    answer = json.loads(CliRunner().invoke(main, [*words.split(), "--format", "json"]).output)
    meter_j = 1.5 * (answer["energy_j"] + 50 * answer["time_s"])
    assert answer["site"]["energy_j"] == pytest.approx(meter_j)
    assert answer["site"]["co2_g"] == pytest.approx(meter_j / 3.6e6 * 400)
    text = " ".join(CliRunner().invoke(main, words.split()).output.split())
    assert "at the meter" in text and "a PUE of 1.5" in text
    micro_usd = 1e6 * meter_j / 3.6e6 * 0.3
    assert f"{micro_usd:.4g} USD of electricity per million batches" in text


def test_advice_by_joules() -> None:
    by_energy = pl.serve("llama-3.1-8b", gpu="h100-sxm,l40s", concurrency=16, advise="joules", tensor=1)
    joules = [candidate.joules_per_million_output_tokens for candidate in by_energy.advice.candidates]
    assert joules == sorted(joules) and by_energy.advice.best is by_energy.advice.candidates[0]
    table = scaling("resnet50", gpu="v100-sxm2", link="nvlink2", workers=8, batch_size=32, advise="joules")
    energies = [row.energy_per_sample_j for row in table.rows if row.fits]
    assert energies == sorted(energies)
    shown = table.document(top=2).content[0]
    assert len(shown.rows) == 2 and shown.title == f"Strategies, the best 2 of {len(table)}"
    (energy,) = [column for column in shown.columns if column.key == "kwh_per_million"]
    assert energy.drop_order == 0  # what was ranked by is shown at any width
