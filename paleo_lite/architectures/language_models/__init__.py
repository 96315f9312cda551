"""Decoders by their `model_type`: records, and the layers around their blocks; and vision towers before them."""
