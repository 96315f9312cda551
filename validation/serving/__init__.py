"""Published results of serving language models, and their reproduction."""
