"""What a run left behind, and what must hold of it."""
