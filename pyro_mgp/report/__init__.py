"""An HTML report on imputations."""
