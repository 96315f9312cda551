"""The time models: formulas, refusals, and what no model may ever do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.timing import OverlappingPppModel, PeakModel, PppModel, RooflineModel, TimeModel, find_model, models
from strategies import MODELS, SECONDS


def test_formulas() -> None:
    """Qi et al. 2017: (C + M) / PPP, where they are concurrent the larger; Williams et al. 2009: the larger."""
    compute, memory = np.array([3.0, 1.0]), np.array([1.0, 4.0])
    assert PeakModel().time_s(compute, memory).tolist() == [3, 1]
    assert RooflineModel().time_s(compute, memory).tolist() == [3, 4]
    assert PppModel(0.5).time_s(compute, memory).tolist() == [8, 10]
    assert OverlappingPppModel(2.0).time_s(compute, memory).tolist() == [1.5, 2]


@given(MODELS, SECONDS, SECONDS, SECONDS)
def test_more_work_never_takes_less_time(model: TimeModel, compute: float, memory: float, more: float) -> None:
    base = model.time_s(np.array([compute]), np.array([memory]))
    assert (model.time_s(np.array([compute + more]), np.array([memory])) >= base).all()
    assert (model.time_s(np.array([compute]), np.array([memory + more])) >= base).all()


@given(MODELS, SECONDS, SECONDS, st.floats(0.1, 10))
def test_time_has_the_unit_of_its_terms(model: TimeModel, compute: float, memory: float, unit: float) -> None:
    once = model.time_s(np.array([compute]), np.array([memory]))
    scaled = model.time_s(np.array([compute * unit]), np.array([memory * unit]))
    assert np.allclose(scaled, once * unit)


@given(MODELS, st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6))
def test_models_broadcast(model: TimeModel, pairs: list[tuple[float, float]]) -> None:
    compute, memory = np.array(pairs).T
    together = model.time_s(compute[:, None], memory[None, :])
    apart = [[model.time_s(np.array([c]), np.array([m]))[0] for m in memory] for c in compute]
    assert np.array_equal(together, np.array(apart))


@pytest.mark.parametrize(
    ("name", "ppp", "kind"),
    [
        (None, None, RooflineModel), (None, 0.62, PppModel), ("ppp-overlap", 1.17, OverlappingPppModel),
        ("peak", None, PeakModel), ("ppp", 0.5, PppModel), ("roofline", None, RooflineModel),
    ],
)  # fmt: skip
def test_a_model_by_name_or_by_what_is_given(name: str | None, ppp: float | None, kind: type) -> None:
    assert isinstance(find_model(name, ppp), kind)


def test_a_ppp_that_looks_like_percent_is_questioned() -> None:
    assert find_model("ppp", 62).notes == ("a PPP of 62 means 62 times the peak: for 62 percent use 0.62",)
    assert find_model("ppp", 1.4).notes == ()  # a faster algorithm looks like this


@pytest.mark.parametrize("ppp", [0, -0.5, float("nan"), float("inf"), "fast", None])
def test_an_impossible_ppp_is_refused(ppp: object) -> None:
    with pytest.raises(BadValue, match="PPP"):
        find_model("ppp", ppp)  # type: ignore[arg-type]


def test_options_of_another_model_are_refused() -> None:
    with pytest.raises(BadValue, match="belongs to the ppp model, not to roofline"):
        find_model("roofline", 0.5)
    with pytest.raises(BadValue, match="ppp-overlap model needs a PPP"):
        find_model("ppp-overlap")
    with pytest.raises(UnknownName, match="did you mean roofline"):
        find_model("rooflne")


def test_a_model_of_the_list_may_be_the_place_of_its_class(monkeypatch):
    monkeypatch.setitem(models.TIME_MODELS, "elsewhere", models.ModelEntry("models:RooflineModel"))
    assert models.find_model("elsewhere") == models.RooflineModel()
