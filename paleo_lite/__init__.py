"""paleo-lite: how long a neural network takes on a machine, and why.

>>> import paleo_lite as pl
>>> prediction = pl.predict("vgg16", gpu="k80", precision="fp64")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import PaleoError
from .version import __version__

if TYPE_CHECKING:
    from .api import devices, layers, network_names, predict, predict_several, scale, trace

__all__ = [
    "PaleoError", "__version__", "devices", "layers", "network_names", "predict", "predict_several", "scale", "trace",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The functions of `api`, imported at first use: the command line's help and completion need none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
