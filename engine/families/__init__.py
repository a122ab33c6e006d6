"""What any process knows of the families of models, without torch: a module each, and one table."""
