"""Blocks of transformers: the records that describe one, and the layers that they stand for."""
