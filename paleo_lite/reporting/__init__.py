"""Floor 6: results turned into something to look at."""
