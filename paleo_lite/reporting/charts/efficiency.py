"""Chart of the achieved shares of peak in many profiles, for each value of the varied settings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ...profile_analysis.analysis import Efficiency
from ...profile_analysis.recorded_device import require_peak
from ...text import format_plural
from ..columns import find_column
from .render import SERIES, SHAPES, altair, inline_data

QUANTITIES = {name: find_column(name).heading for name in ("flops_efficiency", "bandwidth_efficiency")}

VALUES_AT_MOST = 24
"""Maximum number of values of a setting; of more values, every n-th is drawn."""

_NO_SETTINGS = ("file", "return_code", "repetition")


def efficiency_chart(result: Efficiency) -> Any:
    """Draw the shares of peak by setting: mean, lowest and highest over the profiles with the same value.

    The settings are the combination given by ``--group-by``, else each setting that varies between the profiles.
    """
    device, peak = require_peak(result.device, result.peak)
    alt = altair()
    settings: list[tuple[str, ...]] = []
    if result.group_by:
        settings.append(tuple(result.group_by))
    else:
        for name in result.configuration:
            if name not in _NO_SETTINGS and len({row.get(name) for row in result.rows}) > 1:
                settings.append((name,))
    settings_with_rows, left_out = [], 0
    for names in settings or [()]:
        panel, skipped = _panel_rows(result.rows, names)
        left_out += skipped
        if panel:
            settings_with_rows.append((", ".join(name.replace("_", " ") for name in names), panel))
    rows = [row for _, panel in settings_with_rows for row in panel]
    inline_data(rows)  # raises if there is nothing to draw
    axis = alt.Scale(domain=[0, max(row["high"] for row in rows) * 1.05])
    panels = []
    for index, (title, panel) in enumerate(settings_with_rows):
        is_last = index == len(settings_with_rows) - 1
        base = alt.Chart(inline_data(panel)).encode(
            y=alt.Y(
                "value:N",
                sort=list(dict.fromkeys(row["value"] for row in panel)),
                title=title or None,
                axis=alt.Axis(titleAngle=0, titleAlign="left", titleAnchor="start", titleX=-170, labelLimit=220),
            ),
            color=alt.Color(
                "quantity:N",
                title=None,
                legend=alt.Legend(orient="top", symbolType="circle"),
                scale=alt.Scale(domain=list(QUANTITIES.values()), range=list(SERIES[:2])),
            ),
        )
        x = alt.X(
            "mean:Q",
            scale=axis,
            title="share of peak" if is_last else None,
            axis=alt.Axis(format="%", labels=is_last, ticks=is_last, domain=is_last),
        )
        shape = alt.Shape(
            "quantity:N", legend=None, scale=alt.Scale(domain=list(QUANTITIES.values()), range=list(SHAPES[:2]))
        )
        tooltip = [
            alt.Tooltip("value:N"),
            alt.Tooltip("quantity:N"),
            alt.Tooltip("profiles:Q"),
            *(alt.Tooltip(f"{key}:Q", format=".1%") for key in ("mean", "low", "high")),
        ]
        reach = base.mark_rule(strokeWidth=3, opacity=0.4).encode(x=alt.X("low:Q", scale=axis), x2=alt.X2("high:Q"))
        dots = base.mark_point(filled=True, size=60, opacity=1).encode(x=x, shape=shape, tooltip=tooltip)
        panels.append(alt.layer(reach, dots).properties(width=440, height=alt.Step(18)))
    lines = [
        f"{device.name}, {peak.describe()}",
        f"{format_plural(len(result.rows), 'profile')}, {result.method} method; dots: means, bars: lowest to highest",
    ]
    if left_out:
        lines.append(f"{left_out} values of settings are not drawn")
    return alt.vconcat(*panels, spacing=8).properties(title=alt.Title(_title(settings_with_rows), subtitle=lines))


def _title(panels: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> str:
    """Return the mean shares of peak over all profiles, and the setting with the largest effect."""
    shares = []
    for quantity in QUANTITIES.values():
        rows = [row for row in panels[0][1] if row["quantity"] == quantity]
        if rows:
            mean = sum(row["mean"] * row["profiles"] for row in rows) / sum(row["profiles"] for row in rows)
            shares.append(f"{mean:.0%} {quantity}")
    title = " and ".join(shares)
    spread = {}
    for setting, panel in panels:
        means = [row["mean"] for row in panel if row["quantity"] == panel[0]["quantity"]]
        spread[setting] = max(means) - min(means)
    if len(spread) > 1:
        title += f"; largest effect: {max(spread, key=lambda setting: spread[setting])}"
    return title


def _panel_rows(profiles: Sequence[dict[str, Any]], names: tuple[str, ...]) -> tuple[list[dict[str, Any]], int]:
    """Return mean, lowest and highest share per value and quantity, and the number of values not drawn."""
    profiles_by_value: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for profile in profiles:
        profiles_by_value.setdefault(tuple(profile.get(name) for name in names), []).append(profile)
    ordered = sorted(profiles_by_value, key=lambda key: [_sort_key(value) for value in key])
    step = -(-len(ordered) // VALUES_AT_MOST) or 1
    shown = ordered[::step]
    rows = []
    for key in shown:
        group = profiles_by_value[key]
        for quantity, title in QUANTITIES.items():
            shares = [profile[quantity] for profile in group if profile.get(quantity) is not None]
            if shares:
                label = ", ".join("-" if value is None else str(value) for value in key)
                rows.append(
                    {
                        "value": label or _group_name(group),
                        "quantity": title,
                        "profiles": len(shares),
                        "mean": fmean(shares),
                        "low": min(shares),
                        "high": max(shares),
                    }
                )
    return rows, len(ordered) - len(shown)


def _sort_key(value: Any) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by value, before texts."""
    return (False, value, "") if isinstance(value, (int, float)) else (True, 0.0, str(value))


def _group_name(profiles: Sequence[dict[str, Any]]) -> str:
    return str(profiles[0].get("file", "1 profile")) if len(profiles) == 1 else "all profiles"
