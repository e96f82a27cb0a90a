"""Observation models, one module per kind of column."""
