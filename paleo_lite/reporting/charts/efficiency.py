"""How well a device was used in many runs: shares of its peaks for each value of what was varied between them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ...profile_analysis.analysis import Efficiency
from ..document import say_many
from .render import SERIES, SHAPES, altair, values

QUANTITIES = {"flops_efficiency": "of peak FLOP/s", "bandwidth_efficiency": "of peak B/s"}

VALUES_AT_MOST = 24
"""Of one setting; beyond, every so many of the ordered values are drawn."""

_NO_SETTINGS = ("file", "return_code", "repetition")


def efficiency_chart(result: Efficiency) -> Any:
    """Shares of the peaks by configuration: means over all profiles that agree in a setting, and lowest to highest.

    The settings are those of ``--group-by`` together, else each one in turn that varies between the profiles.
    """
    alt = altair()
    settings = [tuple(result.group_by)] if result.group_by else [
        (name,) for name in result.configuration
        if name not in _NO_SETTINGS and len({row.get(name) for row in result.rows}) > 1
    ]  # fmt: skip
    drawn, left_out = [], 0
    for names in settings or [()]:
        panel, missing = _rows(result.rows, names)
        left_out += missing
        if panel:
            drawn.append((", ".join(name.replace("_", " ") for name in names), panel))
    rows = [row for _, panel in drawn for row in panel]
    values(rows)
    axis = alt.Scale(domain=[0, max(row["high"] for row in rows) * 1.05])
    panels = []
    for place, (title, panel) in enumerate(drawn):
        last = place == len(drawn) - 1
        base = alt.Chart(values(panel)).encode(
            y=alt.Y("value:N", sort=list(dict.fromkeys(row["value"] for row in panel)), title=title or None,
                    axis=alt.Axis(titleAngle=0, titleAlign="left", titleAnchor="start", titleX=-170, labelLimit=220)),
            color=alt.Color("quantity:N", title=None, legend=alt.Legend(orient="top", symbolType="circle"),
                            scale=alt.Scale(domain=list(QUANTITIES.values()), range=list(SERIES[:2]))),
        )  # fmt: skip
        x = alt.X("mean:Q", scale=axis, title="share of peak" if last else None,
                  axis=alt.Axis(format="%", labels=last, ticks=last, domain=last))  # fmt: skip
        shape = alt.Shape("quantity:N", legend=None,
                          scale=alt.Scale(domain=list(QUANTITIES.values()), range=list(SHAPES[:2])))  # fmt: skip
        tips = [alt.Tooltip("value:N"), alt.Tooltip("quantity:N"), alt.Tooltip("profiles:Q"),
                *(alt.Tooltip(f"{key}:Q", format=".1%") for key in ("mean", "low", "high"))]  # fmt: skip
        reach = base.mark_rule(strokeWidth=3, opacity=0.4).encode(x=alt.X("low:Q", scale=axis), x2=alt.X2("high:Q"))
        dots = base.mark_point(filled=True, size=60, opacity=1).encode(x=x, shape=shape, tooltip=tips)
        panels.append(alt.layer(reach, dots).properties(width=440, height=alt.Step(18)))
    lines = [
        f"{result.device.name}, {result.peak.describe()}",
        f"{say_many(len(result.rows), 'profile')}, {result.method} method; dots are means, bars reach from lowest to "
        "highest",
    ]
    if left_out:
        lines.append(f"{left_out} values of settings are left out")
    return alt.vconcat(*panels, spacing=8).properties(title=alt.Title(_point(drawn), subtitle=lines))


def _point(drawn: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> str:
    """The share of peak over all profiles, and the setting between whose values it differs most."""
    said = []
    for quantity in QUANTITIES.values():
        rows = [row for row in drawn[0][1] if row["quantity"] == quantity]
        if rows:
            mean = sum(row["mean"] * row["profiles"] for row in rows) / sum(row["profiles"] for row in rows)
            said.append(f"{mean:.0%} {quantity}")
    spread = {
        title: max(row["mean"] for row in rows) - min(row["mean"] for row in rows)
        for title, panel in drawn
        for rows in [[row for row in panel if row["quantity"] == panel[0]["quantity"]]]
    }
    most = max(spread, key=lambda title: spread[title])
    return " and ".join(said) + (f"; {most} changes it most" if len(spread) > 1 else "")


def _rows(profiles: Sequence[dict[str, Any]], names: tuple[str, ...]) -> tuple[list[dict[str, Any]], int]:
    """Per value of the settings and quantity mean, lowest and highest; and how many values are left out."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for profile in profiles:
        found.setdefault(tuple(profile.get(name) for name in names), []).append(profile)
    order = sorted(found, key=lambda key: [_place(each) for each in key])
    kept = order[:: -(-len(order) // VALUES_AT_MOST) or 1]
    rows = []
    for key in kept:
        alike = found[key]
        for quantity, title in QUANTITIES.items():
            shares = [profile[quantity] for profile in alike if profile.get(quantity) is not None]
            if shares:
                named = ", ".join("-" if each is None else str(each) for each in key)
                rows.append({"value": named or _name(alike), "quantity": title, "profiles": len(shares),
                             "mean": fmean(shares), "low": min(shares), "high": max(shares)})  # fmt: skip
    return rows, len(order) - len(kept)


def _place(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    return (False, value, "") if isinstance(value, (int, float)) else (True, 0.0, str(value))


def _name(profiles: Sequence[dict[str, Any]]) -> str:
    return str(profiles[0].get("file", "1 profile")) if len(profiles) == 1 else "all profiles"
