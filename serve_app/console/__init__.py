"""The console: the page at `/`, in plain files that a browser runs as they are."""
