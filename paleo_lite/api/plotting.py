"""Charts of what commands answer: `plot`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import msgspec

from ..errors import BadValue, UnknownName
from ..extras import need
from ..files import check_new, save
from ..result import Result


class ChartKind(NamedTuple):
    """A chart: the command whose answer it draws, the function of `report.charts` that draws it, and what it shows.

    What it shows stands inside a sentence; `sentence` is one.
    """

    command: str
    module: str
    function: str
    shows: str

    @property
    def sentence(self) -> str:
        """What it shows."""
        return f"{self.shows[0].upper()}{self.shows[1:]}."


KINDS: dict[str, ChartKind] = {
    "roofline": ChartKind("predict", "roofline", "prediction_roofline", "layers of a network under a device's peaks"),
    "layers": ChartKind("predict", "layers", "layer_chart", "time, FLOPs and bytes of each layer in order"),
    "kinds": ChartKind("predict", "layers", "kind_chart", "shares of time, FLOPs and bytes by kind of layer"),
    "passes": ChartKind("predict", "layers", "pass_chart", "time of each pass by kind of layer"),
    "batch": ChartKind("", "devices", "batch_chart", "throughput and time over the batch size, for several devices"),
    "devices": ChartKind(
        "predict", "devices", "devices_chart", "a time and its interval for each of several devices and networks"
    ),
    "scaling": ChartKind("scale", "scaling", "scale_chart", "speed-up, shares of a step and cost over the workers"),
    "pareto": ChartKind(
        "best", "pareto", "pareto_chart", "the Pareto front of a sweep: rows that no other beats in both columns"
    ),
    "accuracy": ChartKind(
        "validate", "accuracy", "accuracy_chart", "predicted over measured time of what was held out"
    ),
    "fit": ChartKind("calibrate", "accuracy", "accuracy_chart", "fitted over measured time of a calibration"),
    "timeline": ChartKind("", "profiles", "timeline_chart", "what ran when in a profile"),
    "classes": ChartKind("kernels", "profiles", "class_chart", "shares of the classes of kernels of a profile"),
    "kernels": ChartKind("kernels", "profiles", "kernel_roofline", "kernels of a profile under a device's peaks"),
    "efficiency": ChartKind(
        "efficiency", "efficiency", "efficiency_chart", "shares of a device's peaks, by configuration"
    ),
    "compare": ChartKind(
        "compare", "beside", "comparison_chart", "two profiles, or a prediction and one, side by side"
    ),
    "ppp": ChartKind("compare", "beside", "ppp_chart", "what one PPP predicts beside the measured shares of peak"),
}
"""Every chart that can be drawn; without a command it has arguments of its own."""

ROWS_BEHIND_A_FRONT = 3000
"""Rows of a sweep that a chart of its front shows beside it."""


class Plot(Result, msgspec.Struct, frozen=True, eq=False):
    """An answer as a chart; in a notebook the chart itself.

    Attributes
    ----------
    kind : str
    answer : Result
        What is drawn.
    theme : {"light", "dark"}
    """

    kind: str
    answer: Any
    theme: str = "light"

    @property
    def chart(self) -> Any:
        """The Altair chart, to change as you like.

        Raises
        ------
        BadValue
            If the answer has nothing to draw.
        """
        kind = KINDS[self.kind]
        module = importlib.import_module(f"...reporting.charts.{kind.module}", __name__)
        return getattr(module, kind.function)(*_drawn(self.kind, self.answer))

    def render(self, suffix: str) -> bytes:
        """The bytes of a file with that ending."""
        from ..reporting.charts.render import render

        return render(self.chart, suffix, self.theme)

    def save(self, path: str | Path, force: bool = False) -> None:
        """Draw it into a file: ``.png``, ``.svg`` or ``.html``; `force` replaces one that is there."""
        path, suffix = Path(path), check_chart_file(path, self.kind, force)
        save(path, self.render(suffix))

    def document(self, **how: Any) -> Any:
        """What the command prints whose answer it draws."""
        return self.answer.document(**how)

    def to_dict(self) -> dict[str, Any]:
        """The kind, and the documented JSON of the answer."""
        return {"kind": self.kind, "theme": self.theme, "answer": self.answer.to_dict()}

    def _repr_html_(self) -> str:
        return self.render(".svg").decode()

    def __repr__(self) -> str:
        return f"<Plot: {self.kind} of {self.answer!r}>"


_WITHOUT_POOL = ("predict", "scale", "")
"""Commands whose answers are computed in this process alone."""


def check_chart_file(path: str | Path, kind: str, force: bool = False) -> str:
    """The ending of a chart's file; what cannot be drawn into is refused, as before anything is computed.

    Raises
    ------
    BadValue
        If it has another ending than ``.png``, ``.svg`` or ``.html``, is a folder, or is there and not to be replaced.
    BadFile
        If its folder cannot be written.
    MissingExtra
        If the libraries that draw are not installed.
    """
    from ..reporting.charts.render import begin, chart_suffix

    path = Path(path)
    suffix = chart_suffix(path)
    check_new(path, force=force)
    need("vl_convert", "drawing charts", "plots")
    # Other processes start fastest from one with a single thread.
    if suffix != ".html" and KINDS[kind].command in _WITHOUT_POOL:
        begin()
    need("altair", "drawing charts", "plots")
    return suffix


def plot(
    kind: str,
    *subject: Any,
    output: str | Path | None = None,
    theme: str = "light",
    force: bool = False,
    **question: Any,
) -> Plot:
    """Draw a chart of what a command answers.

    Parameters
    ----------
    kind : str
        One of `paleo_lite.api.plotting.KINDS`: ``roofline``, ``layers``, ``scaling``, ``timeline``, ...
    *subject, **question
        What the function takes whose answer is drawn: for ``roofline`` a network and the options of
        `paleo_lite.predict`. ``batch`` takes a network, ``gpus``, ``batch_sizes`` and what else `predict` takes,
        ``devices`` one network or several and what `paleo_lite.api.prediction.predict_several` takes, ``timeline`` a
        profile and ``slices``.
    output : path, optional
        A ``.png``, ``.svg`` or ``.html`` file to draw into; `force` replaces one that is there.
    theme : {"light", "dark"}

    Returns
    -------
    Plot
        A notebook shows the chart; ``chart`` is Altair's, ``save(path)`` writes it, ``answer`` is what it draws.

    Raises
    ------
    PaleoError
        One of its classes; also if the answer has nothing to draw.
    """
    if kind not in KINDS:
        raise UnknownName("chart", kind, KINDS)
    if output is not None:
        check_chart_file(output, kind, force)
    ask = _OWN.get(kind) or resolve_name(f"paleo_lite:{KINDS[kind].command}")
    drawn = Plot(kind, ask(*subject, **question), theme)
    if output is not None:
        drawn.save(output, force)
    return drawn


def batch(
    network: Any,
    *,
    gpus: Sequence[Any] | str,
    batch_sizes: str | Sequence[int] = "1:256:x2",
    **question: Any,
) -> Any:
    """A network at several batch sizes on one device or several: what the chart of that name draws."""
    from ..units import parse_range
    from .prediction import predict_several

    sizes = parse_range(batch_sizes, "batch sizes")
    devices = list(dict.fromkeys([gpus] if isinstance(gpus, str) else gpus))
    kept = {name: [question.pop(name)] for name in ("precision", "phase") if name in question}
    several = {f"{name}s": value for name, value in kept.items()}
    return predict_several([network], gpus=devices, batch_sizes=sizes, memory=False, **several, **question)


def timeline(path: str | Path, *, slices: int = 500) -> Any:
    """What ran when in a profile: what the chart of that name draws."""
    from .profiles import READING

    need(*READING)
    from ..profile_analysis.timeline import read_timeline
    from ..profiles.detect import open_profile

    return read_timeline(open_profile(Path(path)), slices)


def _fit(*subject: Any, **question: Any) -> Any:
    from .calibrations import CalibrateQuestion, learn

    return learn(CalibrateQuestion(*subject, **question))


def _front(*subject: Any, **question: Any) -> Any:
    from ..sweeps.best import FRONT_AT_MOST
    from .sweeps import best

    if len(question.get("pareto") or ()) < 2:
        from ..reporting.charts.pareto import NO_FRONT

        raise BadValue(NO_FRONT)
    return best(*subject, **{"top": FRONT_AT_MOST, "sample": ROWS_BEHIND_A_FRONT, **question})


def _several(networks: Any, **question: Any) -> Any:
    from .prediction import predict_several

    return predict_several([networks] if isinstance(networks, str) else networks, **question)


_OWN: dict[str, Callable[..., Any]] = {
    "batch": batch,
    "devices": _several,
    "timeline": timeline,
    "fit": _fit,
    "pareto": _front,
}
"""What is asked for a chart that no command has, or that shows more than a command prints."""


def _drawn(kind: str, answer: Any) -> list[Any]:
    """What the function of a chart takes, out of an answer."""
    if kind == "batch":
        return [answer.predictions, (), answer.left_out]
    if kind == "timeline":
        return [answer, f"What ran when in {answer.name}"]
    if kind == "accuracy":
        if isinstance(answer, list):  # pairs and titles of what is held out beside the package
            return answer
        from ..reporting.charts.accuracy import network_pairs

        title = f"Predicted beside measured: one {answer.split} left out at a time"
        return [network_pairs(answer.points), title]
    if kind == "fit":
        return list(answer.pairs())
    return [answer]
