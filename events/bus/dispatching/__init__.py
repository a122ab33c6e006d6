"""What dispatchers tell on the bus: of their endpoints, and to each other."""
