"""The data that a run left behind, and the checks of its invariants."""
