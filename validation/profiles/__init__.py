"""Validation of the predicted times of classes of work against profiles."""
