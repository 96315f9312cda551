"""Published times of pipelines for pictures and videos, the fit of what diffusers reaches, and its held-out error."""
