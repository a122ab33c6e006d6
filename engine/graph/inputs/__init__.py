"""The inputs of a node: what links lead to, literals, and values that other nodes compute."""
