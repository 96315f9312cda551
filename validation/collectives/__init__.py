"""Exchanges between devices."""
