"""Folders written whole or not at all, checks of untrusted files, and checkpoints."""
