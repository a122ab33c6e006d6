"""Results brought to the callback URL: one try, what follows it, and the role that does both."""
