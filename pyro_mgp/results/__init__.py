"""Multiple imputations: the class `Imputations`, drawing, files, summaries and export to ArviZ."""
