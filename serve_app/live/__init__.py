"""Jobs watched as they happen: a replica follows the log once, whoever watches."""
