"""Regressions of completed tables by formula, pooled by Rubin's rules.

Formulas are those of formulaic, models those of statsmodels (extra `models`). Degrees of freedom of the
complete-data analysis are those that R's mice takes: n minus the number of parameters, events instead of rows
in a Cox regression, and the number of clusters minus one where standard errors are robust to clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from pyro_mgp._support.checks import one_of
from pyro_mgp.analysis.joint_tests import Numbers
from pyro_mgp.data.column_spec import Label

Model = Literal["ols", "glm", "gee", "mixed", "ordered", "quantile", "phreg"]
Family = Literal["gaussian", "binomial", "poisson", "gamma", "negative_binomial"]
Function: TypeAlias = Callable[[Numbers], Numbers]
# Models that need a column, and those that take one.
_NEED = {"cluster": ("gee", "mixed"), "event": ("phreg",)}
_TAKE = {
    "weights": ("ols", "glm"),
    "cluster": ("ols", "glm", "gee", "mixed"),
    "event": ("phreg",),
    "random": ("mixed",),
}


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
    mean: Function
    """Expected outcome as a function of the linear predictor, in a Cox regression the relative hazard."""
    slope: Function
    """Derivative of that function."""
    result: Any
    """Result of statsmodels."""

    def cov_params(self) -> pd.DataFrame:
        """Return the covariance matrix of the coefficients, as of statsmodels."""
        return self.covariance

    def matrix(self, rows: pd.DataFrame) -> Numbers:
        """Return the design matrix of rows, `[n, K]`; thresholds have no columns."""
        X = self.design.get_model_matrix(rows, na_action="raise")
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
        if self.family != "gaussian" and self.model not in ("glm", "gee"):
            raise ValueError(f"model={self.model!r} takes no family: expected model='glm' or 'gee'")
        if self.formula.count("~") != 1:
            raise ValueError(f"expected a formula such as 'y ~ x + z', got {self.formula!r}")

    def __call__(self, table: pd.DataFrame) -> FittedRegression:
        """Fit the regression to a completed table."""
        try:
            data = _Data.of(self, table)
        except ModuleNotFoundError as error:
            needs = f"regressions need formulaic and statsmodels ({error}): pip install 'pyro_mgp[models]'"
            raise ImportError(needs) from error
        result, df = _FITS[self.model](data)
        names = data.X.columns
        params = pd.Series(np.asarray(result.params)[: len(names)], names, dtype=np.float64)
        if self.model == "ordered":
            params, covariance = _with_thresholds(result, data)
        elif self.model == "mixed":
            covariance = pd.DataFrame(_least_squares_covariance(result, data), names, names)
        else:
            covariance = pd.DataFrame(np.asarray(result.cov_params()), names, names)
        link = data.family.link if self.model in ("glm", "gee") else None
        mean, slope = _of_predictor(self.model, link)
        return FittedRegression(params, covariance, df, data.design, mean, slope, result)


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
    groups: Numbers | None
    event: Numbers | None
    Z: pd.DataFrame | None

    @classmethod
    def of(cls, regression: Regression, table: pd.DataFrame) -> _Data:
        import statsmodels.api as sm
        from formulaic import Formula

        left, right = (side.strip() for side in regression.formula.split("~"))
        has_intercept = regression.model not in ("ordered", "phreg")
        X = Formula(right).get_model_matrix(table, na_action="raise")
        design = X.model_spec
        if not has_intercept:
            X = X.drop(columns="Intercept", errors="ignore")
        if left in table:
            y, levels = _numbers(table[left])
        else:
            y, levels = np.asarray(Formula(left + " - 1").get_model_matrix(table))[:, 0], []
        names = {"gaussian": "Gaussian", "negative_binomial": "NegativeBinomial"}
        family = names.get(regression.family, regression.family.capitalize())
        columns = {name: getattr(regression, name) for name in ("weights", "cluster", "event")}
        for name, label in columns.items():
            if label is not None and label not in table:
                raise ValueError(f"{name} names column {label!r}, but the table has {list(table.columns)}")
        own = {name: None if label is None else table[label] for name, label in columns.items()}
        Z = regression.random and Formula(regression.random).get_model_matrix(table, na_action="raise")
        return cls(
            y,
            levels,
            pd.DataFrame(X),
            design,
            getattr(sm.families, family)(),
            regression.quantile,
            None if own["weights"] is None else own["weights"].to_numpy(dtype=np.float64),
            None if own["cluster"] is None else pd.factorize(own["cluster"])[0],
            None if own["event"] is None else _numbers(own["event"])[0],
            None if Z is None else pd.DataFrame(Z),
        )

    @property
    def df(self) -> float:
        """Number of rows minus that of coefficients."""
        return float(len(self.X) - self.X.shape[1])

    @property
    def robust(self) -> dict[str, Any]:
        """Options of standard errors: robust to clusters, or, with weights, to unequal variances."""
        if self.groups is not None:
            return {"cov_type": "cluster", "cov_kwds": {"groups": self.groups}}
        return {} if self.weights is None else {"cov_type": "HC1"}

    @property
    def df_robust(self) -> float:
        """Number of clusters minus one, or without clusters that of `df`."""
        return self.df if self.groups is None else float(len(np.unique(self.groups)) - 1)


def _numbers(column: pd.Series[Any]) -> tuple[NDArray[Any], list[Any]]:
    """Return a column as numbers, of levels their positions, and the levels."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy(dtype=np.float64), list(column.cat.categories)
    if not pd.api.types.is_numeric_dtype(column):
        codes, levels = pd.factorize(column, sort=True)
        return codes.astype(np.float64), list(levels)
    return column.to_numpy(dtype=np.float64), []


def _ols(data: _Data) -> tuple[Any, float]:
    import statsmodels.api as sm

    weights = 1.0 if data.weights is None else data.weights
    return sm.WLS(data.y, data.X, weights=weights).fit(**data.robust), data.df_robust


def _glm(data: _Data) -> tuple[Any, float]:
    import statsmodels.api as sm

    model = sm.GLM(data.y, data.X, family=data.family, var_weights=data.weights)
    return model.fit(tol=1e-12, maxiter=200, **data.robust), data.df_robust


def _gee(data: _Data) -> tuple[Any, float]:
    import statsmodels.api as sm

    structure = sm.cov_struct.Exchangeable()
    model = sm.GEE(data.y, data.X, groups=data.groups, family=data.family, cov_struct=structure)
    return model.fit(ctol=1e-10, maxiter=200), data.df_robust


def _mixed(data: _Data) -> tuple[Any, float]:
    import statsmodels.api as sm

    # Without gradients, which fail where the variance of effects is near zero.
    model = sm.MixedLM(data.y, data.X, groups=data.groups, exog_re=data.Z)
    result = model.fit(method="powell", ftol=1e-13)
    # Variances of effects and of the residuals are parameters as well.
    return result, len(data.X) - len(result.params) - 1.0


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


def _ordered(data: _Data) -> tuple[Any, float]:
    from statsmodels.miscmodels.ordinal_model import OrderedModel

    if len(data.levels) < 2:
        raise ValueError("model='ordered' needs an outcome with ordered levels, of a categorical dtype")
    result = OrderedModel(data.y, data.X, distr="logit").fit(method="bfgs", disp=False, gtol=1e-8)
    return result, float(len(data.X) - len(result.params))


def _quantile(data: _Data) -> tuple[Any, float]:
    import statsmodels.api as sm

    return sm.QuantReg(data.y, data.X).fit(q=data.quantile), data.df


def _phreg(data: _Data) -> tuple[Any, float]:
    import statsmodels.api as sm

    assert data.event is not None
    result = sm.PHReg(data.y, data.X, status=data.event, ties="efron").fit()
    return result, float(data.event.sum() - data.X.shape[1])


_FITS: dict[str, Callable[[_Data], tuple[Any, float]]] = {
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


def _of_predictor(model: Model, link: Any) -> tuple[Function, Function]:
    """Return the expected outcome as a function of the linear predictor, and its derivative."""
    if link is not None:
        return link.inverse, link.inverse_deriv
    if model == "phreg":
        return np.exp, np.exp
    if model == "ordered":
        return special.expit, lambda eta: special.expit(eta) * special.expit(-eta)
    return lambda eta: eta, np.ones_like
