"""Nodes of packages that the operator has installed beside Darkroom."""
