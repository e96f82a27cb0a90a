"""Scores of draws against true values, and ranks of true values for tests of calibration.

Scores called fair do not depend on the number of draws in expectation (Ferro 2014, *Fair scores for ensemble
forecasts*). Calibration is tested by ranks: if the true value is exchangeable with the draws, its rank among
them is uniform. Draws of numbers are `[m, cells]`, and true values `[cells]`. Draws of levels are given by
`counts`, the numbers of draws of each level, `[cells, levels]`, true levels by their positions, `[cells]`.
Scores are `[cells]`, as are the draws `uniform` from (0, 1), which break ties.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

Floats = NDArray[np.float64]


def fair_crps(draws: Floats, truth: Floats) -> Floats:
    """Return the continuous ranked probability score of each cell, unbiased in the number of draws.

    It is mean|x - y| - Σ_{j<k} |x_j - x_k| / (m (m - 1)), for m of at least 2; m² would favour many draws.
    """
    m = len(draws)
    return np.asarray(np.abs(draws - truth).mean(0) - _differences(draws) / (m * (m - 1)))


def crps(draws: Floats, truth: Floats) -> Floats:
    """Return the continuous ranked probability score of the empirical distribution of each cell's draws."""
    return np.asarray(np.abs(draws - truth).mean(0) - _differences(draws) / len(draws) ** 2)


def _differences(draws: Floats) -> Floats:
    """Return the sum of the absolute differences of all pairs of a cell's draws, `[cells]`."""
    m = len(draws)
    # In ascending order, x_(j) is the larger one in j - 1 pairs and the smaller one in m - j.
    return np.asarray((2 * np.arange(m) - m + 1) @ np.sort(draws, axis=0))


def energy_of_levels(counts: NDArray[np.int64], truth: NDArray[np.intp]) -> Floats:
    """Return the energy score of each cell's draws as indicators of levels, which differ by √2.

    With shares p_k of the draws it is √2 (1 - p_y) - ½ √2 (1 - Σ p_k²).
    """
    shares = counts / counts.sum(1, keepdims=True)
    missed = 1 - shares[np.arange(len(truth)), truth]
    return np.asarray(np.sqrt(2) * (missed - (1 - (shares**2).sum(1)) / 2))


def central_interval(draws: Floats, level: float) -> tuple[Floats, Floats] | None:
    """Return bounds `[cells]` that contain a new draw with probability `level`, None for too few draws.

    Weibull's quantiles are exact for any number of draws; NumPy's contain 93 % at 100 draws and level 0.95.
    """
    if level > (len(draws) - 1) / (len(draws) + 1):
        return None
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
    return low, high


def pit(draws: Floats, truth: Floats, uniform: Floats) -> Floats:
    """Return the probability integral transform of each cell, `[cells]`: its rank among its draws.

    (#{x_j < y} + V (#{x_j = y} + 1)) / (m + 1) with V `uniform` is itself uniform on (0, 1) if the truth y is
    exchangeable with the draws x_1 ... x_m, for any m and with any ties (randomised as in Czado, Gneiting and
    Held 2009, *Predictive model assessment for count data*).
    """
    below, equal = (draws < truth).sum(0), (draws == truth).sum(0)
    return np.asarray((below + uniform * (equal + 1)) / (len(draws) + 1))


def log_density(draws: Floats, truth: Floats, mean: float, sd: float, step: float) -> Floats:
    """Estimate the log density of true cells from draws, per standard deviation of a column, `[cells]`.

    The density is a mixture of a Gaussian kernel on each draw (Silverman 1986, *Density Estimation*, section
    3.4.2: width 0.9 min(sd, IQR/1.34) m^(-1/5), at least half the smallest difference `step` of two values of
    the column) and the normal distribution of the whole column, `mean` and `sd`. This has the weight of one
    more draw and bounds the score of a cell far from all draws. The score compares imputers; kernels smooth,
    so it is not an unbiased estimate of a model's log density.
    """
    m = len(draws)
    low, high = np.quantile(draws, [0.25, 0.75], axis=0)
    spread, middle = draws.std(0, ddof=1) if m > 1 else np.zeros(len(truth)), (high - low) / 1.34
    spread = np.where(middle > 0, np.minimum(spread, middle), spread)
    width = np.maximum(0.9 * spread * m**-0.2, step / 2)
    kernels = stats.norm.logpdf(truth, draws, width)
    whole = stats.norm.logpdf(truth, mean, sd)[None]
    return np.asarray(logsumexp(np.concatenate([kernels, whole]), axis=0) - np.log(m + 1) + np.log(sd))


def counts_of(draws: NDArray[Any], levels: NDArray[Any]) -> NDArray[np.int64]:
    """Count the draws `[m, cells]` of each level, `[cells, levels]`."""
    return np.stack([(draws == level).sum(0) for level in levels], axis=1).astype(np.int64)


def fair_brier(counts: NDArray[np.int64], truth: NDArray[np.intp]) -> Floats:
    """Return the Brier score of each cell, Σ_k (p_k - 1[y = k])², unbiased in the number of draws.

    The variance p (1 - p) / (m - 1) of the shares p of m draws is subtracted.
    """
    m = counts.sum(1, keepdims=True)
    shares = counts / m
    hits = np.arange(counts.shape[1]) == truth[:, None]
    return np.asarray(((shares - hits) ** 2 - shares * (1 - shares) / (m - 1)).sum(1))


def rank_of_level(counts: NDArray[np.int64], truth: NDArray[np.intp], uniform: Floats) -> Floats:
    """Return the probability of the smallest set of levels that contains the true one, `[cells]`.

    Levels are in descending order of their frequency among draws and truth together. As with `pit`, the rank
    of the truth in that order, randomised among ties, is uniform on (0, 1) if it is exchangeable with the
    draws: randomised sets of probability p then contain the truth with exactly that probability.
    """
    cells = np.arange(len(truth))
    pooled = counts.copy()
    pooled[cells, truth] += 1
    own = pooled[cells, truth][:, None]
    # Equally frequent levels keep their order.
    earlier = np.arange(counts.shape[1]) < truth[:, None]
    before = (counts * ((pooled > own) | ((pooled == own) & earlier))).sum(1)
    return np.asarray((before + uniform * own[:, 0]) / (counts.sum(1) + 1))


def smallest_set(counts: NDArray[np.int64], level: float) -> NDArray[np.bool_]:
    """Return a mask of the most frequent levels that together have at least the share `level`."""
    order = np.argsort(-counts, axis=1, kind="stable")
    cumulative = np.take_along_axis(counts, order, axis=1).cumsum(1)
    # A level belongs to the set if the more frequent ones do not suffice.
    before = np.pad(cumulative, ((0, 0), (1, 0)))[:, :-1]
    needed = (before < level * counts.sum(1, keepdims=True) - 1e-9) | (before == 0)
    inside = np.zeros_like(needed)
    np.put_along_axis(inside, order, needed, axis=1)
    return inside
