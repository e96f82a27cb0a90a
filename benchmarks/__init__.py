"""Benchmarks of speed, memory, accuracy, coverage and robustness, which the package itself never imports."""
