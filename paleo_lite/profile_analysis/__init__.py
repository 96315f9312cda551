"""Floor 4: from profiles to busy and idle time, shares of peak, kernels, collectives and comparisons."""

METHODS = ("steady", "notebook")
"""How the rates of a profile are computed: over one steady iteration, or over all rows as SURFBoard's notebook does."""

DIRECTIONS = ("all", "fprop", "bprop", "update")
"""Pass of the kernels, as profilers of training label it."""

GROUPINGS = {"op": "Operations", "shape": "Operations by shape", "module": "Modules and ranges", "kernel": "Kernels"}
"""Keys that time is summed by, and their headings: the framework's operations, operations with their shapes, the
program's modules and ranges, or kernels (in `efficiency` the set of kernels that one operation launched)."""

ORDERS = ("time", "rank", "share")
"""Orders in which kernels are listed."""

TOOLS = ("nvprof", "ncu", "nsys")
"""Profilers for which `next_command` writes command lines."""
