"""What the suite runs on one service, a module for each group of tables."""
