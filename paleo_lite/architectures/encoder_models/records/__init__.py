"""Records of encoders and encoder-decoders by their ``model_type``."""
