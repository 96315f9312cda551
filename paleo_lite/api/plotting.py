"""`plot`: charts of the results of the other functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import msgspec

from ..arguments import check_arguments
from ..errors import UnknownName
from ..extras import require
from ..files import check_outputs, save
from ..result import Result


def priced_devices() -> list[str]:
    """Return the ids of all devices with a recorded price."""
    from ..machines import list_devices
    from ..machines.prices import choose_price

    return [device.id for device in list_devices() if choose_price(device) is not None]


class ChartKind(NamedTuple):
    """A kind of chart."""

    command: str  # command whose result is drawn; empty for a chart with a computation of its own
    # Module of `paleo_lite.reporting.charts` and the function in it that draws the chart.
    module: str
    function: str
    description: str  # noun phrase for help texts, without capital letter and period
    # Options of the question that the chart has unless they are given.
    defaults: Callable[[], dict[str, Any]] = dict
    # Function of `paleo_lite.api.charted` that computes what no command prints, or more than it prints; empty for the
    # result of the command.
    computation: str = ""

    @property
    def sentence(self) -> str:
        """The description with a capital letter and a period."""
        return f"{self.description[0].upper()}{self.description[1:]}."


KINDS: dict[str, ChartKind] = {
    "roofline": ChartKind(
        "predict", "roofline", "prediction_roofline", "layers of a network under the peaks of a device"
    ),
    "layers": ChartKind("predict", "layers", "layer_chart", "time, FLOPs and bytes of each layer in order"),
    "kinds": ChartKind("predict", "layers", "kind_chart", "fractions of time, FLOPs and bytes by layer kind"),
    "passes": ChartKind("predict", "layers", "pass_chart", "time of each pass by layer kind"),
    "batch": ChartKind(
        "predict",
        "devices",
        "batch_chart",
        "throughput and time over the batch size, for one or several devices",
        lambda: {"batch_size": "1:256:x2"},
    ),
    "devices": ChartKind(
        "predict", "devices", "devices_chart", "predicted times with intervals, for several devices and networks"
    ),
    "scaling": ChartKind(
        "train", "scaling", "scale_chart", "speed-up, parts of a step and cost over the number of workers"
    ),
    "schedule": ChartKind(
        "train", "schedule", "schedule_chart", "schedule of a pipeline: passes, exchanges and bubble of each stage"
    ),
    "serving": ChartKind(
        "serve",
        "serving",
        "serving_chart",
        "latencies of a deployment, or with --advise tokens per second per GPU over tokens per second per user",
    ),
    "rl": ChartKind(
        "rl",
        "reinforcement",
        "rl_chart",
        "phases of a step of reinforcement learning over the devices with live sequences, or divisions compared",
    ),
    "local": ChartKind(
        "",
        "local",
        "local_chart",
        "tokens per second of a language model under llama.cpp, by device or by format",
        computation="rank_locally",
    ),
    "pareto": ChartKind(
        "best",
        "ranking",
        "best_chart",
        "best rows of a sweep by one column, or the Pareto front of several",
        computation="find_front",
    ),
    "memory": ChartKind(
        "",
        "memory",
        "memory_chart",
        "peak memory of a language model by part, over batch size and tokens",
        computation="memory_ranges",
    ),
    "cost": ChartKind(
        "predict",
        "cost",
        "cost_chart",
        "cost of a million samples against time of several devices, with the Pareto front",
        lambda: {"gpu": priced_devices()},
    ),
    "accuracy": ChartKind(
        "validate", "accuracy", "accuracy_chart", "predicted over measured time of held-out measurements"
    ),
    "fit": ChartKind(
        "calibrate", "accuracy", "accuracy_chart", "fitted over measured time of a calibration", computation="fit"
    ),
    "timeline": ChartKind(
        "", "profiles", "timeline_chart", "device activity over time in a profile", computation="timeline"
    ),
    "classes": ChartKind("kernels", "profiles", "class_chart", "fractions of time by kernel class in a profile"),
    "kernels": ChartKind("kernels", "profiles", "kernel_roofline", "kernels of a profile under the peaks of a device"),
    "efficiency": ChartKind(
        "efficiency", "efficiency", "efficiency_chart", "fractions of the peaks of a device, by configuration"
    ),
    "compare": ChartKind(
        "compare", "comparison", "comparison_chart", "two profiles, or a prediction and a profile, compared"
    ),
    "ppp": ChartKind(
        "compare",
        "comparison",
        "ppp_chart",
        "prediction with a single PPP, compared with the measured fractions of peak",
    ),
}
"""All kinds of charts."""

CHARTS_OF_STEPS = ("devices", "batch", "cost")
"""Charts of several steps side by side."""


def chart_of_comparison(comparison: Any) -> str:
    """Return the kind of chart that draws answers side by side."""
    from ..sweeps.comparison import are_steps

    if are_steps(comparison.answers):
        return CHARTS_OF_STEPS[0]
    return {"serve": "serving", "rl": "rl"}.get(comparison.kind, CHARTS_OF_STEPS[0])


class Plot(Result, msgspec.Struct, frozen=True, eq=False):
    """A result as a chart, which a notebook displays.

    Attributes
    ----------
    kind : str
        Name in `KINDS`.
    answer : Result
        The result that is drawn.
    theme : {"light", "dark"}
    """

    kind: str
    answer: Any
    theme: str = "light"

    @property
    def chart(self) -> Any:
        """The Altair chart, which can be modified.

        Raises
        ------
        BadValue
            If the result has nothing to draw.
        """
        kind = KINDS[self.kind]
        module = importlib.import_module(f"...reporting.charts.{kind.module}", __name__)
        draw = getattr(module, kind.function)
        return draw(*_chart_arguments(self.kind, self.answer))

    def render(self, suffix: str) -> bytes:
        """Return the content of an image file with this suffix: ``.png``, ``.svg`` or ``.html``."""
        from ..reporting.charts.render import render

        return render(self.chart, suffix, self.theme)

    def save(self, path: str | Path, force: bool = False) -> None:
        """Write a ``.png``, ``.svg`` or ``.html`` file; an existing file is replaced only with `force`."""
        suffix = check_chart_file(path, self.kind, force)
        save(Path(path), self.render(suffix))

    def document(self, **options: Any) -> Any:
        """Return the document of the result."""
        return self.answer.document(**options)

    def to_dict(self) -> dict[str, Any]:
        """Return the kind, the theme and the JSON of the result."""
        return {"kind": self.kind, "theme": self.theme, "answer": self.answer.to_dict()}

    def _repr_html_(self) -> str:
        return self.render(".svg").decode()

    def __repr__(self) -> str:
        return f"<Plot: {self.kind} of {self.answer!r}>"


_COMMANDS_IN_ONE_PROCESS = ("predict", "train", "")


def check_chart_file(path: str | Path, kind: str, force: bool = False) -> str:
    """Check that a chart can be written to a file, and return the suffix of the file.

    Raises
    ------
    BadValue
        If the suffix is not ``.png``, ``.svg`` or ``.html``, the path is a folder, or the file exists and `force` is
        False.
    BadFile
        If the folder is not writable.
    MissingExtra
        If the plotting libraries are not installed.
    """
    from ..reporting.charts.render import chart_suffix, warm_up_renderer

    path = Path(path)
    suffix = chart_suffix(path)
    check_outputs(path, force=force)
    require("vl_convert", "drawing charts", "plots")
    # The renderer starts in a thread; commands with a process pool fork faster from a process with a single thread.
    if suffix != ".html" and KINDS[kind].command in _COMMANDS_IN_ONE_PROCESS:
        warm_up_renderer()
    require("altair", "drawing charts", "plots")
    return suffix


@check_arguments
def plot(
    kind: str,
    *subject: Any,
    output: str | Path | None = None,
    theme: str = "light",
    force: bool = False,
    **arguments: Any,
) -> Plot:
    """Draw a chart of the result of another function.

    Parameters
    ----------
    kind : str
        One of `paleo_lite.api.plotting.KINDS`: ``roofline``, ``layers``, ``scaling``, ``timeline``, ...
    *subject, **arguments
        Arguments of the function whose result is drawn: for ``roofline`` a network and the arguments of
        `paleo_lite.predict`. ``batch`` has the batch sizes 1 to 256 and ``cost`` all devices with a price, unless
        others are given; ``timeline`` takes a profile and ``slices``.
    output : path, optional
        A ``.png``, ``.svg`` or ``.html`` file to write; an existing file is replaced only with `force`.
    theme : {"light", "dark"}
        Colours of the chart.

    Returns
    -------
    Plot
        A notebook displays the chart; ``chart`` is the Altair chart, ``save(path)`` writes it,
        ``answer`` is the result.

    Raises
    ------
    PaleoError
        As for the other function, or if the result has nothing to draw.
    """
    if kind not in KINDS:
        raise UnknownName("chart", kind, KINDS)
    if output is not None:
        check_chart_file(output, kind, force)
    command, computation = KINDS[kind].command, KINDS[kind].computation
    name = f"paleo_lite.api.charted:{computation}" if computation else f"paleo_lite:{command}"
    chart = Plot(kind, resolve_name(name)(*subject, **{**KINDS[kind].defaults(), **arguments}), theme)
    if output is not None:
        chart.save(output, force)
    return chart


def _chart_arguments(kind: str, answer: Any) -> list[Any]:
    """Return the arguments of the function that draws a chart."""
    if kind == "batch":
        from ..sweeps.comparison import as_comparison

        comparison = as_comparison(answer)
        return [comparison.answers, (), comparison.left_out]
    if kind == "timeline":
        return [answer, f"Device activity over time in {answer.name}"]
    if kind == "accuracy":
        if isinstance(answer, list):  # pairs and titles from the validation outside the package
            return answer
        from ..reporting.charts.accuracy import held_out_title, network_pairs

        title = f"Predicted and measured times, one {answer.split} held out at a time"
        return [network_pairs(answer.points), title, "", held_out_title(answer.rows)]
    if kind == "fit":
        return list(answer.pairs())
    return [answer]
