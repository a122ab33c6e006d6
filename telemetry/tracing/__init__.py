"""The trace of each job, and what log lines say of it."""
