"""Validation of predictions against published measurements, and fits of the shipped calibrations."""
