"""Named workflows: graphs that owners store once, with typed inputs and named outputs."""
