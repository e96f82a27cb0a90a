"""Pooling, joint tests, posterior mixtures, sensitivity and relevance."""
