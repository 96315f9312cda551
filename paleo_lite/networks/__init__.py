"""Floor 3: what is computed."""

import sys

import paleo_lite

from .catalog import find_network, is_network_file, network_names, read_network_file, trace_factory, trace_named
from .counts import CountsBeside, LayerCounts, count_network
from .descriptor import read_descriptor, write_descriptor
from .network import Network

__all__ = [
    "CountsBeside",
    "LayerCounts",
    "Network",
    "count_network",
    "find_network",
    "is_network_file",
    "network_names",
    "read_descriptor",
    "read_network_file",
    "trace_factory",
    "trace_named",
    "write_descriptor",
]

sys.modules[__name__].__class__ = paleo_lite.Room  # called, it is the command of its name
