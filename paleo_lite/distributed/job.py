"""What is to be trained and how, `Job` and `Settings`; and `Step`, of one device what every strategy starts from."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from ..errors import BadValue
from ..input_pipeline.feeding import SAMPLE, Store
from ..machines import Machine
from ..timing import RooflineModel, TimeModel, Workload, predict
from ..timing.memory import Memory, memory_by_micro_batch
from ..timing.training import RECOMPUTE
from ..units import element_bytes, parse_quantity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

Made = TypeVar("Made")

BUCKET_BYTES = 25 * 2**20
"""PyTorch's ``bucket_cap_mb=25``, in MiB as its code has it."""

RECOMPUTATIONS = ("none", "selective", "full")
"""What of a block's forward pass is computed again: nothing, attention's scores and softmax, or all of it."""


class Split(msgspec.Struct, frozen=True):
    """How many devices share what of a network of equal blocks.

    Attributes
    ----------
    tensor : int
        Devices that share every matrix; of one node.
    pipeline : int
        Stages of blocks, one after another.
    interleaved : int
        Pieces of each stage, which take turns.
    sequence : bool
        Whether the devices that share matrices also share the sequence outside of them.
    micro_batch : int
        Samples that pass at once.
    recompute : {"none", "selective", "full"}
    zero_stage : {0, 1, 2, 3}
        What of the model's state the replicas share out; 3 is what FSDP does.
    context : int
        Devices that share every sequence, keys and values going around a ring of them (Liu et al. 2023).
    experts : int
        Devices, of those that have a stage, that share the experts of a mixture; tokens are sent to them and back.
    """

    tensor: int = 1
    pipeline: int = 1
    interleaved: int = 1
    sequence: bool = False
    micro_batch: int = 1
    recompute: str = "none"
    zero_stage: int = 1
    context: int = 1
    experts: int = 1

    def __post_init__(self) -> None:
        for name, option in {
            "tensor": "tensor", "pipeline": "pipeline", "interleaved": "interleaved", "micro_batch": "micro-batch",
            "context": "context-parallel", "experts": "expert-parallel",
        }.items():  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadValue(f"--{option} must be a whole number of 1 or more, not {value!r}")
        if self.recompute not in RECOMPUTATIONS:
            raise BadValue(
                f"--recompute is {', '.join(RECOMPUTATIONS[:-1])} or {RECOMPUTATIONS[-1]}, not {self.recompute!r}"
            )
        if self.zero_stage not in (0, 1, 2, 3):
            raise BadValue(f"ZeRO has the stages 0 to 3, not {self.zero_stage!r}")
        if self.interleaved > 1 and self.pipeline == 1:
            raise BadValue("--interleaved is of the stages of a pipeline: say --pipeline, too")

    def devices(self, data: int) -> str:
        """``tensor 8, pipeline 16, data 8``."""
        pieces = f" x {self.interleaved}" if self.interleaved > 1 else ""
        context = f", context {self.context}" if self.context > 1 else ""
        experts = f", experts {self.experts}" if self.experts > 1 else ""
        return f"tensor {self.tensor}, pipeline {self.pipeline}{pieces}{context}, data {data}{experts}"

    @property
    def each(self) -> int:
        """Devices of a replica."""
        return self.tensor * self.context * self.pipeline

    def describe(self, data: int, micro_batches: int) -> str:
        """``tensor 8, pipeline 16, data 8: 192 micro-batches of 1``."""
        words = [self.devices(data)]
        words += ["the sequence shared"] if self.sequence else []
        words += [f"ZeRO {self.zero_stage}"] if self.zero_stage else []
        words += [f"{self.recompute} recomputation"] if self.recompute != "none" else []
        several = "" if micro_batches == 1 else "es"
        return f"{', '.join(words)}: {micro_batches} micro-batch{several} of {self.micro_batch}"


class Settings(msgspec.Struct, frozen=True):
    """How several devices train together.

    Attributes
    ----------
    collective : str or None
        One of `collectives.COLLECTIVES`; None takes the fastest.
    gradient_precision : str or None
        In which gradients are exchanged; None: as they are computed.
    overlap : bool
        Whether gradients are exchanged while the backward pass goes on.
    bucket_bytes : float
        At which a bucket of gradients is full.
    micro_batches : int or None
        For pipelines; None takes at least four per stage, where the batch has as many.
    slowdown : float
        By what share computing takes longer as soon as several devices work: a board's power limit, a host they share.
    interference : float
        By what share of the time of a hidden exchange the computation that hides it takes longer.
    hiding : float
        The share that really hides of what the backward pass could hide of exchanges, 0 to 1.
    stragglers : float
        By what share computing takes longer for every doubling of the workers, who wait for the slowest of them.
    inputs : Inputs or None
        What feeds the devices; None: they never wait for samples.
    split : Split or None
        For the strategy ``together``: how many devices share what.
    """

    collective: str | None = None
    gradient_precision: str | None = None
    overlap: bool = True
    bucket_bytes: float = BUCKET_BYTES
    micro_batches: int | None = None
    slowdown: float = 0.0
    interference: float = 0.0
    hiding: float = 1.0
    stragglers: float = 0.0
    inputs: Inputs | None = None
    split: Split | None = None

    def __post_init__(self) -> None:
        if self.gradient_precision is not None:
            element_bytes(self.gradient_precision)
        if not self.bucket_bytes > 0:
            raise BadValue(f"a bucket must hold more than 0 bytes, not {self.bucket_bytes:g}")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise BadValue(f"micro-batches must be 1 or more, not {self.micro_batches}")
        if not (0 <= self.slowdown < math.inf and 0 <= self.interference < math.inf):
            raise BadValue("slowdown and interference must be shares of 0 or more")
        if not (0 <= self.hiding <= 1 and 0 <= self.stragglers < math.inf):
            raise BadValue("hiding must be a share from 0 to 1, stragglers a share of 0 or more")

    def among(self, workers: int) -> Settings:
        """The same for a number of workers: what they wait for the slowest of them is a slowdown."""
        waiting = self.stragglers * math.log2(workers)
        return msgspec.structs.replace(self, slowdown=self.slowdown + waiting, stragglers=0.0) if waiting else self


class Inputs(msgspec.Struct, frozen=True):
    """What feeds the devices of a node; see `paleo_lite.input_pipeline.feeding.Feeding`.

    Attributes
    ----------
    store : Store or None
        None: the samples lie in the host's memory.
    decode_per_s : float or None
        Samples per second that a node decodes; None: nothing to decode.
    pageable : bool
        One process copies the samples of all devices from pageable memory, one after another, before they compute.
    link, link_bytes_per_s
        What each device's samples are copied over.
    sample_bytes : float
        Of one sample in storage.
    """

    store: Store | None
    decode_per_s: float | None
    pageable: bool
    link: str
    link_bytes_per_s: float
    sample_bytes: float = parse_quantity(SAMPLE, "")


class Step(msgspec.Struct, frozen=True):
    """A step of training. Seconds are numbers, or arrays over batch sizes where a sweep asks for many at once.

    Attributes
    ----------
    compute_s : float
        Seconds of forward and backward pass (with what is recomputed and what workers of a pipeline wait for).
    communication_s : float
        Seconds of all exchanges, hidden or not.
    exposed_s : float
        The part of them that no computation hides.
    update_s : float
        Seconds that the optimizer takes.
    input_s : float
        Seconds that it waits for samples.
    memory_bytes : float or None
        What the fullest device holds; None where it is not known.
    collective : str
        How gradients are exchanged.
    losses : dict of str to float
        What else than exchanges and the division of work makes the step longer, in words and seconds.
    notes : tuple of str
        What somebody who uses it should know.
    interval : tuple of float or None
        Seconds between which ``time_s`` lies with 90%; None where the time model does not say.
    cluster_interval : tuple of float or None
        The same if computing takes what it is said to: what exchanges and waiting for each other leave open. None where
        nobody says.
    recomputed : float
        What is computed again, over forward and backward pass, where a strategy says so.
    """

    compute_s: Any
    communication_s: Any = 0.0
    exposed_s: Any = 0.0
    update_s: Any = 0.0
    memory_bytes: float | None = None
    collective: str = ""
    losses: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    interval: tuple[Any, Any] | None = None
    cluster_interval: tuple[Any, Any] | None = None
    recomputed: float = 0.0
    input_s: Any = 0.0

    @property
    def time_s(self) -> Any:
        """Seconds of the step: ``compute_s + exposed_s + update_s + input_s``."""
        return self.compute_s + self.exposed_s + self.update_s + self.input_s

    @property
    def hidden_s(self) -> Any:
        """Seconds of communication behind computation."""
        return self.communication_s - self.exposed_s


class DeviceStep(Step, frozen=True, kw_only=True, eq=False):
    """A step of one device, layer by layer: what every strategy starts from.

    Attributes
    ----------
    forward_s, backward_s : ndarray, shape (groups,) or (groups, batch sizes)
        Of a layer of each group. What is computed again counts as backward; the overhead of a step lies with the
        forward pass.
    group : ndarray of int, shape (layers,)
        Layers that take equally long are of one.
    model_notes : tuple of str
        What the prediction of the step says of itself.
    micro_batches : int
        Passes before the one update; only during the last one's backward pass are gradients exchanged.
    ready : dict
        What `data_parallel.Buckets.ready_of` has made of it.
    """

    forward_s: Floats
    backward_s: Floats
    group: Ints
    model_notes: tuple[str, ...] = ()
    micro_batches: int = 1
    ready: dict[tuple[int, bool], tuple[Any, Floats]] = {}

    @classmethod
    def of(cls, forward_s: Floats, backward_s: Floats, update_s: Any, group: Ints, **known: Any) -> DeviceStep:
        """A step from the seconds of its passes."""
        compute_s = plain(np.bincount(group, minlength=len(forward_s)) @ (forward_s + backward_s))
        return cls(compute_s, update_s=update_s, forward_s=forward_s, backward_s=backward_s, group=group, **known)

    @property
    def layers_s(self) -> Floats:
        """Of both passes, shape (layers,) or (layers, batch sizes)."""
        return (self.forward_s + self.backward_s)[self.group]

    def of_shares(self, shares: Floats) -> Any:
        """Seconds of both passes of shares of the layers, shape (layers,)."""
        return plain(np.bincount(self.group, shares, len(self.forward_s)) @ (self.forward_s + self.backward_s))

    def stretched(self, factor: float) -> DeviceStep:
        """The same step, every pass of it taking so many times as long."""
        ends = None if self.interval is None else (self.interval[0] * factor, self.interval[1] * factor)
        passes = {name: getattr(self, name) * factor for name in ("compute_s", "forward_s", "backward_s", "update_s")}
        return msgspec.structs.replace(self, **passes, interval=ends, ready={})

    def until(self, layer: int) -> DeviceStep:
        """The same step without the layers from this one on."""
        known = {name: getattr(self, name) for name in ("memory_bytes", "interval", "model_notes", "micro_batches")}
        return DeviceStep.of(self.forward_s, self.backward_s, self.update_s, self.group[:layer], **known)


def plain(seconds: Any) -> Any:
    """A number where an array holds one, the array where it holds many."""
    return seconds if np.ndim(seconds) else float(seconds)


class Job:
    """A workload to be trained on machines of one kind.

    Parameters
    ----------
    workload : Workload
        In the phase ``training``; every strategy sets the batch of one device.
    computing : float
        What one device really takes, over what the model says: known of platforms that were measured.

    Attributes
    ----------
    pace : float
        By what factor computing takes longer than that.
    """

    pace = 1.0

    def __init__(self, workload: Workload, machine: Machine, model: TimeModel, computing: float = 1.0) -> None:
        self.workload, self.machine, self.model, self.computing = workload, machine, model, computing
        self._steps: dict[Any, DeviceStep] = {}
        self._made: dict[tuple[Any, ...], Any] = {}
        self._counted: dict[tuple[Any, ...], Any] = {}

    def paced(self, pace: float) -> Job:
        """The same job, computing as many times as long; what does not depend on that is made once for both."""
        if pace == 1:
            return self
        other = copy.copy(self)
        other.pace = self.pace * pace
        return other

    @cached_property
    def bound(self) -> Job:
        """The same job as the device's data sheet allows it."""
        return self.timed_by(RooflineModel())

    def timed_by(self, model: TimeModel) -> Job:
        """The same job by another time model; what is counted is counted once for both."""
        other = Job(self.workload, self.machine, model)
        other._counted = self._counted
        return other

    @property
    def element_bytes(self) -> int:
        """Of an activation."""
        return element_bytes(self.workload.precision)

    def once(self, make: Callable[..., Made], *key: Any) -> Made:
        """What a function makes of this job and further arguments; asked again, it is not made again."""
        asked = (make, *key)
        if asked not in self._made:
            self._made[asked] = make(self, *key)
        made: Made = self._made[asked]
        return made

    def counted(self, make: Callable[..., Made], *key: Any) -> Made:
        """As `once`, of what no time model changes."""
        asked = (make, *key)
        if asked not in self._counted:
            self._counted[asked] = make(self, *key)
        made: Made = self._counted[asked]
        return made

    def at(self, batch_size: Any) -> DeviceStep:
        """The step of one device at a batch size, or an array of them; computed once."""
        key = batch_size.tobytes() if np.ndim(batch_size) else batch_size
        if key not in self._steps:
            self._steps[key] = self._step(batch_size)
        step, longer = self._steps[key], self.computing * self.pace
        return step if longer == 1 else step.stretched(longer)

    def _step(self, batch_size: Any) -> DeviceStep:
        workload = self.workload.but(batch_size=batch_size)
        prediction = predict(workload, self.machine, self.model)
        terms, interval = prediction.terms, prediction.interval
        forward = terms.of("forward")
        return DeviceStep.of(
            forward + terms.overhead_s * (forward / forward.sum() if forward.sum() else 1 / len(forward)),
            terms.of("backward_data", "backward_weight", RECOMPUTE),
            float(terms.of("update").sum()),
            np.arange(len(forward)),
            memory_bytes=plain(self.memory(workload.batch_size).total_bytes),
            interval=interval,
            model_notes=prediction.notes,
            micro_batches=workload.options.accumulation,
        )

    def memory(self, batch_size: Any, zero_stage: int = 0, shards: int = 1) -> Memory:
        """Memory of one device, with what ZeRO shares out; of many batch sizes each part is an array."""
        options, key = self.workload.options, (memory_by_micro_batch, zero_stage, shards)
        micro = batch_size // options.accumulation if np.ndim(batch_size) else options.micro_batch(batch_size)
        if key not in self._counted:
            self._counted[key] = memory_by_micro_batch(self.workload, zero_stage=zero_stage, shards=shards)
        memory: Memory = self._counted[key](micro)
        return memory
