"""Measurements of the package, never imported by it: speed on the machine at hand."""
