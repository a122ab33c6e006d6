"""The families of models: how each family loads, conditions and calls its network."""
