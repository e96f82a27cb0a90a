"""Leave-one-out densities agree with refitting, and are refused where importance weights are unreliable."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from pyro_mgp import Imputations, MGPImputer, leave_one_out
from pyro_mgp._support.messages import FitWarning
from pyro_mgp.results import arviz_export


def table(n_rows: int = 60) -> pd.DataFrame:
    """Return y = 3x + noise of sd 2, with a fifth of its cells missing."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=n_rows)
    y = 3 * x + 2 * generator.normal(size=n_rows)
    return pd.DataFrame({"x": x, "y": np.where(generator.random(n_rows) < 0.2, np.nan, y)})


def imputer() -> MGPImputer:
    settings = {"n_neighbors": 0, "discrete_support": 0, "warp": False, "max_steps": 20, "n_inducing": 20}
    return MGPImputer(order=["y"], random_state=0, progress=False, **settings)


@pytest.fixture(scope="module")
def draws() -> Imputations:
    return imputer().fit(table()).impute(m=400)


def test_densities_agree_with_those_of_cells_left_out(draws: Imputations) -> None:
    found = leave_one_out(draws).set_index("column").loc["y"]
    frame = table()
    known = np.flatnonzero(frame["y"].notna())
    x, y = frame["x"].to_numpy()[known], frame["y"].to_numpy()[known]
    # Linear regression by least squares, each cell left out: its density is Student's t.
    densities = []
    for i in range(len(known)):
        X, rest = np.column_stack([np.ones(len(x) - 1), np.delete(x, i)]), np.delete(y, i)
        beta, (total,), *_ = np.linalg.lstsq(X, rest)
        df, at = len(rest) - 2, np.array([1, x[i]])
        spread = (total / df * (1 + at @ np.linalg.solve(X.T @ X, at))) ** 0.5
        densities.append(student.logpdf(y[i], df, at @ beta, spread))
    assert found["cells"] == len(known) and found["unreliable"] == 0
    assert found["elpd"] == pytest.approx(np.sum(densities), abs=1.5)
    assert found["se"] == pytest.approx(np.std(densities) * len(known) ** 0.5, rel=0.1)


def test_they_are_refused_for_an_influential_cell() -> None:
    frame = table()
    frame.loc[len(frame)] = [8.0, -40.0]  # a point of high leverage, far from the line
    outlier = imputer().fit(frame).impute(m=1000)
    said = r"Pareto k is up to .* in columns \['y'\].* calibrate\(imputer, frame, folds=5"
    with pytest.warns(FitWarning, match=said):
        found = leave_one_out(outlier)
    assert found["unreliable"].item() >= 1 and found["pareto_k"].item() > 0.62
    assert found[["elpd", "se"]].isna().all(axis=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        others = leave_one_out(outlier, rows=(frame["x"].abs() < 1).to_numpy())
    assert others["elpd"].notna().all()


@pytest.mark.parametrize("m", [1, 5, 20])
def test_few_draws_are_refused(m: int) -> None:
    with pytest.warns(FitWarning, match="Draw more imputations"):
        found = leave_one_out(imputer().fit(table()).impute(m=m))
    assert found["elpd"].isna().all() and found["unreliable"].equals(found["cells"])


def test_a_density_that_is_the_same_in_all_draws_is_refused(
    draws: Imputations, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = draws.to_arviz()
    tree["log_likelihood"]["y"][:, :, 3] = 0.0
    monkeypatch.setattr(arviz_export, "to_arviz", lambda *given, **options: tree)
    with pytest.warns(FitWarning, match=r"Pareto k is up to inf"):
        assert leave_one_out(draws)["elpd"].isna().all()


def test_imputations_without_their_imputer_have_no_densities(draws: Imputations) -> None:
    with pytest.raises(ValueError, match="pass what impute returned"):
        leave_one_out([draws, copy.copy(draws)])
