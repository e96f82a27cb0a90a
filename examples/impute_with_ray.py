"""Impute a Ray dataset by a function of its batches, with the same draws as in pandas.

    pip install 'pyro_mgp[ray]'; python examples/impute_with_ray.py

Rows need unique ids, because Ray keeps neither their order nor their labels: draws depend on the ids.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
import ray

from pyro_mgp import MGPImputer, impute_partition
from pyro_mgp.scaling.partitions import FittedState

PENGUINS = Path(__file__).parent / "data" / "penguins.csv"


def main() -> None:
    """Fit the penguins, impute them in Ray, and compare the draws with those in pandas."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two training steps and imputations only")
    m = 2 if (quick := parser.parse_args().quick) else 20
    frame = pd.read_csv(PENGUINS)
    imputer = MGPImputer(random_state=0, progress=False, max_steps=2 if quick else 15).fit(frame)
    state = FittedState(imputer)  # sent to the workers, without the table that the imputer was fitted to

    def completed(batch: pd.DataFrame) -> pd.DataFrame:
        tables = impute_partition(state, batch, m, row_ids="id")
        return pd.concat([table.assign(imputation=j) for j, table in enumerate(tables)])

    with_ids = frame.assign(id=range(len(frame)))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    table = ray.data.from_pandas(with_ids).repartition(3)
    drawn = table.map_batches(completed, batch_format="pandas", batch_size=100).to_pandas()
    ray.shutdown()

    drawn = drawn.sort_values(["imputation", "id"])
    expected = pd.concat(imputer.impute(with_ids, m, row_ids="id"))
    same = (drawn[list(with_ids)].to_numpy() == expected.to_numpy()).all()
    print(f"{m} × {len(frame)} penguins; the same as pandas draws: {same}")


if __name__ == "__main__":
    main()
