"""The tools of the benchmarks: load, times, processes, reports."""
