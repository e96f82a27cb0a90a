"""Fitting of a model to a table: links, training, local corrections, and the order of a joint density."""
