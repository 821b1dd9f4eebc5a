"""Benchmarks of engines: workloads, modes that take turns, statistics and reports."""
