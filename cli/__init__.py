"""The commands of the program `darkroom`."""
