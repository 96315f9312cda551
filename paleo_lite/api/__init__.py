"""Floor 7: the Python face. Every command calls a function of this room; `paleo_lite` gives them by name."""
