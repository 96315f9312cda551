"""Floor 3: what this machine does, timed. Knows shapes and torch; no network, device file or time model."""
