"""For tests of workers: a pool of them on a cluster in memory."""
