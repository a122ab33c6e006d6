"""The scheduler: chooses the next job, its worker and its slot, and handles the outcome."""
