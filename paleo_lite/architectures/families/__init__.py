"""Model types of configs: a record for each, read from ``models/families``, and the networks that they describe."""
