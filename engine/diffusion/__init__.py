"""The part of the engine that needs torch."""
