"""Readers for the files of profilers, all returning the same table of kernels and host events."""
