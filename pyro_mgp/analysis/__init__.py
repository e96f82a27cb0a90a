"""Analyses of imputations: pooling, joint tests, posterior mixtures, sensitivity and relevance."""
