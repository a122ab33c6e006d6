"""The programs with which the service is compared. Each runs in its own process."""
