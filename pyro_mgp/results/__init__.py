"""Multiple imputations of a table: the class, files, summaries and the export to ArviZ."""
