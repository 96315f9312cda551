"""Fit of the power that devices draw to measured servers and training steps, and its held-out errors."""
