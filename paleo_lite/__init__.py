"""paleo-lite: how long a neural network takes on a machine, and why.

>>> import paleo_lite as pl
>>> prediction = pl.predict("vgg16", gpu="k80", precision="fp64")  # doctest: +SKIP
"""

from .api import devices, layers, networks, predict, trace
from .errors import PaleoError

__version__ = "0.1.0"

__all__ = ["PaleoError", "__version__", "devices", "layers", "networks", "predict", "trace"]
