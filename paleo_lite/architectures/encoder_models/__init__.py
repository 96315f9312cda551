"""Encoders, encoder-decoders and vision transformers, described by records of their traits."""
