"""Graphs: the declarations of nodes, the catalogue of node types, and the validation of graphs."""
