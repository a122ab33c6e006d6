"""What the database knows of the archive, and who writes to both."""
