"""Floor 5: what keeps a device waiting for its data, and what would help."""
