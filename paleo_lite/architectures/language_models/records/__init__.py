"""Records of model types, by kind of model or publisher."""
