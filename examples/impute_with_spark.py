"""Impute a Spark DataFrame by a function of its partitions, with the same draws as in pandas.

    pip install 'pyro_mgp[spark]'; python examples/impute_with_spark.py

Rows need unique ids, because Spark keeps neither their order nor their labels: draws depend on the ids.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from pyro_mgp import MGPImputer, impute_partition
from pyro_mgp.scaling.partitions import FittedState

PENGUINS = Path(__file__).parent / "data" / "penguins.csv"


def main() -> None:
    """Fit the penguins, impute them in Spark, and compare the draws with those in pandas."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two training steps and imputations only")
    m = 2 if (quick := parser.parse_args().quick) else 20
    frame = pd.read_csv(PENGUINS)
    imputer = MGPImputer(random_state=0, progress=False, max_steps=2 if quick else 15).fit(frame)
    state = FittedState(imputer)  # sent to the workers, without the table that the imputer was fitted to

    def completed(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            for j, table in enumerate(impute_partition(state, batch, m, row_ids="id")):
                yield table.assign(imputation=j)

    with_ids = frame.assign(id=range(len(frame)))
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    table = spark.createDataFrame(with_ids.astype(object).where(with_ids.notna(), None)).repartition(3)
    schema = StructType([*table.schema, StructField("imputation", IntegerType())])
    drawn = table.mapInPandas(completed, schema).toPandas().sort_values(["imputation", "id"])
    spark.stop()

    expected = pd.concat(imputer.impute(with_ids, m, row_ids="id"))
    same = (drawn[list(with_ids)].to_numpy() == expected.to_numpy()).all()
    print(f"{m} × {len(frame)} penguins; the same as pandas draws: {same}")


if __name__ == "__main__":
    main()
