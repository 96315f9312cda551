"""Calibration of parameters to measurements, and comparison of predictions with measurements (floor 5)."""
