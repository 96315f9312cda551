"""Serving of language models: continuous batching simulated on predicted iteration times."""
