"""How long tests wait for what must come, on the busiest machine: a limit for what never comes, not a figure."""

from __future__ import annotations

PATIENCE_S = 600
PATIENCE_MS = 1e3 * PATIENCE_S
