"""llama.cpp on one's own machine: published tables, the fit of the constants, and their errors."""
