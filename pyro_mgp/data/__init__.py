"""Encoding of a DataFrame as tensors, and decoding of draws to cells in the columns' own units."""
