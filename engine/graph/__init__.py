"""Graphs and their nodes: how they are declared, which there are, and when they are valid."""
