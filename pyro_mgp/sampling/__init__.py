"""Drawing missing cells from a fitted chain."""
