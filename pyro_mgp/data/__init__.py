"""A DataFrame becomes numbers and comes back."""
