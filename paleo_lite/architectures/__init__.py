"""Floor 3: networks, their layers, and the files and modules they are read from."""

from .catalog import (
    find_network,
    is_network_file,
    network_names,
    path_of_network,
    read_network_file,
    trace_factory,
    trace_named,
)
from .counts import CountsComparison, LayerCounts, count_network
from .descriptor import read_descriptor, write_descriptor
from .network import Network

__all__ = [
    "CountsComparison",
    "LayerCounts",
    "Network",
    "count_network",
    "find_network",
    "is_network_file",
    "network_names",
    "path_of_network",
    "read_descriptor",
    "read_network_file",
    "trace_factory",
    "trace_named",
    "write_descriptor",
]
