"""Regressions of completed tables by formula, pooled by Rubin's rules.

Formulas are those of formulaic, models those of statsmodels (extra `models`). Degrees of freedom of the
complete-data analysis are those that R's mice takes: n minus the number of parameters, events instead of rows
in a Cox regression, and the number of clusters minus one where standard errors are robust to clusters.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp._support.checks import number, one_of
from pyro_mgp._support.messages import listing, warn_user
from pyro_mgp.analysis.joint_tests import Numbers, PoolingWarning
from pyro_mgp.analysis.pooling import df_complete_of
from pyro_mgp.data.column_spec import Label

Model = Literal["ols", "glm", "gee", "mixed", "ordered", "quantile", "phreg"]
Family = Literal["gaussian", "binomial", "poisson", "gamma"]
# Models that need a column, and those that take one.
_NEED = {"cluster": ("gee", "mixed"), "event": ("phreg",)}
_TAKE = {
    "weights": ("ols", "glm"),
    "cluster": ("ols", "glm", "gee", "mixed"),
    "event": ("phreg",),
    "random": ("mixed",),
}
# Range of the outcomes of a family.
_RANGES = {"binomial": (0.0, 1.0), "poisson": (0.0, np.inf), "gamma": (0.0, np.inf)}
# Distance of a fitted probability from 0 or 1 below which the levels of a covariate separate the outcome.
_SEPARATED = 1e-8


@dataclass(frozen=True)
class FittedRegression:
    """Regression fitted to one completed table."""

    params: pd.Series[float]
    """Coefficients, `[K]`; thresholds of levels come last."""
    covariance: pd.DataFrame
    """Their covariance matrix, `[K, K]`."""
    df_resid: float
    """Residual degrees of freedom ν_com of the complete-data analysis."""
    design: Any
    """Specification of the design matrix, of formulaic."""
    link: Any
    """Link function, of statsmodels; None for the identity."""
    result: Any
    """Result of statsmodels."""
    formula: str
    """Formula of the regression."""

    def cov_params(self) -> pd.DataFrame:
        """Return the covariance matrix of the coefficients, as of statsmodels."""
        return self.covariance

    def mean(self, predictor: Numbers) -> Numbers:
        """Return the expected outcome, given the linear predictor."""
        return predictor if self.link is None else self.link.inverse(predictor)

    def slope(self, predictor: Numbers) -> Numbers:
        """Return the derivative of the expected outcome with respect to the linear predictor."""
        return np.ones_like(predictor) if self.link is None else self.link.inverse_deriv(predictor)

    def matrix(self, rows: pd.DataFrame) -> Numbers:
        """Return the design matrix of rows, `[n, K]`; levels that were not fitted are a ValueError."""
        from formulaic.errors import DataMismatchWarning

        with warnings.catch_warnings():
            warnings.simplefilter("error", DataMismatchWarning)
            try:
                with _explained(self.formula, rows):
                    X = self.design.get_model_matrix(plain(rows), na_action="raise")
            except DataMismatchWarning as error:
                unknown = re.search(r"\{.*\}", str(error))  # pandas' levels in the message of formulaic
                found = unknown[0] if unknown else error
                raise ValueError(f"a level is not among those of the fit: {found}") from error
        return np.asarray(X[[name for name in self.params.index if name in X]], dtype=np.float64)


@dataclass(frozen=True)
class Regression:
    """Regression of completed tables; for its arguments see `Imputations.fit`.

    Raises:
        ValueError: If the model needs a column that is not named, or has no use for one that is.
    """

    formula: str
    model: Model
    family: Family = "gaussian"
    weights: Label | None = None
    cluster: Label | None = None
    event: Label | None = None
    random: str | None = None
    quantile: float = 0.5

    def __post_init__(self) -> None:
        one_of("model", self.model, get_args(Model))
        one_of("family", self.family, get_args(Family))
        for name, takers in _TAKE.items():
            is_given = getattr(self, name) is not None
            if is_given and self.model not in takers:
                raise ValueError(f"model={self.model!r} takes no {name}: expected one of {takers}")
            if not is_given and self.model in _NEED.get(name, ()):
                raise ValueError(f"model={self.model!r} needs {name}, the label of a column")
        for name in ("weights", "cluster", "event"):
            if not isinstance(label := getattr(self, name), str | int | None):
                raise TypeError(f"{name} must be the label of a column, got {type(label).__name__}")
        if not 0 < number("quantile", self.quantile) < 1:
            raise ValueError(f"quantile must lie between 0 and 1, got {self.quantile}")
        if self.family != "gaussian" and self.model not in ("glm", "gee"):
            raise ValueError(f"model={self.model!r} takes no family: expected model='glm' or 'gee'")
        if not isinstance(self.formula, str) or len(self.sides) != 2 or not all(self.sides):
            raise ValueError(f"expected a formula such as 'y ~ x + z', got {self.formula!r}")

    @property
    def sides(self) -> list[str]:
        """Both sides of the formula."""
        return [side.strip() for side in re.split(r"~(?=(?:[^`]*`[^`]*`)*[^`]*$)", self.formula)]

    @property
    def has_mean(self) -> bool:
        """Whether predictions are on the outcome's scale: not of levels, nor of times in a Cox regression."""
        return self.model not in ("ordered", "phreg")

    def __call__(self, table: pd.DataFrame) -> FittedRegression:
        """Fit the regression to a completed table."""
        try:
            data = _Data.of(self, table)
        except ModuleNotFoundError as error:
            needs = f"regressions need formulaic and statsmodels ({error}): pip install 'pyro_mgp[models]'"
            raise ImportError(needs) from error
        result = _FITS[self.model](data)
        df = df_complete_of(result)
        assert df is not None  # all of these results have it
        names = data.X.columns
        params = pd.Series(np.asarray(result.params)[: len(names)], names, dtype=np.float64)
        if self.model == "ordered":
            params, covariance = _with_thresholds(result, data)
        elif self.model == "mixed":
            covariance = pd.DataFrame(_least_squares_covariance(result, data), names, names)
        else:
            covariance = pd.DataFrame(np.asarray(result.cov_params()), names, names)
        if self.model == "glm" and "HC1" in data.robust.values():
            covariance *= len(data.X) / df  # which statsmodels leaves out of HC1 there
        link = data.family.link if self.model in ("glm", "gee") else None
        return FittedRegression(params, covariance, float(df), data.design, link, result, self.formula)


@dataclass(frozen=True)
class _Data:
    """Outcome and design matrix of a regression in a completed table, with its options."""

    y: NDArray[Any]
    levels: Sequence[Any]
    """Levels of the outcome; empty for a number."""
    X: pd.DataFrame
    design: Any
    family: Any
    quantile: float
    weights: Numbers | None
    groups: NDArray[Any] | None
    event: Numbers | None
    Z: pd.DataFrame | None

    @classmethod
    def of(cls, regression: Regression, table: pd.DataFrame) -> _Data:
        from formulaic import Formula

        table = plain(table)
        columns = {name: getattr(regression, name) for name in ("weights", "cluster", "event")}
        for name, label in columns.items():
            if label is not None and str(label) not in table:
                raise ValueError(f"{name} names column {label!r}, but the table has {list(table.columns)}")
        own = {name: None if label is None else complete(table, label) for name, label in columns.items()}
        weights = None if regression.weights is None else numbers(table, regression.weights)
        if weights is not None:
            if (weights < 0).any():
                raise ValueError(
                    f"weights {regression.weights!r}: expected no negative ones, got {weights.min()}"
                )
            # Rows without weight are no rows.
            kept = weights > 0
            table, weights = table[kept], weights[kept]
            own = {name: None if column is None else column[kept] for name, column in own.items()}
        left, right = regression.sides
        y, levels = _outcome(left, table, regression)
        with _explained(regression.formula, table):
            X = Formula(right).get_model_matrix(table, na_action="raise")
        design, X = X.model_spec, pd.DataFrame(X)
        if regression.model in ("ordered", "phreg"):
            if "Intercept" not in X:
                raise ValueError(f"model={regression.model!r} has no intercept: leave '0 +' or '- 1' out")
            X = X.drop(columns="Intercept")
        _check_rank(X)
        with _explained(regression.random or "", table):
            Z = regression.random and Formula(regression.random).get_model_matrix(table, na_action="raise")
        groups = None if own["cluster"] is None else pd.factorize(own["cluster"])[0]
        if groups is not None and groups.max() < 1:
            raise ValueError(f"cluster {regression.cluster!r}: expected two clusters or more, got one")
        event = None if own["event"] is None else indicator(own["event"])
        Z = None if Z is None else pd.DataFrame(Z)
        family = _family(regression.family)
        return cls(y, levels, X, design, family, regression.quantile, weights, groups, event, Z)

    @property
    def robust(self) -> dict[str, Any]:
        """Options of standard errors: robust to clusters, or, with weights, to unequal variances."""
        if self.groups is not None:
            return {"cov_type": "cluster", "cov_kwds": {"groups": self.groups}}
        return {} if self.weights is None else {"cov_type": "HC1"}


@contextmanager
def _explained(formula: str, table: pd.DataFrame) -> Iterator[None]:
    """Turn errors of formulaic in a formula into a ValueError that names it and what is wrong."""
    from formulaic.errors import FormulaicError

    try:
        yield
    except (FormulaicError, ValueError) as error:
        said = " ".join(re.sub(r"\x1b\[[\d;]*m|[⧛⧚]", "", str(error)).split())
        if unknown := re.search(r"NameError: (?:name )?[`'](.*?)[`'] is not", said):
            found = f"names {unknown[1]!r}, but the columns are {listing(table.columns)}"
        elif empty := re.search(r"`([^`]*)` contains null values", said):
            found = f"has no value of {empty[1]!r} in some rows"
        else:
            inner = re.search(r"\[(.*)\]$", said)
            found = f"cannot be evaluated: {inner[1] if inner else said.split('. ')[0]}"
            if "|" in formula:
                found += ". For random effects, give model='mixed' and cluster=, the label of a column"
        raise ValueError(f"the formula {formula!r} {found}") from error


def _family(name: Family) -> Any:
    import statsmodels.api as sm

    # The logarithm keeps means positive, where the canonical link of a gamma variable does not.
    if name == "gamma":
        return sm.families.Gamma(sm.families.links.Log())
    return getattr(sm.families, name.capitalize())()


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with pandas' usual dtypes, named columns, and no unused levels."""
    table = table.rename(columns=str).infer_objects()
    changed: dict[str, pd.Series[Any]] = {}
    for name, column in table.items():
        if isinstance(column.dtype, pd.ArrowDtype):
            import pyarrow as pa

            column = changed[str(name)] = pa.array(column).to_pandas().set_axis(column.index)
        if isinstance(column.dtype, pd.StringDtype):
            changed[str(name)] = column.astype(object)
        elif isinstance(column.dtype, pd.CategoricalDtype):
            changed[str(name)] = column.cat.remove_unused_categories()
    return table.assign(**changed)


def complete(table: pd.DataFrame, label: Label) -> pd.Series[Any]:
    """Return a column; one that does not exist, or has missing cells, is a ValueError."""
    if label not in table and str(label) not in table:
        raise ValueError(f"there is no column {label!r}; the table has {listing(table.columns)}")
    column = table[label if label in table else str(label)]
    if column.isna().any():
        raise ValueError(
            f"column {label!r} has {int(column.isna().sum())} missing cells in a completed table"
        )
    return column


def numbers(table: pd.DataFrame, label: Label) -> Numbers:
    """Return a complete column of numbers; another one is a ValueError."""
    column = complete(table, label)
    try:
        return column.to_numpy(dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"column {label!r}: expected numbers, got {column.dtype}") from error


def indicator(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Return a column of truth values as ones and zeros; others are a ValueError."""
    values = set(column.unique())
    if not values <= {0, 1}:
        raise ValueError(
            f"column {column.name!r}: expected true and false, or 1 and 0, got "
            f"{listing(sorted(values, key=str))}"
        )
    return column.to_numpy(dtype=np.float64)


def _outcome(left: str, table: pd.DataFrame, regression: Regression) -> tuple[NDArray[Any], list[Any]]:
    """Return the outcome as numbers, and its levels if it has any."""
    from formulaic import Formula

    name = left[1:-1] if re.fullmatch("`[^`]*`", left) else left
    if name in table:
        column = complete(table, name)
    else:
        with _explained(regression.formula, table):
            found = pd.DataFrame(Formula(f"0 + {left}").get_model_matrix(table, na_action="raise"))
        if found.shape[1] != 1:
            raise ValueError(f"expected one number on the left of a formula, got {left!r}")
        column = found.iloc[:, 0]
    is_category = isinstance(column.dtype, pd.CategoricalDtype)
    if regression.model == "ordered":
        if not is_category or not column.cat.ordered:
            raise ValueError(
                f"model='ordered' needs an outcome with ordered levels, {left!r} has {column.dtype}"
            )
        return column.cat.codes.to_numpy(dtype=np.float64), list(column.cat.categories)
    if pd.api.types.is_numeric_dtype(column):
        y = column.to_numpy(dtype=np.float64)
    else:
        levels = list(column.cat.categories) if is_category else sorted(column.unique())
        if regression.family != "binomial" or len(levels) != 2:
            raise ValueError(
                f"outcome {left!r} has levels {levels}: expected numbers, two levels with family='binomial', "
                "or ordered ones with model='ordered'"
            )
        y = (column == levels[1]).to_numpy(dtype=np.float64)
    low, high = _RANGES.get(regression.family, (-np.inf, np.inf))
    what = f"family={regression.family!r}"
    if regression.model == "phreg":
        low, what = 0.0, "model='phreg'"
    if not ((y >= low) & (y <= high)).all():
        raise ValueError(
            f"outcome {left!r}: {what} takes values from {low:g} to {high:g}, got {y.min():g} to {y.max():g}"
        )
    return y, []


def _check_rank(X: pd.DataFrame) -> None:
    """Raise a ValueError if a column of a design matrix is a linear function of those before it."""
    values = X.to_numpy(dtype=np.float64)
    for k in np.flatnonzero(~np.isfinite(values).all(0))[:1]:
        raise ValueError(f"term {X.columns[k]!r} is not finite in some rows of a completed table")
    values = values / np.maximum(np.abs(values).max(0), np.finfo(np.float64).tiny)
    if np.linalg.matrix_rank(values) == X.shape[1]:
        return
    for k, name in enumerate(X.columns):
        if np.linalg.matrix_rank(values[:, : k + 1]) <= k:
            raise ValueError(f"term {name!r} is a linear function of others, or zero: leave it out")


def _warn_of_extremes(result: Any, family: Any) -> None:
    """Warn if a generalised linear model did not converge, or if it predicts an outcome with certainty."""
    fitted, name = np.asarray(result.fittedvalues), type(family).__name__
    extreme = name == "Binomial" and (np.minimum(fitted, 1 - fitted) < _SEPARATED).any()
    if extreme or not getattr(result, "converged", True):
        why = "predicts an outcome with certainty" if extreme else "did not converge"
        warn_user(
            f"the regression of a completed table {why}: coefficients and standard errors are arbitrary",
            PoolingWarning,
        )


def _ols(data: _Data) -> Any:
    import statsmodels.api as sm

    weights = 1.0 if data.weights is None else data.weights
    return sm.WLS(data.y, data.X, weights=weights).fit(**data.robust)


def _glm(data: _Data) -> Any:
    import statsmodels.api as sm
    from statsmodels.tools.sm_exceptions import SpecificationWarning

    model = sm.GLM(data.y, data.X, family=data.family, var_weights=data.weights)
    with warnings.catch_warnings():
        # Of robust standard errors with weights, which agree with those of R's sandwich.
        warnings.simplefilter("ignore", SpecificationWarning)
        result = model.fit(tol=1e-12, maxiter=200, **data.robust)
    _warn_of_extremes(result, data.family)
    return result


def _gee(data: _Data) -> Any:
    import statsmodels.api as sm

    structure = sm.cov_struct.Exchangeable()
    model = sm.GEE(data.y, data.X, groups=data.groups, family=data.family, cov_struct=structure)
    result = model.fit(ctol=1e-10, maxiter=200)
    _warn_of_extremes(result, data.family)
    return result


def _mixed(data: _Data) -> Any:
    import statsmodels.api as sm

    # Without gradients, which fail where the variance of effects is near zero.
    model = sm.MixedLM(data.y, data.X, groups=data.groups, exog_re=data.Z)
    return model.fit(method="powell", ftol=1e-13)


def _least_squares_covariance(result: Any, data: _Data) -> Numbers:
    """Return the covariance matrix of a mixed model's coefficients at its estimated variances, as lme4 does.

    That of statsmodels adds the uncertainty of the variances, from second derivatives.
    """
    X = data.X.to_numpy(dtype=np.float64)
    Z = np.ones((len(X), 1)) if data.Z is None else data.Z.to_numpy(dtype=np.float64)
    precision = np.zeros((X.shape[1], X.shape[1]))
    assert data.groups is not None
    for group in np.unique(data.groups):
        rows = data.groups == group
        V = result.scale * np.eye(rows.sum()) + Z[rows] @ np.asarray(result.cov_re) @ Z[rows].T
        precision += X[rows].T @ np.linalg.solve(V, X[rows])
    return np.asarray(np.linalg.inv(precision), dtype=np.float64)


def _ordered(data: _Data) -> Any:
    from statsmodels.miscmodels.ordinal_model import OrderedModel

    return OrderedModel(data.y, data.X, distr="logit").fit(method="bfgs", disp=False, gtol=1e-8)


def _quantile(data: _Data) -> Any:
    import statsmodels.api as sm

    # By default estimates are those of the linear programme to four digits only.
    return sm.QuantReg(data.y, data.X).fit(q=data.quantile, p_tol=1e-8, max_iter=5_000)


def _phreg(data: _Data) -> Any:
    import statsmodels.api as sm

    assert data.event is not None
    return sm.PHReg(data.y, data.X, status=data.event, ties="efron").fit()


_FITS: dict[str, Callable[[_Data], Any]] = {
    "ols": _ols,
    "glm": _glm,
    "gee": _gee,
    "mixed": _mixed,
    "ordered": _ordered,
    "quantile": _quantile,
    "phreg": _phreg,
}


def _with_thresholds(result: Any, data: _Data) -> tuple[pd.Series[float], pd.DataFrame]:
    """Return coefficients and thresholds of an ordered model, and their covariance matrix.

    The parameters of statsmodels are the first threshold and the logarithms of the steps to further ones.
    """
    values, n_slopes = np.asarray(result.params), data.X.shape[1]
    steps = np.exp(values[n_slopes:])
    jacobian = np.eye(len(values))
    for k in range(1, len(steps)):
        jacobian[n_slopes + k :, n_slopes + k] = steps[k]
        jacobian[n_slopes + k, n_slopes] = 1.0
    thresholds = values[n_slopes] + np.cumsum(np.concatenate([[0.0], steps[1:]]))
    pairs = zip(data.levels, data.levels[1:], strict=False)
    names = [*data.X.columns, *(f"{low}|{high}" for low, high in pairs)]
    covariance = jacobian @ np.asarray(result.cov_params()) @ jacobian.T
    params = pd.Series(np.concatenate([values[:n_slopes], thresholds]), names)
    return params, pd.DataFrame(covariance, names, names)
