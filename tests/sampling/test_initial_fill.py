"""Initial fill: conditioning of a Gaussian, and maximum likelihood from an incomplete table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import multivariate_normal
from torch import Tensor

from pyro_mgp._support.tiles import TILE
from pyro_mgp.sampling import initial_fill
from pyro_mgp.sampling.initial_fill import InitialFill

NAN = float("nan")


def correlated(n_columns: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return a random correlation matrix."""
    root = generator.standard_normal((n_columns, 2 * n_columns))
    covariance = root @ root.T
    scale = np.sqrt(np.diag(covariance))
    return covariance / np.outer(scale, scale)


def incomplete_table(
    n_rows: int, n_columns: int, share: float, device: torch.device, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return Gaussian rows with cells missing completely at random as NaN, and the mask of observed cells."""
    generator = np.random.default_rng(seed)
    mean, covariance = generator.standard_normal(n_columns), correlated(n_columns, generator)
    values = generator.multivariate_normal(mean, covariance, n_rows)
    values[generator.random(values.shape) < share] = NAN
    table = torch.tensor(values, device=device)
    return table, ~table.isnan()


def every_pattern(n_columns: int, device: torch.device) -> tuple[InitialFill, Tensor, Tensor]:
    """Return a Gaussian, and one row for each of the 2^D patterns of missing cells."""
    generator = np.random.default_rng(3)
    mean = torch.tensor(generator.standard_normal(n_columns), device=device)
    gaussian = InitialFill(mean, torch.tensor(2.5 * correlated(n_columns, generator), device=device))
    observed = torch.tensor(list(itertools.product([False, True], repeat=n_columns)), device=device)
    values = torch.tensor(generator.standard_normal(observed.shape), device=device)
    return gaussian, torch.where(observed, values, NAN), observed


def conditional(
    gaussian: InitialFill, row: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and covariance of the NaN cells given the others, by the block formula."""
    m, S = gaussian.mean.cpu().numpy(), gaussian.covariance.cpu().numpy()
    u = np.isnan(row)
    o = ~u
    gain = S[np.ix_(u, o)] @ np.linalg.inv(S[np.ix_(o, o)])
    return m[u] + gain @ (row[o] - m[o]), S[np.ix_(u, u)] - gain @ S[np.ix_(o, u)]


def log_likelihood(gaussian: InitialFill, values: Tensor) -> float:
    """Return the log density of the observed cells."""
    m, S = gaussian.mean.cpu().numpy(), gaussian.covariance.cpu().numpy()
    total = 0.0
    for row in values.cpu().numpy():
        o = ~np.isnan(row)
        if o.any():
            total += multivariate_normal.logpdf(row[o], m[o], S[np.ix_(o, o)])
    return total


def assert_close(actual: Tensor, expected: object, atol: float = 1e-10) -> None:
    np.testing.assert_allclose(actual.cpu().numpy(), expected, rtol=0, atol=atol)


# -------------------------------------------------------------------------------------------- mean and median


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("mean", 2.0, 5.0), ("median", 1.0, 4.0)],
)
def test_mean_and_median_fill_by_hand(
    name: initial_fill.FillName, first: float, second: float, device: torch.device
) -> None:
    values = torch.tensor(
        [[0.0, 10.0], [1.0, NAN], [5.0, 4.0], [NAN, 1.0], [NAN, NAN]], device=device
    ).double()
    gaussian = InitialFill.fit(values, ~values.isnan(), name)
    filled = gaussian.conditional_mean(values, ~values.isnan())
    assert filled.tolist() == [[0.0, 10.0], [1.0, second], [5.0, 4.0], [first, 1.0], [first, second]]
    spread = np.mean((np.array([[0, 10], [1, 4], [5, 1]]) - [first, second]) ** 2, axis=0)
    assert_close(gaussian.covariance, np.diag(spread))


def test_a_constant_column_still_has_a_positive_definite_covariance(device: torch.device) -> None:
    values = torch.tensor([[1.0, 0.0], [1.0, 2.0], [NAN, 4.0]], device=device).double()
    for name in ("mean", "median", "linear"):
        gaussian = InitialFill.fit(values, ~values.isnan(), name)
        assert torch.linalg.eigvalsh(gaussian.covariance).min() > 0
        filled = gaussian.conditional_mean(values, ~values.isnan())
        assert filled[2, 0].item() == pytest.approx(1.0, abs=1e-12)


# ----------------------------------------------------------------------------------------------- conditioning


def test_conditional_means_equal_the_block_formula_for_every_pattern(device: torch.device) -> None:
    gaussian, values, observed = every_pattern(6, device)
    filled = gaussian.conditional_mean(values, observed)
    for row, answer in zip(values.cpu().numpy(), filled, strict=True):
        expected = row.copy()
        expected[np.isnan(row)] = conditional(gaussian, row)[0]
        assert_close(answer, expected)
    assert filled[0].tolist() == gaussian.mean.tolist()  # entirely missing
    assert filled[-1].tolist() == values[-1].tolist()  # complete


def test_draws_have_the_conditional_covariance_for_every_pattern(device: torch.device) -> None:
    n_columns = 4
    gaussian, values, observed = every_pattern(n_columns, device)
    # A draw is the mean plus a matrix times the noise; unit vectors as noise show the columns of the matrix.
    units = torch.eye(n_columns, device=device).double()[:, None, :].expand(-1, len(values), -1)
    steps = gaussian.draw_given(values, observed, units) - gaussian.conditional_mean(values, observed)
    for i, row in enumerate(values.cpu().numpy()):
        holes = np.isnan(row)
        matrix = steps[:, i].T
        covariance = (matrix @ matrix.T).cpu().numpy()
        np.testing.assert_allclose(
            covariance[np.ix_(holes, holes)], conditional(gaussian, row)[1], atol=1e-10
        )
        assert not covariance[~holes].any()


def test_moments_of_many_draws_are_the_conditional_ones(device: torch.device) -> None:
    gaussian, values, observed = every_pattern(3, device)
    n_draws = 40_000
    noise = torch.randn(n_draws, *values.shape, dtype=torch.float64, device=device)
    draws = gaussian.draw_given(values, observed, noise)
    assert draws.shape == (n_draws, *values.shape)
    assert (draws[:, observed] == values[observed]).all()
    for i, row in enumerate(values.cpu().numpy()):
        holes = np.isnan(row)
        if not holes.any():
            continue
        mean, covariance = conditional(gaussian, row)
        drawn = draws[:, i].cpu().numpy()[:, holes]
        variance = np.diag(covariance)
        z = (drawn.mean(0) - mean) / np.sqrt(variance / n_draws)
        assert np.abs(z).max() < 4.5
        error = np.sqrt((np.outer(variance, variance) + covariance**2) / n_draws)
        z = (np.cov(drawn.T).reshape(covariance.shape) - covariance) / error
        assert np.abs(z).max() < 4.5


def test_values_of_missing_cells_are_ignored_and_not_changed(device: torch.device) -> None:
    values, observed = incomplete_table(40, 3, 0.3, device)
    junk = torch.where(observed, values, 1e9)
    before = junk.clone()
    noise = torch.randn(2, 40, 3, dtype=torch.float64, device=device)
    a, b = (InitialFill.fit(v, observed, "linear") for v in (values, junk))
    assert torch.equal(a.covariance, b.covariance)
    assert torch.equal(a.conditional_mean(values, observed), b.conditional_mean(junk, observed))
    assert torch.equal(a.draw_given(values, observed, noise), b.draw_given(junk, observed, noise))
    assert torch.equal(junk, before)


def test_rows_are_filled_the_same_alone_and_in_chunks(device: torch.device) -> None:
    n_rows = 2 * (chunk := initial_fill._chunk(3)) + 1
    values, observed = incomplete_table(n_rows, 3, 0.4, device)
    gaussian = InitialFill.fit(values[:50], observed[:50], "linear")
    noise = torch.randn(2, n_rows, 3, dtype=torch.float64, device=device)
    filled, drawn = gaussian.conditional_mean(values, observed), gaussian.draw_given(values, observed, noise)
    assert (filled.shape, drawn.shape) == ((n_rows, 3), (2, n_rows, 3))
    for i in (0, chunk - 1, chunk, 2 * chunk):
        row = slice(i, i + 1)
        assert_close(filled[row], gaussian.conditional_mean(values[row], observed[row]).cpu())
        assert_close(drawn[:, row], gaussian.draw_given(values[row], observed[row], noise[:, row]).cpu())


def test_chunks_of_wide_tables_have_fewer_rows() -> None:
    assert initial_fill._chunk(5) == initial_fill._MAX_AT_ONCE
    assert initial_fill._chunk(40) == TILE
    assert initial_fill._chunk(120) == 16
    assert initial_fill._chunk(10_000) == 1


def test_empty_tables_are_filled(device: torch.device) -> None:
    gaussian, values, observed = every_pattern(3, device)
    assert gaussian.conditional_mean(values[:0], observed[:0]).shape == (0, 3)
    noise = torch.zeros(2, 0, 3, device=device).double()
    assert gaussian.draw_given(values[:0], observed[:0], noise).shape == (2, 0, 3)


# ----------------------------------------------------------------------------------- expectation-maximisation


def test_linear_on_complete_data_is_the_sample_covariance_with_one_pseudo_row(device: torch.device) -> None:
    values, observed = incomplete_table(60, 4, 0.0, device)
    gaussian = InitialFill.fit(values, observed, "linear")
    table = values.cpu().numpy()
    assert_close(gaussian.mean, table.mean(0))
    assert_close(gaussian.covariance, (60 * np.cov(table.T, ddof=0) + np.eye(4)) / 61)


def test_linear_agrees_with_the_closed_form_where_there_is_one(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initial_fill, "_TOLERANCE", 1e-4)  # ten times smaller than the default
    # Anderson (1957): y missing where x is large. Factor the likelihood into x and y given x.
    generator = np.random.default_rng(1)
    x = generator.standard_normal(8000)
    y = 0.8 * x + 0.6 * generator.standard_normal(8000)
    seen = x < 0.3
    slope, intercept = np.polyfit(x[seen], y[seen], 1)
    residual = np.mean((y[seen] - intercept - slope * x[seen]) ** 2)
    mean = np.array([x.mean(), intercept + slope * x.mean()])
    covariance = np.array([[1, slope], [slope, slope**2]]) * x.var() + np.diag([0, residual])
    values = torch.tensor(np.stack([x, np.where(seen, y, NAN)], 1), device=device)
    gaussian = InitialFill.fit(values, ~values.isnan(), "linear")
    # Early stopping and the pseudo-row leave an error of 1e-3; the mean of the observed y has one of 0.3.
    assert abs(y[seen].mean() - mean[1]) > 0.3
    assert_close(gaussian.mean, mean, atol=2e-3)
    assert_close(gaussian.covariance, covariance, atol=2e-3)


def test_linear_from_a_close_start_has_the_same_optimum(device: torch.device) -> None:
    values, observed = incomplete_table(300, 4, 0.3, device)
    alone = InitialFill.fit(values, observed, "linear")
    resumed = InitialFill.fit(values, observed, "linear", start=alone)
    assert_close(resumed.covariance, alone.covariance.cpu().numpy(), atol=5e-3)


def test_every_em_step_raises_the_likelihood(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    values, observed = incomplete_table(80, 4, 0.35, device)
    heights = [-np.inf]
    for n_steps in (0, 1, 2, 4, 8, 16, 32):
        monkeypatch.setattr(initial_fill, "_MAX_STEPS", n_steps)
        gaussian = InitialFill.fit(values, observed, "linear")
        S = gaussian.covariance.cpu().numpy()
        # The unit covariance in the M step is a pseudo-row at the mean with second moment I.
        pseudo_row = -0.5 * (np.linalg.slogdet(S)[1] + np.trace(np.linalg.inv(S)))
        heights.append(log_likelihood(gaussian, values) + pseudo_row)
    assert (np.diff(heights) > -1e-9).all()
    assert heights[-1] > heights[1] + 10


def test_linear_stops_at_a_maximum(device: torch.device) -> None:
    values, observed = incomplete_table(80, 3, 0.3, device)
    best = InitialFill.fit(values, observed, "linear")

    def height(mean: Tensor, covariance: Tensor) -> float:
        S = covariance.cpu().numpy()
        pseudo_row = -0.5 * (np.linalg.slogdet(S)[1] + np.trace(np.linalg.inv(S)))
        return log_likelihood(InitialFill(mean, covariance), values) + pseudo_row

    top = height(best.mean, best.covariance)
    for i, j, step in itertools.product(range(3), range(3), (-0.05, 0.05)):
        unit = torch.zeros_like(best.covariance)
        unit[i, j] += step / 2
        unit[j, i] += step / 2
        assert height(best.mean, best.covariance + unit) < top
        assert height(best.mean + unit[i], best.covariance) < top


def test_equal_columns_missing_together_or_alone_are_filled_consistently(
    device: torch.device,
) -> None:
    generator = np.random.default_rng(2)
    x = generator.standard_normal(300)
    z = 0.9 * x + np.sqrt(1 - 0.81) * generator.standard_normal(300)
    values = torch.tensor(np.stack([x, x, z], 1), device=device)
    values[0, 0] = values[1, 0] = values[1, 1] = NAN
    observed = ~values.isnan()
    gaussian = InitialFill.fit(values, observed, "linear")
    filled = gaussian.conditional_mean(values, observed)
    assert torch.linalg.eigvalsh(gaussian.covariance).min() > 0
    assert filled[0, 0].item() == pytest.approx(x[0], abs=0.02)
    assert filled[1, 0].item() == pytest.approx(filled[1, 1].item(), abs=0.02)
    slope, intercept = np.polyfit(z[2:], x[2:], 1)
    assert filled[1, 0].item() == pytest.approx(intercept + slope * z[1], abs=0.02)


def test_indicators_of_a_category_still_sum_to_one_when_filled(device: torch.device) -> None:
    generator = np.random.default_rng(2)
    label = generator.integers(0, 3, 400)
    indicators = np.eye(3)[label]
    centre, scale = indicators.mean(0), indicators.std(0)
    other = label + generator.standard_normal(400)
    values = torch.tensor(np.column_stack([(indicators - centre) / scale, other]), device=device)
    values[:80, :3] = NAN
    observed = ~values.isnan()
    filled = InitialFill.fit(values, observed, "linear").conditional_mean(values, observed)
    scores = filled[:80, :3].cpu().numpy() * scale + centre
    np.testing.assert_allclose(scores.sum(1), 1, atol=0.01)
    assert scores[:, [0, 2]].std(0).min() > 0.2  # and differ from the column means


def test_linear_fits_more_columns_than_rows(device: torch.device) -> None:
    values, observed = incomplete_table(6, 12, 0.3, device)
    gaussian = InitialFill.fit(values, observed, "linear")
    assert torch.linalg.eigvalsh(gaussian.covariance).min() > 0
    assert gaussian.conditional_mean(values, observed).isfinite().all()


def test_large_tables_are_thinned(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    n_rows = 2 * initial_fill._MAX_ROWS + 1
    generator = np.random.default_rng(5)
    covariance = np.array([[1.0, 0.7], [0.7, 1.0]])
    table = torch.tensor(generator.multivariate_normal([0, 0], covariance, n_rows), device=device)
    looked_at = []
    maximise = initial_fill._maximise

    def watched(gaussian: InitialFill, values: Tensor, observed: Tensor) -> InitialFill:
        looked_at.append(len(values))
        return maximise(gaussian, values, observed)

    monkeypatch.setattr(initial_fill, "_maximise", watched)
    gaussian = InitialFill.fit(table, table.isfinite(), "linear")
    (n_used,) = looked_at
    assert initial_fill._MAX_ROWS / 2 < n_used <= initial_fill._MAX_ROWS
    error = np.sqrt((1 + covariance**2) / n_used)
    assert (np.abs(gaussian.covariance.cpu().numpy() - covariance) < 4.5 * error).all()
    assert gaussian.mean.abs().max() < 4.5 / np.sqrt(n_used)


def test_observed_cells_are_predicted_from_the_others_of_their_row(device: torch.device) -> None:
    gaussian, values, observed = every_pattern(6, device)
    means, variances = (each.cpu().numpy() for each in gaussian.leave_one_out(values, observed))
    rows = values.cpu().numpy()
    for row, column in np.argwhere(~np.isnan(rows)):
        others = rows[row].copy()
        others[column] = NAN
        mean, covariance = conditional(gaussian, others)
        place = np.isnan(others)[:column].sum()
        assert means[row, column] == pytest.approx(mean[place])
        assert variances[row, column] == pytest.approx(covariance[place, place])
