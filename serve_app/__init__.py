"""HTTP edge, Serve application, command line."""
