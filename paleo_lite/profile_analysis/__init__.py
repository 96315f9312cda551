"""Floor 4: kernels and a device to shares of peak."""

METHODS = ("steady", "notebook")
"""How a profile's rates are taken: of one steady iteration, or of all rows as SURFBoard's notebook does."""

DIRECTIONS = ("all", "fprop", "bprop", "update")
"""Kernels of which pass, as profilers of training call them."""

BY = {"op": "Operations", "shape": "Operations by shape", "module": "Modules and ranges", "kernel": "Kernels"}
"""What time is summed by, and what that is called: the framework's operations, those with their shapes, the program's
modules and ranges, or kernels (in `efficiency` those that one operation launched together)."""

ORDERS = ("time", "rank", "share")
"""How kernels are listed."""

TOOLS = ("nvprof", "ncu", "nsys")
"""Profilers whose command lines `next_command` writes."""
