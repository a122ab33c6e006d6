"""Every value that an operator may set, in groups, read from `DARKROOM_*` variables."""
