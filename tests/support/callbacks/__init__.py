"""For tests of callbacks: the role at work, receivers and a proxy, hostile addresses."""
