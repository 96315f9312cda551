"""Language models described by records: traits of their blocks, families by ``model_type``, and their layers."""
