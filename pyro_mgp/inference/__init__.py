"""Training of a chain, and data augmentation: draws of its functions given a completed table."""
