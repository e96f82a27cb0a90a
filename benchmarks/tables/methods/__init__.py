"""Imputation methods of the benchmark."""

DRAWS = 20
"""Number of draws m of each missing cell, except for miceforest."""
