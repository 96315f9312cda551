"""Floor 5: training on many devices: links, topologies, collectives, strategies."""
