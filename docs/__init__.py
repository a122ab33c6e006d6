"""The pages of the documentation, and the programs that fill in what the code itself knows."""
