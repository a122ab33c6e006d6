"""Jobs that wait: whose turn it is, and which slot suits."""
