"""Imputation of numbers, booleans and categories, beside other methods."""
