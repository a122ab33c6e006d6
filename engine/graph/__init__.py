"""Graphs: how nodes are declared, which of them exist, and whether a graph is valid."""
