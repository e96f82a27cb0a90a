"""The HTML report on an imputation."""
