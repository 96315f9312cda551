"""Floor 5: measured to parameters, and predicted beside measured."""
