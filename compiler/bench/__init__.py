"""Benchmarks of engines: workloads, ways to decode in turns, statistics and reports."""
