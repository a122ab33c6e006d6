"""Tools for operators: inspect a job, verify the stores, rebuild the read model."""
