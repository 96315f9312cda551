"""Constants of training fitted to some of the published steps, and judged on the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.calibration.choose import choose_model
from paleo_lite.distributed.clusters import EXPECTED, ClusterScores, cluster_prior
from paleo_lite.distributed.job import Job, Settings
from paleo_lite.distributed.links import Topology
from paleo_lite.distributed.parallel_3d import train_3d_parallel
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.distributed.scale import predict_step
from paleo_lite.extras import require
from paleo_lite.files import write_atomically
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing.blocks import TRAINING_FILE, TrainingConstants, use_training_constants
from paleo_lite.timing.workload import TrainingOptions, Workload

from .published import TrainedStep, trained_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

BELIEVED: dict[str, tuple[float, float]] = {
    "efficiency_gemm": (0.8, 0.15),
    "efficiency_attention": (0.7, 0.3),
    "factor_data_gradient": (1.0, 0.03),
    "factor_weight_gradient": (1.0, 0.03),
    "overhead_s": (33e-6, 0.4),
    "overhead_backward_s": (9e-6, 0.4),
    "share_other": (0.8, 0.2),
}
"""What is believed of each constant before steps are looked at: median, and deviation of the logarithm. Of products and
attention what libraries reach, of the host what other networks say (`paleo_lite.calibration.prior`). A gradient's
products are as large as the product. The share of bandwidth is scaled from the device's: one for all devices makes
steps on GB200 two points worse, the device's own those of llm-foundry three."""

EXPOSED_SHARDING = (0.7, 0.4)
"""The same of the share of the communication of sharded parameters that computation does not hide."""

SCATTER = 0.07
"""Of steps around the model."""

AT_MOST, WORTH = 150, 15
"""Steps of a source that a fit takes, evenly over its rows, and what they are worth together: what the model gets wrong
of one step of a source it gets wrong of its others, too."""


class HeldOut(msgspec.Struct, frozen=True):
    """How true constants are of steps that they were not fitted to: shares of 1.

    `constant_mfu` is what one MFU for all, that of the steps that the constants were fitted to, is off by.
    """

    split: str
    fitted_to: str
    source: str
    points: int
    mape: float
    median: float
    coverage_90: float
    width_90: float
    constant_mfu: float


class Timed:
    """Published steps, counted once, to be timed by any constants."""

    def __init__(self, steps: Sequence[TrainedStep]) -> None:
        self.steps = steps
        self.measured_s = np.array([step.time_s for step in steps])
        self._jobs: dict[tuple[str, int, str, str, bool], Job] = {}

    def of(self, constants: TrainingConstants) -> Floats:
        """Seconds of every step on a cluster as it is expected."""
        found = []
        for step, job in self._timed_by(constants):
            machine, settings = cluster_prior().cluster_at(ClusterScores(*[EXPECTED] * 4), *_asked(step))
            found.append(float(train_3d_parallel(job, machine, step.batch_size, settings).time_s))
        return np.array(found)

    def between(self, constants: TrainingConstants) -> tuple[Floats, Floats, Floats]:
        """Seconds of every step as `scale` answers, and between which they are said to lie."""
        found = []
        for step, job in self._timed_by(constants):
            made = predict_step(job, *_asked(step), step.batch_size, "together", cluster_prior())
            assert made.interval is not None
            found.append((float(made.time_s), *made.interval))
        time_s, low_s, high_s = np.array(found).T
        return time_s, low_s, high_s

    def choose(self, chosen: Sequence[int]) -> Timed:
        """Some of the steps."""
        part = Timed([self.steps[place] for place in chosen])
        part._jobs = self._jobs
        return part

    @cached_property
    def peak_shares(self) -> Floats:
        """Of each step: 6 N + 12 L h s FLOPs a token (Chowdhery et al. 2022, appendix B) over what peaks allow."""
        found = []
        for step in self.steps:
            fields = msgspec.json.decode(step.config)
            layers, hidden = (
                fields.get(a) or fields[b] for a, b in (("n_layer", "num_hidden_layers"), ("n_embd", "hidden_size"))
            )
            flops = (6e9 * step.billions + 12 * layers * hidden * step.length) * step.length * step.batch_size
            peak = Machine(find_device(step.gpu)).peak(step.precision).per_s
            found.append(flops / (peak * step.workers * step.time_s))
        return np.array(found)

    @property
    def median_share(self) -> float:
        """The share of the peak that steps reach: of every source the median, of those the mean."""
        sources = np.array([step.source for step in self.steps])
        return float(np.mean([np.median(self.peak_shares[sources == source]) for source in set(sources)]))

    def _timed_by(self, constants: TrainingConstants) -> list[tuple[TrainedStep, Job]]:
        made: dict[int, Job] = {}
        rows = []
        for step in self.steps:
            job = self._job(step)
            if id(job) not in made:
                made[id(job)] = job.with_time_model(use_training_constants(job.model, constants))
            rows.append((step, made[id(job)]))
        return rows

    def _job(self, step: TrainedStep) -> Job:
        key = step.config, step.length, step.gpu, step.precision, step.fused_loss
        if key not in self._jobs:
            precision, options = TrainingOptions(
                "adam", mixed_precision=True, fused_loss=step.fused_loss
            ).split_precision(step.precision)
            device = find_device(step.gpu)
            network = read_config(
                step.config.encode(), f"{step.model}.json", None, SequenceOptions(step.length, phase="training")
            )
            workload = Workload(network, precision, phase="training", training=options)
            model = choose_model(device, precision, products=options.products)
            self._jobs[key] = Job(workload, Machine(device), model)
        return self._jobs[key]


def _asked(step: TrainedStep) -> tuple[Topology, Settings]:
    return _machine(step.topology, step.workers), Settings(parallel=step.split)


@cache
def _machine(topology: str, workers: int) -> Topology:
    return parse_topology(topology).with_workers(workers)


def fit(timed: Timed, scatter: float = SCATTER) -> TrainingConstants:
    """Constants fitted to steps, by relative error, robust, from what is believed."""
    least_squares = require("scipy.optimize", "fitting", "calibrate").least_squares
    chosen: list[int] = []
    weights: list[float] = []
    groups = [(step.source, step.gpu.split("-")[0]) for step in timed.steps]
    for group in sorted(set(groups)):
        places = [place for place, own_group in enumerate(groups) if own_group == group]
        number = min(AT_MOST, len(places))
        chosen += [places[round(at)] for at in np.linspace(0, len(places) - 1, number)]
        weights += [min(WORTH / number, 1.0) ** 0.5] * number
    part = timed.choose(chosen)
    median, deviation = (np.array(values) for values in zip(*BELIEVED.values(), EXPOSED_SHARDING))
    measured = np.log(part.measured_s)

    def left(moved: Floats) -> Floats:
        predicted = np.log(part.of(_constants(median * np.exp(moved))))
        off = (predicted - measured) / scatter
        soft = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))  # its square is soft L1
        return np.concatenate([soft * weights, moved / deviation])

    found = least_squares(left, np.zeros(len(median)), diff_step=0.01, x_scale=deviation, max_nfev=6)
    left_open = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))
    return _constants(median * np.exp(found.x), left_open, scatter, part)


def _constants(
    values: Floats, deviation: Floats | None = None, scatter: float = SCATTER, part: Timed | None = None
) -> TrainingConstants:
    known = part.steps if part else ()
    return TrainingConstants(
        constants=dict(zip(BELIEVED, map(float, values))),
        deviation=dict(zip(BELIEVED, map(float, np.zeros(len(values)) if deviation is None else deviation))),
        exposed_sharding=min(float(values[-1]), 1.0),
        scatter=scatter,
        points=len(known),
        devices=sorted({step.gpu for step in known}),
        sources=sorted({step.source for step in known}),
    )


# What is held out -----------------------------------------------------------------------------------------------------

SIZES = ("below 0.5 B", "0.5 to 2 B", "2 to 8 B", "above 8 B")


def size_of(step: TrainedStep) -> str:
    """The range of parameters that a network is in."""
    return SIZES[sum(step.billions >= edge for edge in (0.5, 2, 8))]


def splits(steps: Sequence[TrainedStep]) -> Iterator[tuple[str, str, list[int], list[int]]]:
    """What each split is called, what its constants are fitted to, and the places of those steps and of the others."""

    def parted(is_judged: Sequence[bool]) -> tuple[list[int], list[int]]:
        judged = np.array(is_judged)
        return np.flatnonzero(~judged).tolist(), np.flatnonzero(judged).tolist()

    for source in dict.fromkeys(step.source for step in steps):
        yield "source", source, *parted([step.source != source for step in steps])
    yield "gpu", "A100", *parted(["a100" not in step.gpu for step in steps])
    yield "gpu", "all but H100", *parted(["h100" in step.gpu for step in steps])
    for size in SIZES:
        yield "size", f"all but {size}", *parted([size_of(step) == size for step in steps])
    yield "nodes", "one node", *parted([step.workers > 8 for step in steps])
    shared = [step.split.tensor * step.split.pipeline > 1 for step in steps]
    yield "parallelism", "no matrix or stages shared", *parted(shared)


def truth(steps: Sequence[TrainedStep]) -> tuple[list[HeldOut], list[tuple[TrainedStep, float]]]:
    """Every split, by the source that is judged; and the steps of a held-out source with their seconds."""
    timed, rows, pairs = Timed(steps), [], []
    dense = [place for place, step in enumerate(steps) if not step.is_mixture]
    parts = [
        (split, fitted_to, [dense[place] for place in known], [dense[place] for place in left])
        for split, fitted_to, known, left in splits([steps[place] for place in dense])
    ]
    mixtures = [place for place, step in enumerate(steps) if step.is_mixture]
    for split, fitted_to, known, left in [*parts, ("mixture", "no mixture", dense, mixtures)]:
        if not known or not left:
            continue
        fitted, judged = timed.choose(known), timed.choose(left)
        predicted = judged.between(fit(fitted))
        mfu = fitted.median_share
        for source in dict.fromkeys(step.source for step in judged.steps):
            here = np.array([step.source == source for step in judged.steps])
            rows.append(_row(split, fitted_to, source, judged, here, predicted, mfu))
        if split == "source":
            pairs += list(zip(judged.steps, map(float, predicted[0])))
    return rows, pairs


def _row(
    split: str, fitted_to: str, source: str, judged: Timed, here: NDArray[np.bool_],
    predicted: tuple[Floats, Floats, Floats], mfu: float,
) -> HeldOut:  # fmt: skip
    measured = judged.measured_s[here]
    time, low, high = (seconds[here] for seconds in predicted)
    off = np.abs(time / measured - 1)
    constant = np.abs(judged.peak_shares[here] / mfu - 1)
    return HeldOut(
        split, fitted_to, source, len(off), float(off.mean()), float(np.median(off)),
        float(np.mean((low <= measured) & (measured <= high))), float(np.mean((high - low) / time)),
        float(constant.mean()),
    )  # fmt: skip


def ship_training(data: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Fit all steps; write what is shipped, with how true fits to a part of them are."""
    steps = trained_steps(data).steps
    rows, _ = truth(steps)
    off = {
        split: np.mean([row.mape for row in rows if row.split == split])
        for split in dict.fromkeys(r.split for r in rows)
    }
    held_out = ", ".join(f"{split} {share:.0%}" for split, share in off.items())
    dense = Timed([step for step in steps if not step.is_mixture])
    made = rounded(msgspec.structs.replace(fit(dense), held_out=held_out))
    write_atomically(folder / TRAINING_FILE, _HEAD + msgspec.toml.encode(made))
    yield "training", f"{made.points} steps; held out: {held_out}"


_HEAD = b"# Fitted by paleo-lite to steps of language models; every field is explained in docs/transformers.md.\n"


def rounded(constants: TrainingConstants) -> TrainingConstants:
    """To four digits, so that the same data give the same file."""
    return msgspec.structs.replace(
        constants,
        constants={name: float(f"{value:.4g}") for name, value in constants.constants.items()},
        exposed_sharding=float(f"{constants.exposed_sharding:.3g}"),
        deviation={name: float(f"{value:.3g}") for name, value in constants.deviation.items()},
    )
