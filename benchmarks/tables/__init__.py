"""Accuracy of imputation on 21 public tables with five patterns of missing cells."""
