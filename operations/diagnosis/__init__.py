"""`darkroom doctor`: checks each dependency of the service separately."""
