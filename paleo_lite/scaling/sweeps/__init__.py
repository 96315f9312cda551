"""Whole design spaces: every combination predicted as one broadcast, streamed to a file, and the best of it."""
