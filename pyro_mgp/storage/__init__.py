"""Folders written whole or not at all, files that may come from strangers, and checkpoints."""
