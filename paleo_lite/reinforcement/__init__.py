"""Steps of reinforcement learning: rollouts, scoring, update, and the transfer of weights between them."""
