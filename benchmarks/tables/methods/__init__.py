"""Imputation methods of the benchmark."""
