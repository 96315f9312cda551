"""``paleo-lite feeding``."""

from __future__ import annotations

from typing import Any

from ..questions.feeding import Feeding
from ..result import Result
from . import options
from .answers import command


@command(Feeding)
@options.network()
def feeding(**arguments: Any) -> Result:
    """Predict whether storage, decoding and the host link can keep a device busy, and which change would help most.

    \b
      paleo-lite feeding resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64
      paleo-lite feeding resnet50 --gpu k80-die --storage hdd --access random --workers 4
      paleo-lite feeding alexnet --gpu p100-sxm2 --no-pinned --no-prefetch
    """
    from ..questions.feeding import answer

    return answer(Feeding(**arguments))
