"""Missing-data patterns, held-out cells, scores and calibration."""
