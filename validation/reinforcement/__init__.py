"""Published steps of reinforcement learning, the fit of their constants, and the error on held-out steps."""
