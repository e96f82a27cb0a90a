"""Coverage of pooled intervals over many tables drawn from designs with known parameters."""
