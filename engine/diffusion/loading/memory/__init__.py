"""What models take of memory, and how they take less of it on the device."""
