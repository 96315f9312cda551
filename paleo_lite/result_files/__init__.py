"""Readers of the files that benchmarks write: each gives its rows in SI units, what it leaves out, and its doubts."""
