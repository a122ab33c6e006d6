"""Benchmarks. Each script measures the service, beside the parts that it is built on or beside
other programs, in one run.

`harness/` has the tools for measuring, `peers/` the programs to compare with, and `scenarios/` the
parts of the suite. docs/benchmarks.md explains each figure and how to repeat its measurement.

usage: make bench
"""
