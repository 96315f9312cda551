"""`--explain` prints the arithmetic that was done: multiplied out, of any device, precision and pass."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paleo_lite as pl
from paleo_lite.calibration.poolable import why_not_pooled
from paleo_lite.hardware import list_devices
from paleo_lite.report.predictions import explain_layer
from paleo_lite.units import parse_quantity

ASKED = [(device.id, precision) for device in list_devices([]) if not device.parts for precision in device.precisions]
NAMES = ("conv1", "bn1", "layer2.0.conv2", "layer4.1.relu", "avgpool", "fc")
PLACES = 2e-3
"""Four digits are printed of each factor."""


def seconds(text: str) -> float:
    return parse_quantity(text, "s")


@given(
    asked=st.sampled_from(ASKED), name=st.sampled_from(NAMES), batch_size=st.sampled_from([1, 7, 64]),
    phase=st.sampled_from(["inference", "training"]), model=st.sampled_from([None, "roofline"]),
)  # fmt: skip
def test_what_is_printed_multiplies_out(asked, name, batch_size, phase, model) -> None:
    gpu, precision = asked
    prediction = pl.predict(
        "resnet18", gpu=gpu, precision=precision, batch_size=batch_size, phase=phase, time_model=model
    )
    page = explain_layer(prediction, name)
    facts = dict(page.facts)
    for part in prediction.terms.passes:
        terms = []
        for term in ("compute", "memory"):
            words = re.fullmatch(
                r"([\d,]+) (?:FLOP|B) / ([\d.e+-]+ \w+)/s(?: \(.*?\))?(?: / ([\d.e+-]+) reached)? = (.*)",
                facts[f"{part}: {term}"],
            )
            assert words, facts[f"{part}: {term}"]
            count, rate, reached, taken = words.groups()
            per_s = parse_quantity(rate, "FLOP" if term == "compute" else "B")
            assert seconds(taken) == pytest.approx(
                int(count.replace(",", "")) / per_s / float(reached or 1), rel=3 * PLACES
            )
            terms.append(seconds(taken))
        words = re.search(r"\+ (\S+ \S+) shortest kernel \^4\)\^\(1/4\)(?: x ([\d.]+) waiting for the host)? = (.*)",
                          facts[f"{part}: time"])  # fmt: skip
        if prediction.model.name == "calibrated":
            assert words
            floor, waiting, taken = words.groups()
            together = sum(term**4 for term in (*terms, seconds(floor))) ** 0.25
            assert seconds(taken) == pytest.approx(together * float(waiting or 1), rel=5 * PLACES)
        else:
            assert words is None
            assert seconds(facts[f"{part}: time"].split("= ")[-1]) == pytest.approx(max(terms), rel=PLACES)


@pytest.mark.parametrize(
    ("gpu", "precision", "named"),
    [
        ("gtx1080ti", "fp16", "fp32 vector"),
        ("a100-sxm-80gb", "fp64", "fp64 vector"),
        ("v100-sxm2", "fp16", "fp16 tensor"),
    ],
)
def test_the_peak_that_is_named_is_the_one_that_is_used(gpu: str, precision: str, named: str) -> None:
    prediction = pl.predict("resnet18", gpu=gpu, precision=precision)
    peak = f"{prediction.peak.peak.precision} {prediction.peak.peak.unit}"
    assert peak == named and f"({named})" in dict(explain_layer(prediction, "conv1").facts)["inference: compute"]
    assert prediction.to_dict()["peak_flops"] == prediction.peak.per_s


@pytest.mark.slow
def test_no_forecast_beats_the_peak_of_slow_fp16_units() -> None:
    """A GTX 1080 Ti computes fp16 networks in fp32: the bound counts that, too."""
    for device in list_devices([]):
        if device.vendor == "NVIDIA" and not why_not_pooled(device) and "fp16" in device.precisions:
            bound = pl.predict("vit_b_16", gpu=device, precision="fp16", batch_size=64, time_model="peak")
            assert bound.time_s < pl.predict("vit_b_16", gpu=device, precision="fp16", batch_size=64).time_s
