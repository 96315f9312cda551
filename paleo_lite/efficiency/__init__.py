"""Floor 4: kernels and a device to shares of peak."""

METHODS = ("steady", "notebook")
"""How a profile's rates are taken: of one steady iteration, or of all rows as SURFBoard's notebook does."""

DIRECTIONS = ("all", "fprop", "bprop", "update")
"""Kernels of which pass, as profilers of training call them."""

ORDERS = ("time", "rank", "share")
"""How kernels are listed."""

TOOLS = ("nvprof", "ncu", "nsys")
"""Profilers whose command lines `next_command` writes."""
