"""Floor 6: results turned into something to look at."""

import sys

import paleo_lite

sys.modules[__name__].__class__ = paleo_lite.Room  # called, it is the command of its name
