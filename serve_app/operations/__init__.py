"""What an operator does beside the running service: look at a job, check everything, rebuild."""
