"""Encoders, encoder-decoders and vision transformers by their `model_type`: records, embeddings, stacks and heads."""
