"""Language models on one's own machine, under llama.cpp."""

LLAMA_CPP = "llama.cpp"
"""Name of the execution, of the policy of `serve`, and of the engine."""
