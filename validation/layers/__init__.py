"""Validation of single layers and operations."""
