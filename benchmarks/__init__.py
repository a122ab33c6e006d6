"""How fast it is: each script measures against what it stands on or beside, in one run.

`harness/` is what they measure with, `peers/` what they compare with, `scenarios/` what the suite
runs. docs/benchmarks.md says what each figure means, and how to repeat it.

usage: make bench
"""
