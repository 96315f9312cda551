"""Language models on one's own machine, under llama.cpp and its like."""
