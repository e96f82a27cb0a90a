"""Pooled regressions: predictions and average marginal effects over m completed tables.

Predictions are pooled on the scale of the linear predictor, on which estimates are closer to normal, and
then transformed. The average marginal effect of a number is the mean over rows of the derivative of the
expected outcome, that of a level the mean of its difference from the first level, with other columns as they
are. Its variance in a completed table is J V Jᵀ (delta method): J are its derivatives with respect to the
coefficients, and V is the covariance matrix of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from pyro_mgp.analysis.joint_tests import Numbers
from pyro_mgp.analysis.pooling import Pooled, pool
from pyro_mgp.analysis.regression import FittedRegression, Regression, plain
from pyro_mgp.data.column_spec import Label

# Step of numerical derivatives, in standard deviations of a column: their relative error is its square.
_STEP = 1e-5


@dataclass(frozen=True, eq=False, repr=False)
class PooledRegression(Pooled):
    """Pooled coefficients of a regression, see `Pooled`, with predictions and average marginal effects."""

    fits: Sequence[FittedRegression] = field(kw_only=True)
    """The regression fitted to each completed table."""
    tables: Iterable[pd.DataFrame] = field(kw_only=True)
    """The completed tables."""
    regression: Regression = field(kw_only=True)
    """The regression; its weights are those of marginal effects as well."""

    @classmethod
    def of(
        cls, regression: Regression, tables: Iterable[pd.DataFrame], level: float = 0.95
    ) -> PooledRegression:
        """Fit a regression to completed tables, and pool its coefficients; for errors see `pool`."""
        fits = [regression(table) for table in tables]
        return cls(**vars(pool(fits, level=level)), fits=fits, tables=tables, regression=regression)

    def predict(self, rows: pd.DataFrame, *, level: float | None = None) -> pd.DataFrame:
        """Predict the expected outcome of complete rows, of `model="quantile"` its quantile.

        Args:
            rows: Rows with the columns of the formula.
            level: Probability of the intervals; None for that of the coefficients.

        Returns:
            A row for each, with `estimate`, `low` and `high`, and with `link`, `se` and `df`, the linear
            predictor, its standard error and degrees of freedom.

        Raises:
            ValueError: If the outcome has no expectation, a cell is missing, or a level was not fitted.
        """
        self._check_mean()
        answers = []
        for fit in self.fits:
            X = fit.matrix(rows)
            answers.append((X @ fit.params, np.einsum("nk,kl,nl->n", X, fit.covariance, X)))
        level = self.level if level is None else level
        found = pool(answers, level=level, df_complete=self.df_complete, names=[*rows.index]).table
        parts = {name: self.fits[0].mean(found[name].to_numpy()) for name in ("estimate", "low", "high")}
        return pd.DataFrame(parts, rows.index).assign(
            link=found["estimate"].to_numpy(), se=found["se"].to_numpy(), df=found["df"].to_numpy()
        )

    def marginal_effects(self, columns: Label | Sequence[Label] | None = None) -> Pooled:
        """Return average marginal effects of columns on the expected outcome; see the module.

        Args:
            columns: Labels of numbers, whose effects are per unit, or of columns of levels, whose effects are
                differences from the first level; None for all columns of the formula.

        Raises:
            ValueError: If the outcome has no expectation, or a column is not in the formula.
        """
        self._check_mean()
        known = sorted(map(str, self.fits[0].design.required_variables))
        several = [columns] if isinstance(columns, str | int) else columns
        chosen = known if several is None else [str(label) for label in several]
        if not known:
            raise ValueError("the formula has no columns, and so no marginal effects")
        if wrong := [label for label in chosen if label not in known]:
            raise ValueError(f"expected columns of the formula, {known}, got {wrong}")
        answers, label = [], self.regression.weights
        for fit, table in zip(self.fits, self.tables, strict=True):
            weights = None if label is None else table[label].to_numpy(dtype=np.float64)
            answers.append(average_effects(fit, table, chosen, weights))
        return pool(answers, level=self.level, df_complete=self.df_complete)

    def _check_mean(self) -> None:
        """Raise a ValueError if the outcome has no expectation."""
        if not self.regression.has_mean:
            raise ValueError(
                f"the outcome of model={self.regression.model!r} has no expectation: take the coefficients, "
                "or, of times, quantities.survival"
            )


def average_effects(
    fit: FittedRegression, table: pd.DataFrame, columns: Sequence[str], weights: Numbers | None = None
) -> tuple[pd.Series[float], Numbers]:
    """Return average marginal effects in a completed table, and their covariance matrix.

    Rows have weights `[n]`; None stands for equal ones. See the module.
    """
    weights = np.ones(len(table)) if weights is None else weights
    names, effects, slopes = zip(*_effects(fit, table, columns, weights / weights.sum()), strict=True)
    jacobian = np.stack(slopes)
    covariance = jacobian @ fit.covariance.to_numpy() @ jacobian.T
    return pd.Series(effects, list(names), dtype=np.float64), covariance


def _effects(
    fit: FittedRegression, table: pd.DataFrame, columns: Sequence[str], weights: Numbers
) -> Iterator[tuple[str, float, Numbers]]:
    """Yield name, average marginal effect, and its derivatives `[K]`, of each number and level."""
    table = plain(table)

    def at(label: str, values: Any) -> tuple[Numbers, Numbers]:
        """Return the expected outcome of each row, and its derivatives, with other values in a column."""
        X = fit.matrix(table.assign(**{label: values}))
        predictor = X @ fit.params.to_numpy()[: X.shape[1]]
        return fit.mean(predictor), fit.slope(predictor)[:, None] * X

    for label in columns:
        column = table[label]
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            values = column.to_numpy(dtype=np.float64)
            step = _STEP * (values.std() or 1.0)
            # Not beyond the range of the table, where a transform may have no value.
            ends = np.minimum(values + step, values.max()), np.maximum(values - step, values.min())
            (high, slopes_high), (low, slopes_low) = (at(label, end) for end in ends)
            if (slopes_high == slopes_low).all():
                raise ValueError(f"column {label!r} enters the formula by levels: make it a category or text")
            share = weights / (ends[0] - ends[1])
            yield label, float(share @ (high - low)), share @ (slopes_high - slopes_low)
            continue
        is_category = isinstance(column.dtype, pd.CategoricalDtype)
        first, *others = column.cat.categories if is_category else sorted(column.unique())
        low, slopes_low = at(label, pd.Series(first, table.index, column.dtype))
        for level in others:
            high, slopes_high = at(label, pd.Series(level, table.index, column.dtype))
            yield (
                f"{label}: {level} - {first}",
                float(weights @ (high - low)),
                weights @ (slopes_high - slopes_low),
            )
