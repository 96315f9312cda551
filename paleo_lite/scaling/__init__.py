"""Floor 5: many devices, what feeds them, and whole design spaces."""
