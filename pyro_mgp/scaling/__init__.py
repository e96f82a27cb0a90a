"""Imputation of partitioned tables: folders of Parquet files and Dask DataFrames."""
