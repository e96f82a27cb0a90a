"""Evaluation of imputers: missing-data patterns, held-out cells, scores and calibration."""
