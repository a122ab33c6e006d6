"""The input files of workflows: what is kept of an upload, and where."""
