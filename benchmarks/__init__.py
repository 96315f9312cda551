"""Benchmarks of speed and accuracy, compared with other tools and with measurements; not part of the wheel."""
