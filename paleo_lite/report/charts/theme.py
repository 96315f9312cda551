"""How charts look: one colour for each group of layers everywhere, on paper and in the dark."""

from __future__ import annotations

from typing import Any

import msgspec

from ...counting import KINDS

GROUPS: dict[str, str] = {
    "convolution": "#0072B2",
    "matrix product": "#D55E00",
    "attention": "#CC79A7",
    "normalisation": "#1FC08F",
    "activation": "#E8A90C",
    "elementwise": "#70701C",
    "pooling": "#7CC3EE",
    "data movement": "#A0A0A0",
    "update": "#B08D74",
    "communication": "#8F2F82",
    "other": "#B0B0B0",
}
"""Colour of each group of work: hues of Okabe and Ito's set, told apart by the colour-blind, and of Tol's.

Those that stand beside one another differ in grey, too, as paper and copies show them. Each has a contrast of nearly 2
or more against both backgrounds, so that a group keeps its colour in either theme.
"""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933", "#7F7F7F")
"""Colours of things that are not groups of layers: devices, strategies, measured and predicted."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
"""Shapes that go with `SERIES`: no chart tells things apart by colour alone."""

_OTHERS = {
    "norm": "normalisation", "normalization": "normalisation", "gemm": "matrix product", "pool": "pooling",
    "pooling": "pooling", "elementwise": "elementwise", "random": "elementwise", "reduction": "elementwise",
    "input": "data movement", "layout": "data movement", "indexing": "data movement", "memcpy": "data movement",
    "memset": "data movement", "optimizer": "update", "update": "update", "communication": "communication",
}  # fmt: skip
"""Classes of work and of kernels that are not kinds of layers."""


def group_of(kind: str) -> str:
    """The group of a kind of layer, a class of work or a class of kernels: a key of `GROUPS`."""
    if kind in KINDS:
        return KINDS[kind].group
    return "convolution" if kind.startswith("conv") else _OTHERS.get(kind, "other")


class Theme(msgspec.Struct, frozen=True):
    """Background, ink (text, axes, rooflines) and faint ink (grid)."""

    name: str
    background: str
    ink: str
    faint: str

    def config(self) -> dict[str, Any]:
        """The configuration of Vega-Lite for this theme."""
        text = {"labelColor": self.ink, "titleColor": self.ink, "labelFontSize": 11, "titleFontSize": 12}
        return {
            "background": self.background,
            "font": "sans-serif",
            "view": {"stroke": None},
            "title": {
                "color": self.ink, "subtitleColor": self.ink, "anchor": "start", "fontSize": 14,
                "subtitleFontSize": 11, "offset": 12, "limit": 900,
            },
            "axis": {**text, "gridColor": self.faint, "domainColor": self.ink, "tickColor": self.ink, "labelLimit": 260,
                     "titleFontWeight": "normal", "labelFlush": False},
            "legend": {**text, "titleFontWeight": "normal", "labelLimit": 260,
                       "symbolBaseFillColor": self.ink, "symbolBaseStrokeColor": self.ink, "symbolOpacity": 1},
            "header": {**text, "titleFontWeight": "normal"},
            "range": {"category": list(SERIES)},
            "text": {"color": self.ink, "fontSize": 11},
            "rule": {"color": self.ink},
            "line": {"color": self.ink},
        }  # fmt: skip


THEMES = {
    "light": Theme("light", "#FFFFFF", "#22262B", "#DDDDDD"),
    "dark": Theme("dark", "#16191D", "#E6E8EA", "#3A3F45"),
}
