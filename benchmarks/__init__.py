"""How fast it is: each script measures one thing against what it stands on, in one run.

usage: make bench
"""
