"""The archive: the events of jobs that ended and left the log, in segments in the image store."""
