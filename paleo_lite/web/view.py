"""`View`: the values of all controls, and their conversion to and from the address of the page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..architectures.pipelines.sampling import parse_image_size
from ..cli import options
from ..counting import GENERATION_PHASES, PHASES
from ..distributed.links import link_rate
from ..errors import BadValue, PaleoError, UnknownName
from ..own_machines import LLAMA_CPP
from ..own_machines.engines import LOCAL_ENGINES
from ..questions.values import Integer, Names, Number
from ..serving.requests import parse_lengths
from ..timing.budget import Amount, make_budget
from ..timing.models import CALIBRATED, TIME_MODELS
from ..units import parse_range

VIEWS = {
    "time": "Time",
    "batches": "Batch sizes",
    "scaling": "Scaling",
    "serving": "Serving",
    "pictures": "Pictures",
    "local": "Own machine",
    "profile": "Profile",
}
SCALING_PHASES = ("training", *GENERATION_PHASES)
DEVICES_AT_MOST = 6
BATCH_AT_MOST = 2**20
TOKENS_AT_MOST = 2**24
PPP_BOUNDS = (0.01, 100.0)
EPOCH_BOUNDS = (0.01, 1e6)
COUNTS_AT_MOST = 40
WORKERS_AT_MOST = 2**16
RATE_BOUNDS = (0.01, 10_000.0)
TENSOR_AT_MOST = 64
PIPELINE_AT_MOST = 16
STEPS_AT_MOST = 1000
FRAMES_AT_MOST = 1000
PICTURES_AT_MOST = 1024


class View(msgspec.Struct, frozen=True):
    """The values of the controls; an empty text means the default."""

    view: str = "time"  # A key of `VIEWS`
    network: str = "resnet50"
    gpu: tuple[str, ...] = ("v100-sxm2",)  # ids of the devices
    precision: str = "fp32"
    batch: int = 32  # samples per pass: per worker with weak scaling, in total with strong scaling
    phase: str = "inference"
    # Sequence length, in decode the tokens in the KV cache; 0 for the maximum of the network, up to 2,048.
    tokens: int = 0
    shown: str = ""  # the device of the charts; empty for the first
    model: str = ""
    ppp: float = 0.5  # platform percent of peak of the time model ``ppp``, as a fraction
    calibration: str = ""
    workers: str = "1,2,4,...,64"
    link: str = "infiniband-edr"
    scaling: str = "weak"
    strategy: str = "data"
    collective: str = ""
    images: str = ""
    epochs: float = 1.0
    price: str = ""
    rate: float = 5.0  # requests per second of the serving view
    # Lengths of prompts and answers, such as ``1024``, ``1024:256`` (mean and standard deviation) or a data set.
    input_tokens: str = "1024"
    output_tokens: str = "256"
    # Devices of a stage, groups of them that divide the experts and that compute attention for sequences of their
    # own, and pipeline stages of a replica.
    tensor: int = 1
    expert_parallel: int = 1
    attention_data_parallel: int = 1
    pipeline: int = 1
    policy: str = "vllm"  # serving engine
    generator: str = "sdxl"  # pipeline for pictures or videos
    size: str = ""  # pixels of pictures, or width x height; empty for the pipeline's
    # Denoising steps, and frames of a video; 0 for the pipeline's.
    steps: int = 0
    frames: int = 0
    pictures: int = 1  # pictures or videos in a batch
    offload: str = "none"  # placement of the pipeline's parameters
    execution: str = LLAMA_CPP  # program that runs the model on one's own machine
    weights: str = ""  # its format; empty for the usual one
    context: int = 4096  # tokens in its KV cache

    @property
    def stored_in(self) -> str:
        """The format of the weights on one's own machine, elsewhere the precision."""
        if self.view != "local":
            return self.precision
        return self.weights or LOCAL_ENGINES[self.execution].default_weights

    def normalized(self) -> View:
        """Return it with a phase and a format that are offered, and no `shown` if it is the first device or none."""
        shown = self.shown if self.shown in self.gpu[1:] else ""
        phase = self.phase if self.phase in self.phases else self.phases[0]
        weights = self.weights if self.weights in LOCAL_ENGINES[self.execution].mixtures else ""
        return msgspec.structs.replace(self, shown=shown, phase=phase, weights=weights)

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases that the view offers; the scaling view has no inference."""
        return SCALING_PHASES if self.view == "scaling" else (*PHASES, *GENERATION_PHASES)

    @property
    def device(self) -> str:
        """The device of the charts; empty if no device is selected."""
        return self.normalized().shown or next(iter(self.gpu), "")

    def to_query(self) -> dict[str, list[str]]:
        """Return the query parameters of the address: all controls that are not empty."""
        query = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            texts = list(value) if isinstance(value, tuple) else [_format_value(value)]
            if name == "gpu" or texts != [""]:
                query[name] = texts or [""]
        return query

    def predict_command(self, gpu: str, *files: str) -> str:
        """Return the command of the same prediction, with additional hardware files."""
        words = ["paleo-lite", "predict", self.network, "--gpu", gpu, "--precision", self.precision]
        words += ["--batch-size", str(self.batch), "--phase", self.phase, *self._length_options()]
        words += [*self._model_options(), "--memory"]
        return shlex.join([*words, *_hardware_options(files)])

    def scale_command(self, gpu: str, *files: str) -> str:
        """Return the command of the same scaling prediction, with additional hardware files."""
        if self.phase in GENERATION_PHASES:
            words = ["paleo-lite", "predict", self.network, "--gpu", gpu, "--link", self.link, "--tensor", self.workers]
            words += ["--precision", self.precision, "--batch-size", str(self.batch), "--phase", self.phase]
            words += [*self._length_options(), *self._model_options()]
            return shlex.join([*words, *_hardware_options(files)])
        words = ["paleo-lite", "train", self.network, "--gpu", gpu, "--link", self.link, "--workers", self.workers]
        batch_option = "--batch-size" if self.scaling == "weak" else "--global-batch-size"
        words += ["--precision", self.precision, batch_option, str(self.batch), "--strategy", self.strategy]
        if self.collective:
            words += ["--communication", f"collective={self.collective}"]
        words += self._length_options()
        if self.images:
            tokens = self.images.removesuffix("tokens").strip()
            words += ["--samples", self.images] if tokens == self.images else ["--tokens", tokens]
            words += ["--epochs", _format_value(self.epochs)]
            if self.price:
                words += ["--price", self.price]
        return shlex.join([*words, *self._model_options(), *_hardware_options(files)])

    def serve_command(self, gpu: str, *files: str) -> str:
        """Return the command of the same serving prediction, with additional hardware files."""
        words = ["paleo-lite", "serve", self.network, "--gpu", gpu, "--precision", self.precision]
        words += ["--input-tokens", self.input_tokens, "--output-tokens", self.output_tokens]
        words += ["--rate", _format_value(self.rate), "--engine", self.policy]
        for name in ("tensor", "expert_parallel", "attention_data_parallel", "pipeline"):
            degree = getattr(self, name)
            if degree > 1:
                words += [f"--{name.replace('_', '-')}", str(degree)]
        return shlex.join([*words, *_hardware_options(files)])

    def pictures_command(self, gpu: str, *files: str) -> str:
        """Return the command of the same prediction of a pipeline, with additional hardware files."""
        words = ["paleo-lite", "diffusion", self.generator, "--gpu", gpu, "--precision", self.precision]
        for option, value in (("--image-size", self.size), ("--steps", self.steps), ("--frames", self.frames)):
            if value:
                words += [option, str(value)]
        if self.pictures > 1:
            words += ["--batch-size", str(self.pictures)]
        if self.offload != "none":
            words += ["--offload", self.offload]
        return shlex.join([*words, "--memory", *_hardware_options(files)])

    def local_command(self, gpus: Sequence[str], *files: str) -> str:
        """Return the command of the same ranking on one's own machine, with additional hardware files."""
        words = ["paleo-lite", "local", self.network, "--gpu", ",".join(gpus), "--engine", self.execution]
        words += ["--context", str(self.context), "--advise"]
        words += ["--weights", self.weights] if self.weights and len(gpus) > 1 else []
        return shlex.join([*words, *_hardware_options(files)])

    def _length_options(self) -> list[str]:
        option = "--context" if self.phase == "decode" else "--sequence-length"
        return [option, str(self.tokens)] if self.tokens else []

    def _model_options(self) -> list[str]:
        words = []
        if self.model and not self.uses_calibration:
            words += ["--time-model", self.model]
        if self.accepts_ppp:
            words += ["--ppp", _format_value(self.ppp)]
        if self.uses_calibration:
            words += ["--calibration", self.calibration]
        return words

    @property
    def uses_calibration(self) -> bool:
        """Whether a calibration is selected and the time model accepts one."""
        return bool(self.calibration) and self.accepts_calibration

    @property
    def accepts_calibration(self) -> bool:
        """Whether the time model accepts a calibration."""
        return self.model in ("", CALIBRATED)

    @property
    def accepts_ppp(self) -> bool:
        """Whether the time model accepts a PPP."""
        return self.model in TIME_MODELS and "ppp" in TIME_MODELS[self.model].options


def _hardware_options(files: Sequence[str]) -> list[str]:
    return [word for file in files for word in ("--hardware-file", file)]


def _format_value(value: str | float) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _optional(names: Names) -> Callable[[str], str]:
    return lambda text: names(text) if text else text


def read_workers(text: str) -> str:
    """Check numbers of workers, limited to what the page computes quickly.

    Raises
    ------
    BadValue
        If the text is not a range of numbers, or there are too many workers.
    """
    counts = parse_range(text, "workers")
    if len(counts) > COUNTS_AT_MOST or max(counts) > WORKERS_AT_MOST:
        raise BadValue(
            f"workers {text!r}: the page supports up to {COUNTS_AT_MOST} numbers of up to {WORKERS_AT_MOST:,} workers; "
            "use `paleo-lite sweep` for more"
        )
    return text


def _link(text: str) -> str:
    link_rate(text)
    return text


def _images(text: str) -> str:
    if text:
        make_budget(None, Amount(images=text))
    return text


def _price(text: str) -> str:
    if text:
        make_budget(None, Amount(images=1.0), text)
    return text


def local_formats() -> list[str]:
    """Return the formats of all programs that run a model on one's own machine."""
    return list(dict.fromkeys(name for engine in LOCAL_ENGINES.values() for name in engine.mixtures))


def _picture_size(text: str) -> str:
    if text:
        parse_image_size(text)
    return text


def _lengths(option: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        parse_lengths(text, option, option == "--input-tokens")
        return text

    return read


READERS: dict[str, Callable[[str], Any]] = {
    "view": Names("view", ".web.view:VIEWS"),
    "network": Names("network", ".architectures:network_names"),
    "gpu": options.DEVICES,
    "precision": options.PRECISIONS,
    "batch": Integer(BATCH_AT_MOST),
    "phase": options.PHASES_AND_GENERATING,
    "tokens": lambda text: 0 if text == "0" else Integer(TOKENS_AT_MOST)(text),
    "shown": _optional(options.DEVICES),
    "model": _optional(options.MODELS),
    "ppp": Number(*PPP_BOUNDS),
    "calibration": _optional(Names("calibration", ".calibration.store:shipped_calibrations")),
    "workers": read_workers,
    "link": _link,
    "scaling": Names("scaling", ".distributed.scale:SCALINGS"),
    "strategy": Names("strategy", ".distributed.strategies:STRATEGIES"),
    "collective": _optional(Names("collective", ".distributed.collectives:COLLECTIVES")),
    "images": _images,
    "epochs": Number(*EPOCH_BOUNDS),
    "price": _price,
    "rate": Number(*RATE_BOUNDS),
    "input_tokens": _lengths("--input-tokens"),
    "output_tokens": _lengths("--output-tokens"),
    "tensor": Integer(TENSOR_AT_MOST),
    "expert_parallel": Integer(TENSOR_AT_MOST),
    "attention_data_parallel": Integer(TENSOR_AT_MOST),
    "pipeline": Integer(PIPELINE_AT_MOST),
    "policy": Names("serving engine", ".serving.engines:ENGINES"),
    "generator": Names("pipeline", ".architectures.pipelines.records:pipelines"),
    "size": _picture_size,
    "steps": lambda text: 0 if text == "0" else Integer(STEPS_AT_MOST)(text),
    "frames": lambda text: 0 if text == "0" else Integer(FRAMES_AT_MOST)(text),
    "pictures": Integer(PICTURES_AT_MOST),
    "offload": Names("offload of a pipeline", ".timing.pipeline_run:PIPELINE_OFFLOADS"),
    "execution": Names("engine", ".own_machines.engines:LOCAL_ENGINES"),
    "weights": _optional(Names("format of the weights", ".web.view:local_formats")),
    "context": Integer(TOKENS_AT_MOST),
}
"""Parser of each query parameter.

Only shipped names are accepted, so that an address cannot open files.
"""


def read_query(
    query: Mapping[str, Sequence[str]], own_names: Callable[[str], Sequence[str]] = lambda control: ()
) -> tuple[View, list[str]]:
    """Return the view of an address, and a message for each invalid parameter, which keeps its default.

    Parameters
    ----------
    query : mapping of str to sequence of str
        Values of each parameter.
    own_names : callable
        Returns the names of uploaded files that a control offers.
    """
    values: dict[str, Any] = {}
    problems = []
    for name, texts in query.items():
        try:
            values[name] = _read_parameter(name, texts, own_names(name))
        except PaleoError as error:
            problems.append(f"In the address, {name[:40]!r}: {error}")
    return View(**values).normalized(), problems


def _read_parameter(name: str, texts: Sequence[str], own_names: Sequence[str]) -> Any:
    if name not in READERS:
        raise UnknownName("control", name, READERS)
    if any(len(text) > 200 for text in texts):
        raise BadValue("the value is longer than 200 characters")
    if name == "gpu":
        gpus = dict.fromkeys(text if text in own_names else READERS[name](text) for text in texts if text)
        if len(gpus) > DEVICES_AT_MOST:
            raise BadValue(f"at most {DEVICES_AT_MOST} devices can be compared (got {len(gpus)})")
        return tuple(gpus)
    if len(texts) != 1:
        raise BadValue(f"must have one value (got {len(texts)})")
    return texts[0] if texts[0] in own_names else READERS[name](texts[0])
