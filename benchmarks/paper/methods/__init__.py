"""Imputation methods of the paper's experiments."""
