"""Refinement: leave-one-out residuals, held-out cells, and the choice of hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import MGPImputer
from pyro_mgp.inference.closed_form_rows import site_parameters
from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.kernels import linear_matern32
from pyro_mgp.model.likelihoods import Ordinal, Truncated
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling import neighbours, refinement
from pyro_mgp.sampling.discrete_support import DiscreteSupport
from pyro_mgp.sampling.local_gp import MAX_INPUTS, LocalGPParams, LocalLink
from pyro_mgp.sampling.local_gp_metric import LeaveOneOut, crps
from pyro_mgp.sampling.refinement import (
    _N_SCORED,
    _N_WORST,
    _candidates,
    _Fit,
    _scores,
    _spread,
    _without_cells,
    refine,
)
from pyro_mgp.sampling.sampler import Sampler
from pyro_mgp.settings import STEPS, STEPS_WITH_NEIGHBOURS
from tests.encoded_rows import encoded


def wave(n_rows: int) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.uniform(-2, 2, n_rows)
    return pd.DataFrame({"x": x, "y": np.sin(2 * x) + 0.2 * generator.normal(size=n_rows)})


def subjects(n: int = 80, visits: int = 5) -> tuple[pd.DataFrame, np.ndarray]:
    """Return visits with two numbers of the subject, a boolean that only they tell, and one of the visit."""
    generator = np.random.default_rng(0)
    who, numbers = np.repeat(np.arange(n), visits), generator.normal(size=(n, 2))
    truth = (generator.random(n) < 0.5)[who]
    y = truth + generator.normal(size=len(who))
    frame = pd.DataFrame({"a": numbers[who, 0], "b": numbers[who, 1], "y": y, "arm": pd.array(truth)})
    frame.loc[generator.random(len(frame)) < 0.25, "arm"] = pd.NA
    frame.loc[generator.random(len(frame)) < 0.1, "y"] = np.nan
    return frame, truth


def error_of_levels(imputer: MGPImputer, frame: pd.DataFrame, truth: np.ndarray) -> float:
    """Return the mean squared error of the imputed probabilities of a boolean column."""
    here, draws = frame["arm"].isna().to_numpy(), imputer.fit(frame).impute(m=40).values["arm"]
    return float(((draws.astype(float).mean(0) - truth[here]) ** 2).mean())


def test_levels_are_learnt_from_other_rows_of_the_same_subject() -> None:
    frame, truth = subjects()
    given = {"inputs": "others", "random_state": 0, "progress": False}
    with_neighbours = error_of_levels(MGPImputer(**given), frame, truth)
    without = error_of_levels(MGPImputer(n_neighbors=0, **given), frame, truth)
    assert without > 0.15 and with_neighbours < 0.3 * without


def test_levels_that_depend_smoothly_on_others_stay_as_they_are() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 2))
    chance = 1 / (1 + np.exp(-x.sum(1)))
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(arm=pd.array(generator.random(400) < chance))
    frame.loc[generator.random(400) < 0.25, "arm"] = pd.NA
    given = {"inputs": "others", "random_state": 0, "progress": False}
    with_neighbours = error_of_levels(MGPImputer(**given), frame, chance)
    without = error_of_levels(MGPImputer(n_neighbors=0, **given), frame, chance)
    assert with_neighbours < without + 0.01


def test_a_shift_moves_levels_that_have_a_local_gp(tmp_path: Path) -> None:
    frame, _ = subjects()
    imputer = MGPImputer(inputs="others", random_state=0, progress=False).fit(frame)
    boolean = imputer.order_.index("arm")
    assert imputer.discrete_support_[boolean] is not None
    plain, moved = (imputer.impute(m=10, delta={"arm": shift}).values["arm"].mean() for shift in (0.0, 3.0))
    assert moved > plain + 0.05
    imputer.save(tmp_path / "saved")
    loaded = MGPImputer.load(tmp_path / "saved")
    first, again = (each.impute(frame, m=3).values["arm"] for each in (imputer, loaded))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("most", [1, 2])
def test_categories_of_many_levels_have_no_local_gps(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frame, truth = subjects(40)
    frame["kind"] = np.where(truth, "a", np.where(frame["a"] > 0, "b", "c"))
    frame.loc[::6, "kind"] = None
    monkeypatch.setattr(refinement, "_MOST_LINKS", most)
    found = MGPImputer(inputs="others", random_state=0, progress=False).fit(frame)
    assert found.neighbours_ is not None
    of_names = dict(zip(found.order_, found.neighbours_.links, strict=True))
    own = [links for name, links in of_names.items() if str(name).startswith("kind=")]
    assert len(own) == 2 and any(own) == (most == 2)


def test_a_cell_is_divided_out_of_q() -> None:
    """The site of a probit observation, at its fixed point, leaves the distribution before it."""
    likelihood = Ordinal(torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.4, 0.6]).double())
    link = Link(linear_matern32(1), torch.zeros(1, 1).double(), 0, [1], likelihood)
    values, mean, variance = torch.tensor([[-1.0, 1.0, 1.0], [0.3, 0.0, -1.0], [0.5, 1.0, 2.0]]).double()
    known = torch.tensor([0.0, 0.2, 0.0]).double()  # variance that the cell does not change
    m, own = mean.clone(), variance.clone()
    for _ in range(200):
        natural, precision, _ = site_parameters(link, values, m, own + known, None)
        own = 1 / (1 / variance + precision)
        m = own * (mean / variance + natural)
    found = _without_cells(link, values, Moments(m, own + known), Moments(m, known))
    torch.testing.assert_close(found.mean.detach(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.variance.detach(), variance + known, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("contaminated", [False, True])
def test_the_inflation_is_the_ratio_of_spreads(contaminated: bool) -> None:
    outlying = contaminated & (torch.rand(4000) < 0.1)
    errors = 1.7 * (torch.randn(4000) * torch.where(outlying, 4.0, 1.0)).double()
    found = _spread(torch.zeros(8, 4000).double(), torch.ones(8, 4000).double(), errors)
    assert found["inflation"] == pytest.approx(1.7, rel=0.06)
    assert found["contaminated"] == contaminated


def test_cells_near_a_bound_are_spread_as_they_are_drawn() -> None:
    bounded, mean = Truncated(0.0), torch.full((4, 3000), 0.7).double()
    values = bounded.draw(mean[0], torch.ones(3000).double(), torch.rand(3000).double())
    given = mean, torch.ones_like(mean), values
    assert _spread(*given, bounded)["inflation"] == pytest.approx(1.0, abs=0.11)
    # A normal distribution beyond the bound would be too wide.
    assert _spread(*given)["inflation"] < 0.9


def test_nothing_changes_without_cells() -> None:
    nothing = torch.zeros(8, 0).double()
    assert _spread(nothing, nothing, nothing[0]) == {}


def test_paths_that_differ_need_no_inflation() -> None:
    """Narrow components at ±1 cover cells at ±1, for which a single Gaussian would need an inflation."""
    mean = torch.tensor([[1.0], [-1.0]]).double().expand(2, 500)
    values = torch.where(torch.rand(500) < 0.5, 1.0, -1.0).double() + 0.01 * torch.randn(500).double()
    found = _spread(mean, torch.full((2, 500), 1e-4).double(), values)
    assert found["inflation"] == pytest.approx(1.0, rel=0.11) and not found["contaminated"]


def test_candidates_scored_together_equal_those_scored_alone() -> None:
    rows, values = torch.randn(9, 3).double(), 3 * torch.randn(9).double()
    references, residuals = torch.randn(60, 3).double(), torch.randn(60).double()
    residuals[:5] = 50.0
    params = LocalGPParams((0.4, 1.0), 0.3, 3.0, 0.2)
    local = LocalLink.of(torch.tensor([0, 2]), references, residuals, 7, params)
    variance = torch.rand(9).double()
    left = LeaveOneOut(torch.full((9,), -1), rows, values, variance, variance)
    neighbourhood = local.gather(local.nearest(rows))
    candidates = _candidates(local, left, neighbourhood)
    scores = _scores(local, candidates, left, neighbourhood)
    assert (
        len({(c.cut, c.freedom, c.scale) for c in candidates}) == len(candidates) == len(scores.unique(dim=0))
    )
    for candidate, found in zip(candidates, scores, strict=True):
        at = dataclasses.replace(local, params=candidate).posterior(rows).moments(rows[None])
        score, *_ = crps(values, at.mean[0], at.variance[0] + left.variance)
        torch.testing.assert_close(found, score)


def conditional(frame: pd.DataFrame) -> MGPImputer:
    """Fit links that see all other columns, without local GPs."""
    imputer = MGPImputer(inputs="others", columns="all", n_neighbors=0, random_state=0, progress=False)
    return imputer.fit(frame)


def small_fit(frame: pd.DataFrame) -> _Fit:
    """Return the initial state of the refinement of a fitted imputer."""
    imputer = MGPImputer(random_state=0, n_neighbors=0, inputs="others", columns="all", progress=False).fit(
        frame
    )
    rows = encoded(imputer, frame)
    with torch.no_grad(), local_parameters():
        model = dataclasses.replace(imputer.model_, training=None)
        return _Fit(model, rows, 24, [None] * len(model.link_specs))


def test_leave_one_out_residuals_equal_those_of_refitted_links() -> None:
    fit = small_fit(wave(80))
    link, rows = fit.chain.links[0], fit.rows.values
    with torch.no_grad(), local_parameters():
        # Optimal q(u) for these rows, and for all but one of them.
        noise, X, y = link.likelihood.noise, rows[:, link.inputs], rows[:, link.column]
        L = torch.linalg.cholesky(link.kernel(link.Xu) + 1e-6 * torch.eye(link.n_inducing).to(rows))
        basis = torch.linalg.solve_triangular(L, link.kernel(link.Xu, X), upper=False)

        def posterior(which: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            phi = basis[:, which]
            S = torch.linalg.inv(torch.eye(len(phi)).to(phi) + phi @ phi.T / noise)
            return S @ phi @ y[which] / noise, S

        link.u_loc, S = posterior(torch.arange(80, device=rows.device))
        link.u_scale_tril = torch.linalg.cholesky(S)
        fit = _Fit(fit.model, fit.rows, 24, fit.values)
        left = fit.leave_one_out(0, torch.arange(80, device=rows.device)).residuals
        for i in range(0, 80, 13):
            loc, _ = posterior(torch.tensor([j for j in range(80) if j != i], device=rows.device))
            torch.testing.assert_close(left[i], y[i] - basis[:, i] @ loc, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n_observed", [40, 700, 5000])
def test_scoring_cells_are_weighted_and_include_the_worst(n_observed: int) -> None:
    fit = small_fit(wave(80))
    residuals = torch.randn(n_observed).to(fit.point)
    rows = torch.randn(n_observed, 2).to(fit.point)
    local = LocalLink.of(torch.tensor([0]), rows, residuals, 7, LocalGPParams((0.4,), 0.3, 3.0, 0.2))
    numbers, weights = fit._scoring_cells(local)
    assert float(weights.sum()) == pytest.approx(n_observed)
    assert len(numbers) == len(numbers.unique()) == len(weights) == min(n_observed, _N_SCORED + _N_WORST)
    worst = residuals.abs().topk(min(n_observed, _N_WORST)).indices
    assert set(worst.tolist()) <= set(numbers.tolist())
    assert (weights[torch.isin(numbers, worst)] == 1).all()


def test_query_rows_hold_levels_of_booleans() -> None:
    g = np.random.default_rng(0)
    frame = pd.DataFrame({"x": g.uniform(-2, 2, 300), "z": g.normal(size=300)})
    frame["flag"] = pd.array(np.sin(5 * frame["x"]) > 0, dtype="boolean")
    fit = small_fit(frame.mask(g.random(frame.shape) < 0.2).dropna(how="all"))
    (link,) = (link for link in fit.chain.links if isinstance(link.likelihood, Ordinal))
    with torch.no_grad(), local_parameters():
        assert fit.find_neighbours() is not None
    cells = fit.drawn[~fit.rows.observed[:, link.column], link.column]
    assert len(cells) > 30
    assert torch.isin(cells, link.likelihood.values).all()


@pytest.mark.parametrize(("small", "expected"), [(400, 1), (399, 4)])
def test_larger_tables_have_several_metrics(
    small: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refinement, "_SMALL", small)
    values = np.random.default_rng(0).normal(size=(400, 3)) @ [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    fit = small_fit(pd.DataFrame(values, columns=["a", "b", "c"]))
    with torch.no_grad(), local_parameters():
        guesses = fit.neighbours([fit.initial_params(i) for i in range(len(fit.chain.links))])
        learnt = fit.neighbours(fit.learn_metrics(guesses.links, guesses.params, fit.n_metrics))
        params = learnt.params[0]
        monkeypatch.setattr(refinement, "_CLEARLY", -math.inf)
        cells = functools.partial(fit.leave_one_out, 0)
        chosen = [local.params for local in fit.choose(learnt.links[0], cells)]
    assert len(params) == len({each.lengthscales for each in params}) == expected
    assert [each.lengthscales for each in chosen] == [each.lengthscales for each in params]
    assert len({(each.freedom, each.scale, each.cut) for each in chosen}) == 1
    # Each has its own nugget; the prior has been chosen.
    assert [each.nugget for each in chosen] == [each.nugget for each in params]
    assert chosen[0].scale != params[0].scale


@pytest.mark.parametrize("held_out", [[], [3, 5], [0, 40, 77, 150]])
def test_calibration_sweeps_only_rows_with_held_out_cells(
    held_out: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).normal(size=(400, 3)) @ [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    fit, swept = small_fit(pd.DataFrame(values, columns=["a", "b", "c"])), []
    link = fit.chain.links[0]

    def hold_out(n_rows: int) -> torch.Tensor:
        cells = torch.zeros_like(fit.rows.observed)
        cells[held_out, link.column] = True
        return cells

    def impute(sampler: Sampler, picked: torch.Tensor, cells: torch.Tensor) -> Any:
        swept.append(cells.any(1))
        return impute_held_out(sampler, picked, cells)

    impute_held_out = fit.impute_held_out
    monkeypatch.setattr(fit, "hold_out", hold_out)
    monkeypatch.setattr(fit, "impute_held_out", impute)
    with torch.no_grad(), local_parameters():
        found = fit.neighbours([fit.initial_params(i) for i in range(len(fit.chain.links))])
        inflated = fit.calibrate(found, [None] * len(fit.chain.links))
    assert all(each.all() for each in swept)
    assert len(swept) == bool(held_out)
    assert held_out or inflated.params == found.params


def test_metrics_are_learnt_again_on_cells_that_local_gps_have_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(0)
    kind = generator.integers(40, size=400)
    frame = pd.DataFrame(generator.normal(size=(40, 3))[kind], columns=["a", "b", "c"])
    frame += 0.01 * generator.normal(size=frame.shape)
    fit = small_fit(frame.mask(generator.integers(4, size=(400, 1)) == range(3)))
    truth = fit.model.encoder.codec.encode(frame).values.to(fit.drawn)
    monkeypatch.setattr(fit, "n_metrics", 2)
    learn, errors, asked, starts = refinement.learn_metrics, [], [], []

    def learn_metrics(links: list[LocalLink], priors: Any, *rest: Any) -> Any:
        errors.append(float((fit.drawn - truth)[~fit.rows.observed].square().mean()))
        asked.append(priors)
        starts.append([local.params.lengthscales for local in links])
        return learn(links, priors, *rest)

    monkeypatch.setattr(refinement, "learn_metrics", learn_metrics)
    with torch.no_grad(), local_parameters():
        fit.find_neighbours()
    # The sequential fill, one metric in the first round, two in the second.
    assert errors[3] == errors[2] < errors[1] < 0.7 * errors[0]
    assert starts[0] == starts[1] == asked[0] == asked[1] == asked[2] == asked[3]
    assert starts[1] != starts[2] == starts[3]


def test_redrawn_cells_do_not_depend_on_how_many_rows_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(300, 3)) @ [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    holes = generator.integers(4, size=(300, 1)) == range(3)
    found = []
    for kept in (neighbours._KEPT_AT_ONCE, 40 * 3 * 24 * (24 + 2)):
        monkeypatch.setattr(neighbours, "_KEPT_AT_ONCE", kept)
        fit = small_fit(pd.DataFrame(values, columns=["a", "b", "c"]).mask(holes))
        with torch.no_grad(), local_parameters():
            near = fit.neighbours([fit.initial_params(i) for i in range(3)])
            fit.redraw(near)
        found.append((near.rows_at_once(1), fit.drawn))
    (whole, expected), (part, drawn) = found
    assert part == 40 < whole
    torch.testing.assert_close(drawn, expected)


def test_lengthscales_start_within_reach_where_the_sparse_gp_has_pruned_an_input() -> None:
    fit = small_fit(wave(200))
    matern = fit.chain.links[1].kernel.kern1
    matern.lengthscale = torch.full_like(matern.lengthscale, 400.0)
    with torch.no_grad(), local_parameters():
        ((first,),) = (each.lengthscales for each in fit.initial_params(1))
    assert first == refinement._LONGEST_FIRST < 400 / refinement._FIRST_SHARPNESS


@pytest.mark.parametrize(
    ("n_sweeps", "small", "counted", "paths"),
    [
        (1, 80, 1, 16),
        (2, 80, 2, 8),
        (3, 80, 2, 8),
        (5, 80, 4, 4),
        (9, 80, 4, 4),
        (5, 79, 4, 6),
        (1, 79, 1, 24),
    ],
)
def test_calibration_has_enough_components_for_any_number_of_sweeps(
    n_sweeps: int, small: int, counted: int, paths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refinement, "_SMALL", small)
    fit = small_fit(wave(80))
    fit.chain.n_sweeps = n_sweeps
    with torch.no_grad(), local_parameters():
        fit = _Fit(fit.model, fit.rows, 24, fit.values)
    assert (fit.n_counted, fit.n_paths) == (counted, paths)


def test_inputs_of_a_trend_are_known_where_they_were_observed() -> None:
    """Inputs that were filled given the cell itself tell its value."""
    x = np.random.default_rng(0).normal(size=200)
    frame = pd.DataFrame({"x": x, "y": x + 0.1, "z": x**2})
    frame = frame.mask(np.random.default_rng(1).random(frame.shape) < 0.3).dropna(how="all")
    fit = small_fit(frame)
    link = fit.chain.links[0]
    cells = fit.rows.observed[:, link.column].nonzero()[:, 0]
    masks = torch.tensor([[True, True], [True, False]], device=cells.device)
    known = fit.leave_one_out_of_trend(fit.fill, 0, masks, cells).known
    assert known is not None
    seen = fit.rows.observed[cells][:, link.inputs]
    assert not known.bool()[~seen].any()
    assert known.bool()[:, 0].equal(seen[:, 0])
    assert known.bool()[:, 1].any() and not known.bool()[:, 1].equal(seen[:, 1])


def test_held_out_cells_are_of_linked_columns_and_whole_categories() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"x": generator.normal(size=400), "c": generator.choice(list("abc"), 400)})
    fit = small_fit(frame.assign(y=generator.normal(size=400)))
    held_out = fit.hold_out(400)
    category = list(fit.chain.compounds[0].columns)
    assert (held_out[:, category].all(1) == held_out[:, category].any(1)).all()
    assert 0 < held_out.double().mean() < 0.15
    fit.chain.links, fit.chain.compounds = fit.chain.links[:1], ()
    assert set(fit.hold_out(400).any(0).nonzero()[:, 0].tolist()) == {fit.chain.links[0].column}


def test_overconfident_discrete_predictions_are_inflated() -> None:
    """Cells are drawn given N(m, 1), but predicted by N(m, 1/4)."""
    few = DiscreteSupport(torch.arange(-3.0, 4.0).double(), torch.zeros(7).double(), torch.ones(7) / 7, 1.0)
    mean = torch.randn(1, 3000).double().expand(4, -1)
    values = few.draw(mean[0], torch.ones(3000).double(), torch.rand(3000).double())
    found = _spread(mean, torch.full_like(mean, 0.25), values, few)
    assert found["inflation"] == pytest.approx(2.0, rel=0.1) and not found["contaminated"]


def test_refine_without_neighbours_and_values_returns_nothing() -> None:
    fit = small_fit(wave(80))
    refined = refine(fit.model, fit.rows, 0, [None, None])
    assert (refined.neighbours, refined.discrete_support) == (None, [None, None])


@pytest.mark.parametrize(("n_inputs", "has_one"), [(MAX_INPUTS, True), (MAX_INPUTS + 1, False)])
def test_only_links_with_few_inputs_have_local_gps(
    n_inputs: int, has_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refinement, "_CLEARLY", -math.inf)
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(400, n_inputs + 1)))
    frame.iloc[:80, 0] = None
    imputer = MGPImputer(random_state=0, inputs="others", max_steps=1, progress=False).fit(frame)
    assert (imputer.neighbours_ is not None) == has_one
    steps = MGPImputer(random_state=0, inputs="others", progress=False).fit(frame).settings_.max_steps
    assert steps.value == (STEPS_WITH_NEIGHBOURS if has_one else STEPS)


def test_discrete_support_is_fitted_without_neighbours() -> None:
    frame = wave(300)
    frame["y"] = (2 * frame["y"]).round()
    imputer = MGPImputer(random_state=0, n_neighbors=0, inputs="others", columns="all", progress=False).fit(
        frame
    )
    assert imputer.neighbours_ is None
    found = dict(zip(imputer.order_, imputer.discrete_support_, strict=True))
    assert found["x"] is None
    assert len(found["y"].values) == frame["y"].nunique()


def test_levels_in_reference_rows_are_probabilities() -> None:
    generator = np.random.default_rng(0)
    kind = pd.Series(generator.choice(list("abc"), 400, p=[0.8, 0.1, 0.1]))
    frame = pd.DataFrame({"x": generator.normal(size=400), "y": generator.normal(size=400), "kind": kind})
    fit = small_fit(frame.assign(kind=kind.mask(generator.random(400) < 0.3)))
    (category,) = fit.chain.compounds
    columns = list(category.columns)
    share = (fit.point[:, columns] - category.off) / (category.on - category.off)
    torch.testing.assert_close(share.sum(1), torch.ones(400).to(share))
    missing = ~fit.rows.observed[:, columns[0]]
    assert share[missing].mean(0)[columns.index(min(columns))] > 0.7  # "a" is the first level of the table
