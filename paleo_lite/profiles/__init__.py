"""Floor 3: what a profiler saw."""
