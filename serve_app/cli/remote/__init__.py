"""Commands that call the HTTP API, of this machine's service or of one elsewhere."""
