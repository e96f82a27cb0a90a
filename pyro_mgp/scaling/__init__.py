"""Tables in partitions: Parquet parts and Dask."""
