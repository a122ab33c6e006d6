"""What keeps the read models and the stores in order: the projection and the janitor."""
