"""`darkroom doctor`: each thing that the service stands on, looked at by itself."""
