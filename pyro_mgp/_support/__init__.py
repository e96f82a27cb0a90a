"""Helpers independent of imputation: tiles, devices, keyed noise, memory, signals, messages."""
