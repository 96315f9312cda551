"""Kernels of inference engines: those of a block, the time of each, and the constants that engines and devices have."""
