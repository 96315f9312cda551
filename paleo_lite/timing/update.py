"""What an optimizer's update computes and moves."""

from __future__ import annotations

import msgspec

from ..counting import PASSES, Work
from ..counting.work import COLUMNS
from ..units import element_bytes
from .options import OPTIMIZERS, TrainingOptions

_MASTER_BYTES = 4


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
        per_read = number_bytes + _MASTER_BYTES * (1 + optimizer.state)
        per_written = number_bytes + _MASTER_BYTES * (1 + optimizer.state)
        if precision == "fp16":
            per_flops, per_read, per_written = per_flops + 2, per_read + number_bytes, per_written + number_bytes
            fixed[COLUMNS.index("kernels"), update] *= 2
    else:
        per_read, per_written = number_bytes * (2 + optimizer.state), number_bytes * (1 + optimizer.state)
    fixed[flops, update] = trained * per_flops
    fixed[read, update] = trained * per_read
    fixed[written, update] = trained * per_written
    return msgspec.structs.replace(work, fixed=fixed)
