"""Time and memory that imputation methods take for twenty imputations, as tables grow."""
