"""Imputations, and their way into ArviZ, files and summaries."""
