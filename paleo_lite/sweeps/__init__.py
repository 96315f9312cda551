"""Floor 5: whole design spaces, every combination predicted in one broadcast, streamed to a file; the best of it."""
