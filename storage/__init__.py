"""Where finished images are kept, and the capability that opens one."""
