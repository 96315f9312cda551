"""Floor 5: PALEO as released, all of it, its slips included."""
