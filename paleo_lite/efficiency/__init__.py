"""Floor 4: kernels and a device to shares of peak."""
