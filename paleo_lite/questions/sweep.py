"""`sweep`: the answers to all combinations of the values of a question, written to a file row by row.

Questions about single passes and steps, whose options are axes of `sweeps.space.Space`, are answered as arrays; all
others combination by combination.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..architectures.catalog import is_factory
from ..arguments import check_arguments
from ..counting import GENERATION_PHASES
from ..errors import BadValue, SequenceTooLong
from .compare import FULL_PRECISION, check_no_pipeline, is_pipeline, published_weights, usual_precision
from .kind import QuestionKind, find_kind
from .option import Options
from .values import FIT

if TYPE_CHECKING:
    from ..sweeps.questions import QuestionSpace
    from ..sweeps.run import AnySpace, Sweep
    from ..sweeps.space import Space

MAX_UNCONFIRMED_HOURS = 2.0
"""Core hours above which a sweep must be confirmed."""


@check_arguments
def sweep(
    question: Options,
    output: str | Path,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    force: bool = False,
    yes: bool = False,
    dry_run: bool = False,
    on_done: Callable[[int, int], None] | None = None,
) -> Sweep | AnySpace:
    """Answer all combinations of the values of a question, and write them to a file.

    The row of a combination without an answer states the reason. To resume an interrupted sweep, call the function
    again with the same arguments.

    >>> import paleo_lite as pl
    >>> pl.sweep(pl.Train("resnet50", gpu=["t4", "l4"], batch_size="1:64:x2"), "rows.parquet")  # doctest: +SKIP

    Parameters
    ----------
    question : Predict, Train, Serve, Local or Diffusion
        The question, with several values of any of its options.
    output : path
        ``.parquet`` or ``.csv`` file; an existing file is replaced only with `force`.
    jobs : int, optional
        Number of processes (default: one per core).
    scheduler : str, optional
        Address of a Dask scheduler, such as ``tcp://host:8786``; the sweep runs on its workers.
    force : bool
        Replace an existing output file.
    yes : bool
        Run even if the sweep takes more than `MAX_UNCONFIRMED_HOURS`.
    dry_run : bool
        Return the combinations without answering them.
    on_done : callable, optional
        Function that is called with the number of completed chunks and the total number of chunks.

    Raises
    ------
    PaleoError
        If a name is unknown, the output file exists, the sweep is too large, or an extra is missing.
    """
    from ..sweeps.run import run_sweep

    space = space_of(question)
    if dry_run:
        return space
    if space.hours() > MAX_UNCONFIRMED_HOURS and not yes:
        raise BadValue(
            f"the sweep has {space.size:,} combinations ({space.describe()}), which take about {space.hours():,.3g} "
            f"core hours and {space.gigabytes():,.3g} GB: reduce it, or confirm with `--yes`"
        )
    answer = _answer_function(space)
    return run_sweep(space, Path(output), answer, jobs=jobs, scheduler=scheduler, force=force, progress=on_done)


def _answer_function(space: AnySpace) -> Callable[..., Any]:
    """Return the function that answers the combinations of a space."""
    from ..calibration.choose import choose_model
    from ..sweeps.space import Space

    return choose_model if isinstance(space, Space) else answer_of_kind


def answer_of_kind(kind: str, options: Mapping[str, Any]) -> Any:
    """Return the answer to a question of a kind with single values of its options."""
    question_kind = find_kind(kind)
    return question_kind.answer(question_kind.record(**options))


def space_of(question: Options) -> AnySpace:
    """Return the combinations of a question.

    Raise PaleoError if a name is unknown, or no combination can be answered.
    """
    kind = kind_of(question)
    make_grid = _GRIDS.get(kind.name)
    try:
        space: AnySpace | None = None if make_grid is None else make_grid(question)
    except SequenceTooLong:
        if not {"network", "sequence_length", "context"} & set(question.several()):
            raise  # no combination can be answered
        space = None  # combinations answered one by one are rows with the reason
    if space is None:
        space = _question_space(kind, question)
    space.check()
    return space


def kind_of(question: Options) -> QuestionKind:
    """Return the kind of a question."""
    return find_kind(type(question).__name__.lower())


def _question_space(kind: QuestionKind, question: Any) -> QuestionSpace:
    """Return the combinations of a question that are answered one by one."""
    from ..machines import find_device
    from ..sweeps.questions import QuestionSpace

    several = question.several()
    order = [*(name for name in kind.order if name in several), *(name for name in several if name not in kind.order)]
    single = {name: _as_text(getattr(question, name)) for name in question.given() if name not in several}
    networks = several.get("network", [question.network])
    if "network" not in several and question.network is not None:
        single["network"] = question.network
    files = tuple(str(Path(file).absolute()) for file in question.hardware_files)
    if files:
        single["hardware_files"] = files
    for gpu in _values(question, "gpu"):
        if isinstance(gpu, str):
            find_device(gpu, [Path(file) for file in files])  # raises UnknownName
    return QuestionSpace(
        asks=kind.name,
        axes=tuple((name, tuple(map(_as_text, several[name]))) for name in order),
        options=single,
        networks=tuple(name for name in networks if isinstance(name, str)),
        hardware_files=files,
        samples=_samples_of_rows(kind.name, question),
    )


def _samples_of_rows(kind: str, question: Any) -> float | None:
    """Return the number of samples that hours and costs of rows refer to; None for the amount of the question."""
    if kind in ("serve", "local", "rl"):
        return None
    has_amount = any(getattr(question, name, None) is not None for name in ("samples", "tokens"))
    return None if has_amount else 1e6


def _as_text(value: Any) -> Any:
    """Return a path as text, which can be sent to another process, and any other value unchanged."""
    return str(value) if isinstance(value, Path) else value


def _values(question: Any, name: str) -> list[Any]:
    """Return the values of an option; none if it is not given."""
    value = getattr(question, name)
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


_OF_STEPS = frozenset(
    (
        "price",
        "gpu",
        "precision",
        "batch_size",
        "sequence_length",
        "power_limit",
        "clock",
        "time_model",
        "ppp",
        "hardware_files",
    )
)
"""Options that are axes or settings of a `Space`, of every kind of question."""

_OF_PREDICT = _OF_STEPS | {"phase", "context", "memory"}
_OF_TRAIN = _OF_STEPS | {
    "global_batch_size", "workers", "link", "strategy", "communication", "optimizer", "samples", "epochs",
}  # fmt: skip


def _is_paged(question: Any) -> bool:
    """Return whether the state of an optimizer may leave the device, by what the other options need."""
    from ..timing.optimizers import OPTIMIZERS

    return any(name in OPTIMIZERS and OPTIMIZERS[name].is_paged for name in _values(question, "optimizer"))


def _grid_of_predict(question: Any) -> Space | None:
    """Return the combinations of passes as a `Space`; None if an option is not an axis of it."""
    if not _OF_PREDICT.issuperset(question.given()):
        return None
    phases, lengths, contexts = (_values(question, name) for name in ("phase", "sequence_length", "context"))
    generates = "decode" in phases
    if (generates and lengths) or (contexts and phases != ["decode"]):
        return None  # an axis of a `Space` is the length in every phase
    if GENERATION_PHASES.keys() & set(phases) and _are_published_in_formats(question):
        return None  # a `Space` has weights in the precision
    fields = _fields_of_steps(question, "predict")
    if fields is None:
        return None
    if "training" in phases:
        fields["optimizer"] = _default_optimizer(question)
    return _make_space(**fields, phases=tuple(phases), sequence_lengths=tuple(lengths or contexts) or (None,))


def _are_published_in_formats(question: Any) -> bool:
    """Return whether an engine reads one of the networks in the format in which it is published."""
    return any(published_weights(replace(question, network=name)) for name in _values(question, "network"))


def _default_optimizer(question: Any) -> str:
    """Return the optimizer if none is given; empty for several networks, each of which has its own."""
    from .compare import default_optimizer

    networks = _values(question, "network")
    if len(networks) > 1:
        return ""
    # Whether a network reads tokens does not depend on how many.
    return default_optimizer(replace(question, network=networks[0], sequence_length=None))


def _grid_of_train(question: Any) -> Space | None:
    """Return the combinations of training steps as a `Space`; None if an option is not an axis of it."""
    from ..distributed.strategies import STRATEGIES
    from .training_options import default_batch_size

    names_given = set(question.given())
    communication = dict(question.communication or {})
    workers = tuple(_values(question, "workers")) or (1,)
    strategies = _values(question, "strategy") or ["data"]
    single = ("optimizer", "samples", "epochs")
    if (
        _is_paged(question)
        or any(map(is_pipeline, _values(question, "network")))
        or not names_given <= _OF_TRAIN
        or any(isinstance(getattr(question, name), list) for name in single)
    ):
        return None
    has_blocks = any(name not in STRATEGIES or STRATEGIES[name].divides_blocks for name in strategies)
    has_blocks |= max(workers) > 1 and _have_blocks(_values(question, "network"))
    if has_blocks or set(communication) > {"collective"} or ("link" in names_given) != (max(workers) > 1):
        return None
    is_strong = question.global_batch_size is not None
    batch_sizes = set(_values(question, "global_batch_size") if is_strong else _values(question, "batch_size"))
    if not batch_sizes:
        batch_sizes = {default_batch_size(replace(question, network=name)) for name in _values(question, "network")}
        if len(batch_sizes) > 1:
            return None
    fields = _fields_of_steps(question, "train")
    if fields is None:
        return None
    fields["batch_sizes"] = tuple(sorted(batch_sizes))
    settings = {
        "optimizer": question.optimizer or _default_optimizer(question),
        "samples": None if question.samples is None else question.samples * (question.epochs or 1),
    }
    return _make_space(
        **fields,
        phases=("training",),
        sequence_lengths=tuple(_values(question, "sequence_length")) or (None,),
        workers=workers,
        links=tuple(_values(question, "link")) or ("",),
        strategies=tuple(strategies),
        scalings=("strong" if is_strong else "weak",),
        collectives=(communication.get("collective", ""),),
        **{name: value for name, value in settings.items() if value is not None},
    )


def _have_blocks(networks: list[Any]) -> bool:
    """Return whether one of several networks is a language model, which several devices time block by block."""
    from ..architectures import find_network

    names = [name for name in networks if isinstance(name, str) and not _is_module(name)]
    return any(find_network(name).is_language_model for name in names)


_GRIDS: Mapping[str, Callable[[Any], Space | None]] = {"predict": _grid_of_predict, "train": _grid_of_train}
"""Function from a question to its combinations as arrays, by the kind of question."""


def _fields_of_steps(question: Any, command: str) -> dict[str, Any] | None:
    """Return the fields of a `Space` that all its questions have; None if one of the values is not an axis of it."""
    from ..machines.registry import parse_power_limit
    from ..sweeps.space import AUTOMATIC

    networks, gpus = _values(question, "network"), _values(question, "gpu")
    for network in networks:
        check_no_pipeline(network, command)
    names = [*networks, *gpus]
    if not networks or not gpus or not all(isinstance(name, str) for name in names) or any(map(_is_module, networks)):
        return None
    precisions = _values(question, "precision") or _usual_precisions(question, networks, gpus)
    if precisions is None or not _are_of_inference(precisions):
        return None
    ppp = question.ppp
    if isinstance(ppp, list) or isinstance(question.price, list) or not _is_of_space(question):
        return None
    time_models = _values(question, "time_model") or [AUTOMATIC if ppp is None else "ppp"]
    return {
        "networks": tuple(networks),
        "gpus": tuple(gpus),
        "precisions": tuple(precisions),
        "batch_sizes": tuple(_values(question, "batch_size")),
        "power_limits_w": tuple(parse_power_limit(limit) for limit in _values(question, "power_limit")) or (None,),
        "clocks": tuple(_values(question, "clock")) or (None,),
        "time_models": tuple(time_models),
        "ppp": ppp,
        "price_usd_per_h": question.price_usd_per_h,
        "price_of": question.price_of,
        "hardware_files": tuple(str(Path(file).absolute()) for file in question.hardware_files),
    }


def _is_of_space(question: Any) -> bool:
    """Return whether batch sizes and time models are those that a `Space` has."""
    from ..timing import TIME_MODELS

    return FIT not in _values(question, "batch_size") and set(_values(question, "time_model")) <= set(TIME_MODELS)


def _is_module(network: str) -> bool:
    """Return whether a network is built by a function of the user's own code."""
    return is_factory(network) and not network.startswith(("hf:", "timm:"))


def _are_of_inference(precisions: list[str]) -> bool:
    """Return whether precisions are those that a `Space` has, which excludes recipes of training."""
    from ..formats import FORMATS_OF_PRODUCTS
    from ..units import PRECISION_BYTES

    return all(name in PRECISION_BYTES or name in FORMATS_OF_PRODUCTS for name in precisions)


def _usual_precisions(question: Any, networks: list[str], gpus: list[str]) -> list[str] | None:
    """Return the precision of all networks on all devices if none is given; None if there are several."""
    precisions: set[str] = set()
    for network in networks:
        single = replace(question, network=network, gpu=gpus[0])
        precision = usual_precision(single, gpus[0])
        precisions.add(precision)
        if precision != FULL_PRECISION:
            precisions |= {usual_precision(single, gpu) for gpu in gpus[1:]}
    return list(precisions) if len(precisions) == 1 else None


def _make_space(**fields: Any) -> Space:
    """Return a `Space` with the registries' names, under power limits that its devices take."""
    from ..machines import find_device
    from ..sweeps.space import Space
    from ..timing.energy import with_power_limit

    space = Space(**fields).resolve_names()
    files = [Path(file) for file in space.hardware_files]
    for gpu, limit_w in product(space.gpus, space.power_limits_w):
        if limit_w is not None:
            with_power_limit(find_device(gpu, files), limit_w)
    return space
