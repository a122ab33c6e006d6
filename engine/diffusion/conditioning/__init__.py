"""Conditionings: encoded texts, where they apply, and guidance."""
