"""Language models on one's own machine, under llama.cpp and its like."""

LLAMA_CPP = "llama.cpp"
"""Name of the execution, of the policy of `serve`, and of the engine."""

LOCAL = (LLAMA_CPP, "mlx", "exllama")
"""Executions of this room."""
