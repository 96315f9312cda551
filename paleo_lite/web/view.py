"""`View`: what every control says, and how it is written in the page's address, so that an address is a view."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..cli import options
from ..cli.values import Names, Number, Whole
from ..counting import GENERATING
from ..distributed.links import link_rate
from ..distributed.table import make_budget
from ..errors import BadValue, PaleoError, UnknownName
from ..timing.models import LEARNT, TIME_MODELS
from ..units import parse_range

VIEWS = {"time": "Time", "batches": "Batch sizes", "scaling": "Many devices", "profile": "Your profile"}
DEVICES_AT_MOST = 6
BATCH_AT_MOST = 2**20
TOKENS_AT_MOST = 2**24
PPP_BOUNDS = (0.01, 100.0)
EPOCH_BOUNDS = (0.01, 1e6)
COUNTS_AT_MOST = 40
WORKERS_AT_MOST = 2**16


class View(msgspec.Struct, frozen=True):
    """What the controls say; empty text where a control is left to what is best known.

    Attributes
    ----------
    view : str
        A key of `VIEWS`.
    network, precision, phase : str
    tokens : int
        Of a sequence, in decode those in the cache; 0 for as many as the network knows, 2,048 at most.
    gpu : tuple of str
        Ids of devices, shown side by side.
    shown : str
        The device whose charts are shown; empty for the first.
    batch : int
        Samples per pass; of `scaling` weak per worker, strong of all.
    model, calibration : str
    ppp : float
        For the model ``ppp``.
    workers, link, scaling, strategy, collective : str
    images, price : str
    epochs : float
    """

    view: str = "time"
    network: str = "resnet50"
    gpu: tuple[str, ...] = ("v100-sxm2",)
    precision: str = "fp32"
    batch: int = 32
    phase: str = "inference"
    tokens: int = 0
    shown: str = ""
    model: str = ""
    ppp: float = 0.5
    calibration: str = ""
    workers: str = "1,2,4,...,64"
    link: str = "infiniband-edr"
    scaling: str = "weak"
    strategy: str = "data"
    collective: str = ""
    images: str = ""
    epochs: float = 1.0
    price: str = ""

    def settled(self) -> View:
        """The same with `shown` only where it is not the first device anyhow."""
        shown = self.shown if self.shown in self.gpu[1:] else ""
        return msgspec.structs.replace(self, shown=shown)

    @property
    def device(self) -> str:
        """The device whose charts are shown; empty where none is chosen."""
        return self.settled().shown or next(iter(self.gpu), "")

    def to_query(self) -> dict[str, list[str]]:
        """The address's parameters: every control that says anything."""
        query = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            texts = list(value) if isinstance(value, tuple) else [_text(value)]
            if name == "gpu" or texts != [""]:
                query[name] = texts or [""]
        return query

    def predict_command(self, gpu: str, *files: str) -> str:
        """The command that gives the same prediction, with further hardware files."""
        words = ["paleo-lite", "predict", self.network, "--gpu", gpu, "--precision", self.precision]
        words += ["--batch-size", str(self.batch), "--phase", self.phase, *self._lengths()]
        words += [*self._model_options(), "--memory"]
        return shlex.join([*words, *_hardware(files)])

    def scale_command(self, gpu: str, *files: str) -> str:
        """The command that gives the same scaling, with further hardware files."""
        words = ["paleo-lite", "scale", self.network, "--gpu", gpu, "--link", self.link, "--workers", self.workers]
        words += ["--precision", self.precision, "--batch-size", str(self.batch), "--scaling", self.scaling]
        words += ["--phase", self.phase] if self.phase in GENERATING else ["--strategy", self.strategy]
        words += [*(["--collective", self.collective] if self.collective else []), *self._lengths()]
        if self.images:
            words += ["--images", self.images, "--epochs", _text(self.epochs)]
            words += ["--price", self.price] if self.price else []
        return shlex.join([*words, *self._model_options(), *_hardware(files)])

    def _lengths(self) -> list[str]:
        option = "--context" if self.phase == "decode" else "--sequence-length"
        return [option, str(self.tokens)] if self.tokens else []

    def _model_options(self) -> list[str]:
        words = ["--time-model", self.model] if self.model and not self.uses_calibration else []
        words += ["--ppp", _text(self.ppp)] if self.takes_ppp else []
        return words + (["--calibration", self.calibration] if self.uses_calibration else [])

    @property
    def uses_calibration(self) -> bool:
        """Whether a calibration is named and the time model takes one."""
        return bool(self.calibration) and self.may_be_calibrated

    @property
    def may_be_calibrated(self) -> bool:
        """Whether the time model takes a calibration."""
        return self.model in ("", LEARNT)

    @property
    def takes_ppp(self) -> bool:
        """Whether the time model takes a PPP."""
        return self.model in TIME_MODELS and "ppp" in TIME_MODELS[self.model].takes


def _hardware(files: Sequence[str]) -> list[str]:
    return [word for file in files for word in ("--hardware-file", file)]


def _text(value: str | float) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _optional(names: Names) -> Callable[[str], str]:
    return lambda text: names(text) if text else text


def read_workers(text: str) -> str:
    """Numbers of workers, as many and as large as a page answers at once.

    Raises
    ------
    BadValue
        If they are not numbers of workers, or too many.
    """
    counts = parse_range(text, "workers")
    if len(counts) > COUNTS_AT_MOST or max(counts) > WORKERS_AT_MOST:
        raise BadValue(
            f"workers {text!r}: the page shows up to {COUNTS_AT_MOST} numbers of up to {WORKERS_AT_MOST:,} workers; "
            "paleo-lite sweep takes more"
        )
    return text


def _link(text: str) -> str:
    link_rate(text)
    return text


def _images(text: str) -> str:
    if text:
        make_budget(None, text, None)
    return text


def _price(text: str) -> str:
    if text:
        make_budget(None, 1.0, None, text)
    return text


READERS: dict[str, Callable[[str], Any]] = {
    "view": Names("view", ".web.view:VIEWS"),
    "network": Names("network", ".architectures:network_names"),
    "gpu": options.DEVICES,
    "precision": options.PRECISIONS,
    "batch": Whole(BATCH_AT_MOST),
    "phase": options.PHASES_AND_GENERATING,
    "tokens": lambda text: 0 if text == "0" else Whole(TOKENS_AT_MOST)(text),
    "shown": _optional(options.DEVICES),
    "model": _optional(options.MODELS),
    "ppp": Number(*PPP_BOUNDS),
    "calibration": _optional(Names("calibration", ".calibration.store:shipped_calibrations")),
    "workers": read_workers,
    "link": _link,
    "scaling": options.SCALINGS,
    "strategy": options.STRATEGIES,
    "collective": _optional(options.COLLECTIVES),
    "images": _images,
    "epochs": Number(*EPOCH_BOUNDS),
    "price": _price,
}
"""From a parameter's text to a control's value, or one sentence.

Only names that are shipped pass: no address opens a file.
"""


def read_query(
    query: Mapping[str, Sequence[str]], own: Callable[[str], Sequence[str]] = lambda control: ()
) -> tuple[View, list[str]]:
    """The view of an address, and a sentence for each invalid parameter: that control keeps its default.

    Parameters
    ----------
    query : mapping of str to sequence of str
        Values of each parameter.
    own : callable
        Of a control's name the names that its session offers besides: of files that were dropped in.
    """
    found: dict[str, Any] = {}
    problems = []
    for name, texts in query.items():
        try:
            found[name] = _read(name, texts, own(name))
        except PaleoError as error:
            problems.append(f"In the address, {name[:40]!r}: {error}")
    return View(**found).settled(), problems


def _read(name: str, texts: Sequence[str], own: Sequence[str]) -> Any:
    if name not in READERS:
        raise UnknownName("control", name, READERS)
    if any(len(text) > 200 for text in texts):
        raise BadValue("that is too long")
    if name == "gpu":
        chosen = dict.fromkeys(text if text in own else READERS[name](text) for text in texts if text)
        if len(chosen) > DEVICES_AT_MOST:
            raise BadValue(f"{len(chosen)} devices are more than the {DEVICES_AT_MOST} that fit side by side")
        return tuple(chosen)
    if len(texts) != 1:
        raise BadValue(f"given {len(texts)} times, but it takes one value")
    return texts[0] if texts[0] in own else READERS[name](texts[0])
