"""Benchmarks: one question a file, `python -m benchmarks.NAME`; results as CSV in `results/`."""
