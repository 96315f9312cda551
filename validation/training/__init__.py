"""Validation of distributed training steps of language models."""
