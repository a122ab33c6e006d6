"""What benchmarks measure with: load, times, processes, reports."""
