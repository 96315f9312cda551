"""What one iteration spends on each kind of layer in each pass: the measured side of a comparison with a prediction."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import BadProfile
from ..profiles.detect import Profile
from ..profiles.names import OPERATIONS, classify
from .runs import COLUMNS, Runs, find_runs, together
from .steady import Iterations, find_iterations, typical

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BY_OP = tuple((kind.name, re.compile(kind.pattern)) for kind in OPERATIONS)

_BY_CLASS = {
    "random": "elementwise", "layout": "elementwise", "reduction": "elementwise", "indexing": "other",
    "memcpy": "copy", "memset": "copy", "fft": "other",
}  # fmt: skip


class PassTimes(msgspec.Struct, frozen=True, eq=False):
    """Medians over the steady iterations of a profile.

    Attributes
    ----------
    phase : {"training", "inference"}
        Training where backward kernels are labelled.
    iterations, found : int
        Iterations that the medians are over, and that the profile holds.
    seconds : dict of (str, str) to float
        Per iteration, by kind of layer and pass (``forward``, ``backward``, ``update``).
    layers : dict of (str, str) to tuple of float
        The single operations of a kind and pass in the order of execution, where every iteration has equally many.
    has_ops : bool
        False where the profiler names no operations, so that matrix products of convolutions and of linear layers
        cannot be told apart.
    """

    phase: str
    iterations: int
    found: int
    seconds: dict[tuple[str, str], float]
    layers: dict[tuple[str, str], tuple[float, ...]]
    has_ops: bool


def measure_passes(profile: Profile) -> PassTimes:
    """Time per iteration by kind of layer and pass.

    The first iteration is left out (autotuning), as are those that are not like most others, and, where backward
    kernels are labelled in some, those where they are not.

    Raises
    ------
    BadProfile
        If the profile holds no kernels, or nothing in it repeats as iterations do.
    """
    runs = together([find_runs(batch) for batch in profile.batches(COLUMNS)])
    if not runs.length:
        raise BadProfile(f"{profile.path}: a {profile.format} profile without kernels that have a duration")
    iterations = find_iterations(runs)
    if iterations is None:
        raise BadProfile(f"{profile.path}: no iterations were found in it, so the time per iteration is unknown")
    labelled, updates, own = np.array(
        [(one.direction == "bprop", one.direction == "update", one.thread == iterations.thread)
         for one in runs.signatures],
        bool,
    ).T[:, runs.table["signature"]]  # fmt: skip
    passes = _passes(runs, iterations, labelled, updates, own)
    chosen = _steady(iterations, labelled, own)
    kinds = np.array([_kind(runs, number) for number in range(len(runs.signatures))], dtype=object)
    kind_of = kinds[runs.table["signature"]]
    seconds: dict[tuple[str, str], list[float]] = {}
    layers: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for iteration in chosen:
        inside = np.flatnonzero(iterations.number == iteration)
        inside = inside[np.argsort(runs.table["row"][inside])]
        times_of: dict[tuple[str, str], list[float]] = {}
        for run in inside.tolist():
            times_of.setdefault((kind_of[run], passes[run]), []).append(float(runs.table["duration_ns"][run]) * 1e-9)
        for key, durations in times_of.items():
            seconds.setdefault(key, []).append(sum(durations))
            layers.setdefault(key, []).append(tuple(durations))
    # What an iteration lacks took no time in it: a median over those that have it would say too much.
    medians = {key: float(np.median(v + [0.0] * (len(chosen) - len(v)))) for key, v in seconds.items()}
    even = {
        key: tuple(np.median(np.array(lists), axis=0).tolist())
        for key, lists in layers.items()
        if len(lists) == len(chosen) and len({len(durations) for durations in lists}) == 1
    }
    has_backward = any(pass_name == "backward" for _, pass_name in seconds)
    return PassTimes(
        phase="training" if has_backward else "inference",
        iterations=len(chosen),
        found=len(iterations.starts),
        seconds={key: value for key, value in medians.items() if value},
        layers=even,
        has_ops=any(signature.op is not None for signature in runs.signatures),
    )


def _steady(iterations: Iterations, labelled: NDArray[np.bool_], own: NDArray[np.bool_]) -> list[int]:
    """The iterations that count."""
    count, number = len(iterations.starts), iterations.number
    backward = np.bincount(number[labelled & (number >= 0)], minlength=count)
    forward = np.bincount(number[own & (number >= 0)], minlength=count)
    among = np.ones(count, bool)
    if count > 2:
        among[0] = False
    if backward.any():
        among &= backward > 0
        among = typical(backward, among) if among.sum() > 2 else among
    among = typical(forward, among) if among.sum() > 2 else among
    return [int(iteration) for iteration in np.flatnonzero(among)]


def _passes(
    runs: Runs, iterations: Iterations, labelled: NDArray[np.bool_], updates: NDArray[np.bool_], own: NDArray[np.bool_]
) -> NDArray[Any]:
    """The pass of every run: some are `labelled` backward or `updates`, `own` are those of the forward thread.

    What the backward thread does is backward, labelled or not; what the forward thread does after the last backward
    kernel of its iteration is the update.
    """
    table, number = runs.table, iterations.number
    threads = {runs.signatures[named].thread for named in np.unique(table["signature"][labelled])}
    threads.discard(iterations.thread)
    behind = np.array([signature.thread in threads for signature in runs.signatures])[table["signature"]]
    last = np.full(len(iterations.starts), np.iinfo(np.int64).max)
    counted = labelled & (number >= 0)
    for iteration in np.unique(number[counted]):
        last[iteration] = table["row"][counted & (number == iteration)].max()
    after = own & (number >= 0) & (table["row"] > last[np.maximum(number, 0)])
    passes = np.full(len(number), "forward", dtype=object)
    passes[labelled | behind] = "backward"
    passes[updates | (after & ~labelled)] = "update"
    return passes


def _kind(runs: Runs, number: int) -> str:
    signature = runs.signatures[number]
    if signature.op is not None:
        return next((kind for kind, pattern in _BY_OP if pattern.search(signature.op)), "other")
    family = classify(signature.kernel or "").family
    return _BY_CLASS.get(family, family)
