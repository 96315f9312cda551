"""Floor 5: bottlenecks of the input pipeline, and remedies."""
