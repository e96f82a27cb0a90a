"""Sequential fill: trends, local GPs in known inputs, and draws by the chain rule."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.gaussian_process.kernels import Matern
from torch import Tensor

from pyro_mgp import MGPImputer
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling.initial_fill import InitialFill
from pyro_mgp.sampling.local_gp import LocalGPParams, LocalLink
from pyro_mgp.sampling.sequential_fill import KnownInputsConditional, SequentialFill, Trend, known_inputs

COVARIANCE = torch.tensor(
    [[1.0, 0.5, 0.3, -0.2], [0.5, 1.2, 0.1, 0.4], [0.3, 0.1, 0.9, 0.2], [-0.2, 0.4, 0.2, 1.1]]
).double()
GAUSSIAN = InitialFill(torch.tensor([0.3, -0.1, 0.2, 0.5]).double(), COVARIANCE, drawn=True)
COLUMNS = torch.tensor([0, 2, 3])
KNOWN = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0]]).double()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def test_a_trend_is_the_regression_on_the_known_inputs() -> None:
    trend, covariance = Trend.of(GAUSSIAN, COLUMNS, 1, KNOWN), COVARIANCE.numpy()
    for known, slopes, variance in zip(KNOWN, trend.slopes, trend.variance, strict=True):
        given = COLUMNS[known == 1].numpy()
        expected = np.linalg.solve(covariance[np.ix_(given, given)], covariance[given, 1])
        np.testing.assert_allclose(slopes[known == 1], expected, rtol=1e-10)
        assert not slopes[known == 0].any()
        assert float(variance) == pytest.approx(1.2 - expected @ covariance[given, 1])


def conditional(known: Tensor, is_drawn: Tensor, n_neighbours: int, own: Tensor | None = None) -> tuple:
    """Return a conditional of column 1 whose 30 reference rows have random values, and these rows."""
    rows = random(30, 4)
    values, params = rows[:, 1] - GAUSSIAN.mean[1], LocalGPParams((0.7, 1.5, 2.5), 0.2, 2.0, 0.4)
    local = LocalLink.of(COLUMNS, rows - GAUSSIAN.mean, values, n_neighbours, params)
    trend = Trend.of(GAUSSIAN, COLUMNS, 1, known)
    zero = torch.zeros(()).double()
    return KnownInputsConditional(zero, 1, COLUMNS, GAUSSIAN.mean, known, is_drawn, trend, local, own), rows


@pytest.mark.parametrize("is_drawn", [False, True])
def test_moments_are_those_of_kriging_in_the_known_inputs(is_drawn: bool) -> None:
    """With all references as neighbours; in NumPy, with scikit-learn's kernel."""
    at, references = conditional(KNOWN, torch.full((4,), is_drawn), 30)
    cells = random(2, 4, 4, seed=1)
    cells[1] = cells[0] if not is_drawn else cells[1]
    found, slopes, kernel = at.moments(cells), at.trend.slopes.numpy(), Matern(1.0, nu=1.5)
    X, y = (references - GAUSSIAN.mean)[:, COLUMNS].numpy(), (references - GAUSSIAN.mean)[:, 1].numpy()
    for path in range(2):
        for cell, known in enumerate(KNOWN.numpy()):
            x = (cells[path, cell] - GAUSSIAN.mean)[COLUMNS].numpy()
            scale = known / [0.7, 1.5, 2.5]
            among, cross = kernel(X * scale) + 0.2 * np.eye(30), kernel((x * scale)[None], X * scale)[0]
            e, weights = y - X @ slopes[cell], np.linalg.solve(among, cross)
            mean = x @ slopes[cell] + weights @ e + float(GAUSSIAN.mean[1])
            a = (2.0 * 0.4 + e @ np.linalg.solve(among, e)) / (2.0 + 30)
            assert float(found.mean[path, cell]) == pytest.approx(mean)
            assert float(found.variance[path, cell]) == pytest.approx(a * (1.2 - weights @ cross))


def test_neighbours_are_the_nearest_in_the_known_inputs() -> None:
    at, references = conditional(KNOWN, torch.zeros(4, dtype=torch.bool), 5)
    cells = random(4, 4, seed=2)
    own = torch.tensor([3, -1, 7, -1])
    found = at.local.nearest(cells, own, KNOWN)
    scaled = (cells - references[:, None] + GAUSSIAN.mean)[..., COLUMNS] / at.local.lengthscales
    distance = (scaled * KNOWN).square().sum(-1).T
    for cell in range(3):  # all references are equally near to a cell without known inputs
        order = [int(i) for i in distance[cell].argsort() if i != own[cell]]
        assert found[cell].tolist() == order[:5]


def test_cells_of_a_row_are_known_once_they_are_drawn() -> None:
    frame = pd.DataFrame(random(200, 3).numpy(), columns=["a", "b", "c"])
    kind = pd.Series(np.random.default_rng(0).choice(list("xyz"), 200))
    mask = np.random.default_rng(1).random((200, 4)) < 0.2
    imputer = MGPImputer(random_state=0, max_steps=2, progress=False, inputs="others", columns="all")
    imputer.fit(frame.assign(kind=kind).mask(mask))
    chain = imputer.chain_
    observed = torch.zeros(5, imputer.codec_.n_encoded, dtype=torch.bool)
    observed[:, 0] = True
    drawn = {0}
    for i, known in enumerate(known_inputs(chain, observed, chain.holes(observed))):
        link = chain.links[i]
        if chain.category_of(i) is None and not any(i in each.links for each in chain.categories):
            expected = [int(column) in drawn for column in link.inputs]
            assert (known == torch.tensor(expected)).all()
        category = chain.category_of(i)
        drawn |= {link.column} if category is None else set(category.columns)


def test_without_local_gps_draws_are_those_of_the_joint_gaussian() -> None:
    frame = pd.DataFrame((random(400, 4) @ torch.linalg.cholesky(COVARIANCE).T).numpy(), columns=[*"abcd"])
    mask = np.random.default_rng(1).random((400, 4)) < 0.2
    imputer = MGPImputer(random_state=0, max_steps=2, progress=False, inputs="others", n_neighbors=0)
    imputer.fit(frame.mask(mask))
    chain, gaussian = imputer.chain_, imputer.initial_fill_
    observed = torch.tensor([[True, False, False, False]])
    n_paths = 20_000
    start = torch.zeros(n_paths, 1, 4).double()
    start[..., 0] = 0.8
    with torch.no_grad(), local_parameters():
        fill = SequentialFill.of(chain, gaussian, start[0], observed.T, [None] * 4, 1)
        normal, holes = random(4, n_paths, 1, seed=3), chain.holes(observed)
        links = chain, chain.conditionals(), [None] * 4
        drawn = fill.draw(*links, start, observed, lambda i, _: normal[i], holes)
    S, mu = gaussian.covariance.numpy(), gaussian.mean.numpy()
    mean = mu[1:] + S[1:, 0] / S[0, 0] * (0.8 - mu[0])
    covariance = S[1:, 1:] - np.outer(S[1:, 0], S[0, 1:]) / S[0, 0]
    found = drawn[:, 0, 1:].numpy()
    np.testing.assert_allclose(found.mean(0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(found.T), covariance, atol=0.04)


def test_cells_that_are_missing_together_form_combinations_that_occur() -> None:
    """Rows of 15 combinations of four columns; from Gaussian starts, 42 % of rows were in none of them."""
    generator = np.random.default_rng(0)
    combinations = pd.DataFrame(generator.integers(0, 12, size=(15, 4)).astype(float), columns=[*"abcd"])
    number = generator.integers(15, size=400)
    complete = combinations.iloc[number].reset_index(drop=True).assign(x=generator.normal(size=400))
    pairs = np.array([[0, 1], [1, 2], [2, 3], [0, 3]])[generator.integers(4, size=400)]
    mask = np.zeros(complete.shape, dtype=bool)
    mask[np.arange(0, 400, 3)[:, None], pairs[::3]] = True
    imputer = MGPImputer(random_state=0, progress=False).fit(complete.mask(mask))
    known = set(map(tuple, combinations.to_numpy()))
    shares = []
    for draw in imputer.impute(m=5):
        rows = draw.loc[mask.any(1), [*"abcd"]].to_numpy()
        shares.append(np.mean([tuple(row) in known for row in rows]))
    assert np.mean(shares) > 0.9
