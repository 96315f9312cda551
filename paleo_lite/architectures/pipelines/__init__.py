"""Pipelines for pictures and videos: their parts, how often each runs, and the networks of the parts."""
