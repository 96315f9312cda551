"""`Workload`: what is computed, made once where the user's words end, and passed on whole; and how it is trained:
optimizer, mixed precision, checkpointing, accumulation, and its update."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from ..architectures import Network
from ..counting import GENERATING, PHASES, Convention, Layer, Work, count, find_convention
from ..counting.kinds import class_of
from ..counting.work import COLUMNS, MIXED, PASSES, check_batch_size, check_execution, passes_of
from ..errors import BadValue, UnknownName, UnsupportedPhase
from ..units import WEIGHT_BYTES, element_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray


GIVEN = Convention("given", "FLOP", "a FLOP count that was given", lambda op: None)


_OF_LAYERS: dict[str, Any] = {
    "phase": "inference", "execution": "eager", "convention": "flops", "training": None, "image_size": None,
    "inputs": (), "sequence_length": None, "context": None, "weights": None,
}  # fmt: skip
"""What can be asked of layers alone, and the value that asks nothing."""


class Workload(msgspec.Struct, frozen=True, eq=False, dict=True):
    """What is computed.

    Attributes
    ----------
    precision : str
        Of the numbers.
    batch_size : int
        Samples of a step on one device.
    phase : str
        One of `paleo_lite.counting.PHASES`, or of `GENERATING` for a network with a cache.
    execution : {"eager", "autocast", "channels-last", "megatron", "compiled", "folded"}
        What is cast or fused: `paleo_lite.counting.fusion.EXECUTIONS`.
    convention : str
        How FLOPs are counted.
    training : TrainingOptions or None
        How a training step is done; None for plain gradient descent.
    weights : str or None
        Of `paleo_lite.units.WEIGHT_BYTES`: what the matrices are kept in, at inference; None: the precision.
    has_layers : bool
        False where a bare FLOP count stands in for a network: see `of_flops`.

    Raises
    ------
    UnknownName
        If there is no such precision, phase, convention or execution.
    BadValue
        If the batch size is not a whole number above 0, or the options are for another phase or precision.
    UnsupportedPhase
        If weights are kept narrower, or layers fused, for another phase than inference.
    """

    network: Network
    precision: str = "fp32"
    batch_size: int = 1
    phase: str = "inference"
    execution: str = "eager"
    convention: str = "flops"
    training: TrainingOptions | None = None
    has_layers: bool = True
    weights: str | None = None

    def __post_init__(self) -> None:
        element_bytes(self.precision)
        if self.phase not in (*PHASES, *GENERATING):
            raise UnknownName("phase", self.phase, (*PHASES, *GENERATING))
        cached = self.network.lengths is not None and self.network.lengths.cached
        if cached != (self.phase in GENERATING):
            for_text = "networks that write text, made for it: a config of Hugging Face's, or a shipped one"
            of_cache = f"a network with a cache of keys and values is of {' and '.join(GENERATING)}"
            raise BadValue(f"{of_cache}, not of {self.phase}" if cached else f"{self.phase} is of {for_text}")
        check_batch_size(self.batch_size)
        if self.has_layers:
            find_convention(self.convention)
        if self.training is not None:
            if self.phase != "training":
                raise BadValue(
                    "optimizer, checkpointing, accumulation and mixed precision belong to --phase training, "
                    f"not to {self.phase}"
                )
            if self.training.mixed_precision and self.precision not in ("fp16", "bf16"):
                raise BadValue(
                    f"mixed precision multiplies in fp16 or bf16, not in {self.precision}: "
                    "use --precision fp16, for example"
                )
        check_execution(self.execution, self.phase, self.precision)
        if self.weights is not None:
            if self.weights not in WEIGHT_BYTES:
                raise UnknownName("precision of weights", self.weights, WEIGHT_BYTES)
            if passes_of(self.phase) != ("inference",):
                raise UnsupportedPhase(
                    f"weights are kept narrower for inference only: leave --weights out for {self.phase}"
                )

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Of the network, with the casts of the execution."""
        if self.execution not in MIXED:
            return self.network.layers
        from ..counting.autocast import autocast

        return autocast(self.network.layers)

    @property
    def options(self) -> TrainingOptions:
        """How a training step is done."""
        return self.training or TrainingOptions("sgd")

    @cached_property
    def narrow(self) -> NDArray[np.bool_]:
        """Layers whose products are computed in the narrower precision of the training options, shape (layers,)."""
        is_narrow = np.array([self.options.products is not None and matrix_weights(layer) > 0 for layer in self.layers])
        if is_narrow.any():
            is_narrow[np.flatnonzero(is_narrow)[-1]] = False  # logits
        return is_narrow

    @cached_property
    def work(self) -> Work:
        """What each layer computes and moves, for any batch size; counted once."""
        reads_less = self.weights is not None or self._chooses_experts
        work = remembered(count, self.layers, self.precision, self.convention)
        if reads_less:
            work = _less_read(work, self)
        if self.execution == "eager":
            return work
        from ..counting.fusion import fuse  # with what it needs, and only then

        return fuse(self.layers, work, self.execution)

    def but(self, **changes: Any) -> Workload:
        """The same workload otherwise asked; it is counted once for all batch sizes, phases and training options."""
        changed: Workload = msgspec.structs.replace(self, **changes)
        same = {"training"} | (set() if self._chooses_experts or changed._chooses_experts else {"phase", "batch_size"})
        if changes.keys() <= same:
            changed.__dict__["work"] = self.work
        return changed

    @cached_property
    def _chooses_experts(self) -> bool:
        """Whether few tokens read fewer matrices than many: then counts are of one batch size."""
        return any("active" in layer.attributes for layer in self.layers) and passes_of(self.phase) == ("inference",)

    def doing(self, work: Work) -> Workload:
        """The same question with other counts: with an optimizer's update, for example, or launched several times."""
        changed: Workload = msgspec.structs.replace(self)
        changed.__dict__["work"] = work
        return changed

    @classmethod
    def of_flops(
        cls, flops: float, precision: str = "fp32", batch_size: int = 1, notes: tuple[str, ...] = (), **asked: Any
    ) -> Workload:
        """A bare FLOP count of one sample in the place of a network, as one would reckon on paper.

        Raises
        ------
        BadValue
            If the count is not above 0, or overflows; or if something is asked (`asked`) that needs layers.
        """
        if unknown := asked.keys() - _OF_LAYERS.keys():
            raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
        for name, value in asked.items():
            if value and value != _OF_LAYERS[name]:
                raise BadValue(f"a bare FLOP count is of inference: {name.replace('_', ' ')} needs layers of a network")
        check_batch_size(batch_size)
        if not (np.isfinite(flops) and flops >= 1 and flops * batch_size < 2.0**62):
            raise BadValue(f"the FLOP count must be a number of 1 or more, not {flops!r}")
        per_sample = np.zeros((len(COLUMNS), len(PASSES), 1), dtype=np.int64)
        per_sample[COLUMNS.index("flops"), PASSES.index("inference")] = int(flops)
        none = np.zeros(1, dtype=np.int64)
        work = Work(
            names=(), kinds=(), convention=GIVEN, precision=precision, per_sample=per_sample,
            fixed=np.zeros_like(per_sample), count_per_sample=per_sample[0, 0], count_fixed=none,
            counted=np.ones(1, dtype=bool), parameters=none, activations_per_sample=none,
            matrix=np.ones(1, dtype=bool), unknown=(),
        )  # fmt: skip
        network = Network(f"{int(flops)} FLOPs", (), (), 0, notes=notes)
        return cls(network, precision, batch_size, convention="given", has_layers=False).doing(work)


def matrix_weights(layer: Layer) -> int:
    """Elements of the matrices that a layer multiplies by."""
    return prod(layer.weights[0]) if layer.weights and class_of(layer) == "gemm" else 0


def _less_read(work: Work, workload: Workload) -> Work:
    """The work of inference where matrices are kept narrower, and where not every expert has a token.

    Of E experts, of which each token takes k, n tokens are expected to meet ``E (1 - (1 - k/E)^n)``, if all are taken
    as often.
    """
    number = element_bytes(workload.precision)
    read, inference = COLUMNS.index("bytes_read"), PASSES.index("inference")
    fixed = work.fixed.copy()
    for index, layer in enumerate(workload.layers):
        matrix = matrix_weights(layer)
        if not matrix:
            continue
        met = 1.0
        if active := layer.attributes.get("active"):
            experts, tokens = layer.weights[0][0], workload.batch_size * layer.outputs[0][0] // active
            met = 1 - (1 - active / experts) ** tokens
        kept = number if workload.weights is None else WEIGHT_BYTES[workload.weights]
        fixed[read, inference, index] -= int(matrix * (number - met * kept))
    return msgspec.structs.replace(work, fixed=fixed)


KEPT = 48
"""Counts and plans of memory that are remembered: devices and batch sizes are asked about one network in turn."""

_KEPT: dict[tuple[Any, ...], tuple[Any, Any]] = {}

Made = TypeVar("Made")


def remembered(make: Callable[..., Made], layers: tuple[Layer, ...], *asked: Any) -> Made:
    """What is made of layers, once for the very same object: comparing all takes long."""
    key = (make, id(layers), *asked)
    kept = _KEPT.get(key)
    if kept is None:
        for oldest in [*_KEPT][: 1 - KEPT]:
            _KEPT.pop(oldest, None)
        kept = _KEPT[key] = layers, make(layers, *asked)  # with the layers, so that no others get their id
    made: Made = kept[1]
    return made


MASTER_BYTES = 4
"""Of a parameter's weight and state in mixed precision."""

CHECKPOINTING = ("none", "sqrt", "all")
"""Which activations are computed again: none, those inside about sqrt(n) segments, those inside every block."""


class Optimizer(NamedTuple):
    """An update rule, per parameter.

    Attributes
    ----------
    state : int
        Numbers kept from step to step.
    flops : int
        Arithmetic; a multiplication, an addition, a square root are one each.
    """

    state: int
    flops: int
    formula: str


OPTIMIZERS = {
    "sgd": Optimizer(0, 2, "w -= r g"),
    "momentum": Optimizer(1, 4, "v = m v + g; w -= r v"),
    "adam": Optimizer(2, 12, "m = a m + (1 - a) g; v = b v + (1 - b) g^2; w -= r m / (sqrt(v) + e)"),
}
"""Update rules by name; Adam is that of Kingma and Ba 2015 with the bias corrections folded into r and e."""


class TrainingOptions(msgspec.Struct, frozen=True):
    """How a network is trained.

    Attributes
    ----------
    optimizer : {"sgd", "momentum", "adam"}
    mixed_precision : bool
        Weights, gradients and activations in fp16 or bf16; master weights and the optimizer's state in fp32.
    checkpointing : {"none", "sqrt", "all"}
    accumulation : int
        Micro-batches per step, whose gradients are added up before one update.
    products : {"fp8"} or None
        What matrices are multiplied in where that is narrower than the precision: with mixed precision, those of
        layers, but for the last, which makes the logits (Micikevicius et al. 2022, FP8 formats for deep learning).

    Raises
    ------
    UnknownName
        If optimizer or checkpointing are none of these.
    BadValue
        If the accumulation is not a whole number above 0, or products are narrower without mixed precision.
    """

    optimizer: str = "momentum"
    mixed_precision: bool = False
    checkpointing: str = "none"
    accumulation: int = 1
    products: str | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise UnknownName("optimizer", self.optimizer, OPTIMIZERS)
        if self.checkpointing not in CHECKPOINTING:
            raise UnknownName("checkpointing", self.checkpointing, CHECKPOINTING)
        if isinstance(self.accumulation, bool) or not isinstance(self.accumulation, int) or self.accumulation < 1:
            raise BadValue(f"the accumulation must be a whole number of 1 or more, not {self.accumulation!r}")
        if self.products is not None and (self.products != "fp8" or not self.mixed_precision):
            raise BadValue(f"products are narrower with mixed precision, in fp8, not in {self.products}")

    def micro_batch(self, batch_size: int) -> int:
        """Samples per micro-batch.

        Raises
        ------
        BadValue
            If the batch cannot be divided so.
        """
        if batch_size % self.accumulation:
            raise BadValue(
                f"a batch of {batch_size} cannot be divided into {self.accumulation} micro-batches: "
                f"choose a batch that {self.accumulation} divides"
            )
        return batch_size // self.accumulation

    def split_precision(self, precision: str) -> tuple[str, TrainingOptions]:
        """What tensors are kept in, and the same options: mixed precision in fp8 keeps bf16 and multiplies in fp8."""
        if precision == "fp8" and self.mixed_precision:
            return "bf16", msgspec.structs.replace(self, products="fp8")
        return precision, self


def with_update(work: Work, precision: str, options: TrainingOptions) -> Work:
    """The same work with the update of the optimizer that was asked for.

    Each parameter's weight, gradient and state are read once and weight and state written, as a fused update does. In
    mixed precision the fp32 master weight is read and written and the fp16 weight written; with fp16 the gradients are
    divided by the loss scale and checked for overflow in a pass of their own (Micikevicius et al. 2018).
    """
    optimizer = OPTIMIZERS[options.optimizer]
    update = PASSES.index("update")
    flops, read, written = (COLUMNS.index(name) for name in ("flops", "bytes_read", "bytes_written"))
    fixed = work.fixed.copy()
    trained = fixed[flops, update] // 2  # plain gradient descent is 2 FLOPs per parameter
    number_bytes = element_bytes(precision)
    per_flops = optimizer.flops
    if options.mixed_precision:
        per_read = number_bytes + MASTER_BYTES * (1 + optimizer.state)
        per_written = number_bytes + MASTER_BYTES * (1 + optimizer.state)
        if precision == "fp16":
            per_flops, per_read, per_written = per_flops + 2, per_read + number_bytes, per_written + number_bytes
            fixed[COLUMNS.index("kernels"), update] *= 2
    else:
        per_read, per_written = number_bytes * (2 + optimizer.state), number_bytes * (1 + optimizer.state)
    fixed[flops, update] = trained * per_flops
    fixed[read, update] = trained * per_read
    fixed[written, update] = trained * per_written
    return msgspec.structs.replace(work, fixed=fixed)
