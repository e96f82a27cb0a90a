"""Helpers that know nothing of imputation: tiles, devices, keyed noise, memory, signals, messages."""
