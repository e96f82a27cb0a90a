"""Sampling weights as a predictor.

If rows were sampled with probabilities that depend on what is missing, given the other columns, the
distribution of the sample is not that of the population, and imputations that ignore the weights are biased
for it. Given the weights it is: the logarithm of the weights is a predictor of every column, and analyses of
the completed tables use the weights themselves (Seaman et al., Biometrics 68:129-137, 2012).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from pyro_mgp._support.messages import plain, row_name
from pyro_mgp.data.cells import is_boolean, is_numeric, numbers_of
from pyro_mgp.data.limits import Numbers


def log_weights(column: pd.Series[Any]) -> Numbers:
    """Return the logarithms of the weights of a table's rows, `[N]`.

    Raises:
        TypeError: If the column does not hold numbers.
        ValueError: If a weight is missing, not positive or infinite.

    Example:
        >>> log_weights(pd.Series([1.0, 2.0], name="w")).round(3).tolist()
        [0.0, 0.693]
    """
    if not is_numeric(column) or is_boolean(column):
        raise TypeError(f"Column {column.name!r} holds weights: expected numbers, got dtype {column.dtype}")
    weights = numbers_of(column)
    for row in np.flatnonzero(~(weights > 0) | np.isinf(weights))[:1]:
        raise ValueError(
            f"Column {column.name!r}: {row_name(column.index, row)} holds the weight "
            f"{plain(column.iloc[row])!r}; expected a positive, finite number. Drop rows without a weight."
        )
    return np.asarray(np.log(weights))
