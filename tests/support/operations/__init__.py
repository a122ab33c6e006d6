"""What the commands of an operator look at."""
