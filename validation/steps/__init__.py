"""Validation of steps of whole networks on one device."""
