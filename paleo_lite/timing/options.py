"""How a network is trained on one device: optimizer, mixed precision, checkpointing, accumulation; and its update."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..counting import PASSES, Work
from ..counting.work import COLUMNS
from ..errors import BadValue, UnknownName
from ..units import element_bytes

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

    def check(self, precision: str) -> None:
        """Refuse mixed precision of anything but fp16 and bf16.

        Raises
        ------
        BadValue
        """
        if self.mixed_precision and precision not in ("fp16", "bf16"):
            raise BadValue(
                f"mixed precision multiplies in fp16 or bf16, not in {precision}: use --precision fp16, for example"
            )

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
