"""Nodes that sample, and those that prepare it."""
