"""Single layers."""
