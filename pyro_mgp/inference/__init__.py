"""Training a chain, and drawing its functions given a completed table."""
