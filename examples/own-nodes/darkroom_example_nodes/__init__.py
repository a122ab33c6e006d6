"""An example of a package of nodes."""
