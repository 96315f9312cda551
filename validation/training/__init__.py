"""Training steps of language models, shared out over many devices."""
