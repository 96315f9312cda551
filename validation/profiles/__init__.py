"""Classes of work in profiles."""
