"""Rows in groups: pupils in schools, and visits of patients.

    groups        50 schools of 10 pupils: y = .5 x + .5 w + u + e with w of the school, x, w ~ N(0, 1) and
                  an intraclass correlation of .3 given these; of each row x or y may be missing, more
                  probably with a large y or x and w
    groups_both   the same with an intraclass correlation of .2 of x, and w missing in a fifth of the schools
    visits        100 patients in two arms, five visits at times of their own: y = .3 t + .3 arm + .5 t arm +
                  u₀ + u₁ t + e; patients with a large y drop out, from the next visit on

Estimands are the coefficients of a linear mixed model by restricted maximum likelihood, and for schools the
logit of the intraclass correlation. The method `observed` analyses the visits that took place: such a mixed
model needs no imputation, and its intervals are those of an exact imputation with infinite m.
"""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
from scipy import optimize

from benchmarks.coverage import r_mice
from benchmarks.coverage.design import Analysis, Design, Numbers, Table, missing_at_random

_SCHOOLS, _PUPILS, _PATIENTS, _VISITS, _M = 50, 10, 100, 5, 20
_SLOPE, _CORRELATION, _RATE = 0.5, 0.3, 0.6
_GROWTH = {"intercept": 0.0, "t": 0.3, "arm": 0.3, "t:arm": 0.5}
# Standard deviations of intercepts, slopes and residuals of patients, and the intercept of dropout.
_INTERCEPTS, _SLOPES, _RESIDUALS, _DROPOUT = 1.0, 0.5, 0.7, -2.0

_PAN = """
suppressPackageStartupMessages(library(mice))
given <- commandArgs(trailingOnly = TRUE)
table <- read.csv(file.path(given[1], "table.csv"))
labels <- table$school
table$school <- as.integer(factor(labels))
predictors <- make.predictorMatrix(table)
predictors[, "school"] <- -2
diag(predictors) <- 0
methods <- make.method(table)
methods[methods != ""] <- "2l.pan"
if ("w" %in% names(which(methods != ""))) methods["w"] <- "2lonly.norm"
imputed <- mice(table, m = as.integer(given[2]), method = methods, predictorMatrix = predictors,
                maxit = 10, seed = as.integer(given[3]), print = FALSE)
completed <- complete(imputed, "long")
completed$school <- rep(labels, as.integer(given[2]))
write.csv(completed, file.path(given[1], "completed.csv"), row.names = FALSE)
"""


def draw_schools(g: np.random.Generator, both: bool = False) -> Table:
    """Draw a table of pupils; with `both`, x varies between schools, and w is missing in some."""
    school = np.repeat(np.arange(_SCHOOLS), _PUPILS)

    def correlated(share: float) -> Numbers:
        of_school, own = g.normal(size=_SCHOOLS)[school], g.normal(size=len(school))
        return np.asarray(np.sqrt(share) * of_school + np.sqrt(1 - share) * own)

    w, x = g.normal(size=_SCHOOLS)[school], correlated(0.2 if both else 0.0)
    y = _SLOPE * x + _SLOPE * w + correlated(_CORRELATION)
    complete = pd.DataFrame({"school": [f"s{k:02}" for k in school], "w": w, "x": x, "y": y})
    is_first = g.random(len(school)) < 0.5
    frame = complete.copy()
    for name, rows, cause in (("x", is_first, y), ("y", ~is_first, x)):
        missing = missing_at_random(g, 0.6 * cause + 0.3 * w, _RATE)
        frame.loc[rows & missing, name] = np.nan
    if both:
        lost = g.permutation(_SCHOOLS)[: _SCHOOLS // 5]
        frame.loc[np.isin(school, lost), "w"] = np.nan
    return Table(frame, complete)


def draw_visits(g: np.random.Generator) -> Table:
    """Draw a table of visits, in long format."""
    patient = np.repeat(np.arange(_PATIENTS), _VISITS)
    arm = (g.permutation(_PATIENTS) % 2)[patient].astype(np.float64)
    visit = np.tile(np.arange(_VISITS), _PATIENTS)
    t = (visit + g.uniform(0, 0.8, len(patient))) / 2
    of_patient = g.normal(size=(2, _PATIENTS))[:, patient]
    X = np.column_stack([np.ones(len(t)), t, arm, t * arm])
    y = X @ list(_GROWTH.values()) + _INTERCEPTS * of_patient[0] + _SLOPES * of_patient[1] * t
    y += _RESIDUALS * g.normal(size=len(t))
    complete = pd.DataFrame({"patient": patient + 1, "t": t, "arm": arm, "y": y})
    gone = np.zeros(_PATIENTS, dtype=bool)
    frame, by_visit = complete.copy(), y.reshape(_PATIENTS, _VISITS)
    for k in range(1, _VISITS):
        gone |= g.random(_PATIENTS) < 1 / (1 + np.exp(-(_DROPOUT + 0.6 * by_visit[:, k - 1])))
        frame.loc[np.isin(patient, np.flatnonzero(gone)) & (visit == k), "y"] = np.nan
    return Table(frame, complete)


def _restricted(
    frame: pd.DataFrame, group: str, X: Numbers, Z: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Fit a mixed model of y by restricted maximum likelihood.

    Takes regressors `[n, P]` and those with random effects `[n, q]`. Returns coefficients, their variances,
    the parameters of the random effects' covariance relative to the residual variance (a log Cholesky
    factor), and the variances of these parameters.
    """
    y, groups = frame["y"].to_numpy(), pd.factorize(frame[group])[0]
    n_groups, (n, P), q = groups.max() + 1, X.shape, Z.shape[1]
    data = np.column_stack([X, y])
    cross, own = np.zeros((n_groups, q, P + 1)), np.zeros((n_groups, q, q))
    np.add.at(cross, groups, Z[:, :, None] * data[:, None, :])
    np.add.at(own, groups, Z[:, :, None] * Z[:, None, :])
    total, lower = data.T @ data, np.tril_indices(q)

    def fit(parameters: Numbers) -> tuple[float, Numbers, Numbers]:
        L = np.zeros((q, q))
        L[lower] = parameters
        L[np.diag_indices(q)] = np.exp(L.diagonal())
        # V = I + Z L Lᵀ Zᵀ, by the Woodbury identity.
        inner = np.eye(q) + L.T @ own @ L
        whitened = L.T @ cross
        S = total - (whitened.transpose(0, 2, 1) @ np.linalg.solve(inner, whitened)).sum(0)
        inverse = np.linalg.inv(S[:P, :P])
        beta = inverse @ S[:P, P]
        noise = (S[P, P] - S[P, :P] @ beta) / (n - P)
        determinants = np.linalg.slogdet(inner)[1].sum() + np.linalg.slogdet(S[:P, :P])[1]
        return -0.5 * ((n - P) * np.log(noise) + determinants), beta, noise * np.diag(inverse)

    start = np.zeros(len(lower[0]))
    bounds = [(-6.0, 4.0) if i == j else (-50.0, 50.0) for i, j in zip(*lower, strict=True)]
    found = optimize.minimize(lambda p: -fit(p)[0], start, method="L-BFGS-B", bounds=bounds)
    step = 0.05
    curvature = [
        (2 * fit(found.x)[0] - fit(found.x + step * unit)[0] - fit(found.x - step * unit)[0]) / step**2
        for unit in np.eye(len(found.x))
    ]
    _, beta, variances = fit(found.x)
    return beta, variances, found.x, 1 / np.maximum(curvature, 1e-3)


def analyse_schools(frame: pd.DataFrame) -> Analysis:
    """Estimate the coefficients of x and w, and the logit of the intraclass correlation."""
    ones = np.ones((len(frame), 1))
    X = np.column_stack([ones, frame[["x", "w"]]])
    beta, variances, (log_ratio,), (variance,) = _restricted(frame, "school", X, ones)
    # The logarithm of the ratio of variances, twice that of the standard deviations.
    estimates = np.append(beta[1:], 2 * log_ratio)
    return Analysis(["x", "w", "logit_icc"], estimates, np.append(variances[1:], 4 * variance))


def analyse_visits(frame: pd.DataFrame) -> Analysis:
    """Estimate the coefficients of linear growth in two arms, with a random intercept and slope."""
    rows = frame.dropna(subset="y")
    ones, t, arm = np.ones(len(rows)), rows["t"].to_numpy(), rows["arm"].to_numpy()
    X, Z = np.column_stack([ones, t, arm, t * arm]), np.column_stack([ones, t])
    beta, variances, *_ = _restricted(rows, "patient", X, Z)
    return Analysis(list(_GROWTH), beta, variances)


def pan(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Impute by mice with multilevel models, 2l.pan, and 2lonly.norm for columns of schools."""
    return r_mice.run_script(_PAN, frame, m, str(seed + 1))


def observed(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Return the table m times without imputation."""
    return [frame] * m


_SCHOOL = {"x": _SLOPE, "w": _SLOPE, "logit_icc": float(np.log(_CORRELATION / (1 - _CORRELATION)))}


DESIGNS: dict[str, Design] = {
    "groups": Design(draw_schools, analyse_schools, _M, _SCHOOL, options={"groups": "school"}),
    "groups_both": Design(
        functools.partial(draw_schools, both=True), analyse_schools, _M, _SCHOOL, options={"groups": "school"}
    ),
    "visits": Design(draw_visits, analyse_visits, _M, _GROWTH, options={"subject": "patient", "time": "t"}),
}
"""The designs by name."""
