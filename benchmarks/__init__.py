"""How fast paleo-lite is beside peers, and how near to what was measured: nothing here is in the wheel."""
