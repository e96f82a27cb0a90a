"""Sequential fill: trends, local GPs in known inputs, and draws by the chain rule."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.gaussian_process.kernels import Matern
from torch import Tensor

from pyro_mgp import MGPImputer
from pyro_mgp.imputer import FitWarning
from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling import refinement
from pyro_mgp.sampling.initial_fill import InitialFill
from pyro_mgp.sampling.local_gp import LocalGPParams, LocalLink
from pyro_mgp.sampling.sequential_fill import (
    KnownInputsConditional,
    KnownInputsOfLevels,
    LinearTrend,
    SequentialFill,
    known_inputs,
)

COVARIANCE = torch.tensor(
    [[1.0, 0.5, 0.3, -0.2], [0.5, 1.2, 0.1, 0.4], [0.3, 0.1, 0.9, 0.2], [-0.2, 0.4, 0.2, 1.1]]
).double()
GAUSSIAN = InitialFill(torch.tensor([0.3, -0.1, 0.2, 0.5]).double(), COVARIANCE, drawn=True)
COLUMNS = torch.tensor([0, 2, 3])
KNOWN = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0]]).double()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def test_a_trend_is_the_regression_on_the_known_inputs() -> None:
    trend, covariance = LinearTrend.of(GAUSSIAN, COLUMNS, 1, KNOWN), COVARIANCE.numpy()
    for known, slopes, variance in zip(KNOWN, trend.slopes, trend.variance, strict=True):
        given = COLUMNS[known == 1].numpy()
        expected = np.linalg.solve(covariance[np.ix_(given, given)], covariance[given, 1])
        np.testing.assert_allclose(slopes[known == 1], expected, rtol=1e-10)
        assert not slopes[known == 0].any()
        assert float(variance) == pytest.approx(1.2 - expected @ covariance[given, 1])


@pytest.mark.parametrize("n_certain", [1, 4, 7])
def test_a_trend_is_the_same_if_inputs_are_certain_to_be_known(n_certain: int) -> None:
    root, n_inputs = random(8, 8), 7
    gaussian = InitialFill(root[0], root @ root.T + torch.eye(8), drawn=True)
    certain = torch.arange(n_inputs) % 2 == 0 if n_certain == 4 else torch.arange(n_inputs) < n_certain
    known = ((random(50, n_inputs, seed=1) < 0.5) | certain).double()
    given = gaussian, torch.arange(n_inputs), n_inputs, known
    found, expected = LinearTrend.of(*given, certain), LinearTrend.of(*given)
    torch.testing.assert_close(found.slopes, expected.slopes, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-10, atol=0)
    assert not found.slopes[known == 0].any()


@pytest.mark.parametrize("n_certain", [0, 6])
@pytest.mark.parametrize("n_inputs", [7, 9, 15, 16, 25])
def test_a_trend_has_the_same_bits_in_any_company(n_inputs: int, n_certain: int) -> None:
    root = random(n_inputs + 1, n_inputs + 1)
    gaussian = InitialFill(root[0], root @ root.T + torch.eye(n_inputs + 1), drawn=True)
    certain = torch.arange(n_inputs) < n_certain
    known = ((random(192, n_inputs, seed=1) < 0.5) | certain).double()
    whole = LinearTrend.of(gaussian, torch.arange(n_inputs), n_inputs, known, certain)
    for here in torch.arange(192).split(96):
        part = LinearTrend.of(gaussian, torch.arange(n_inputs), n_inputs, known[here], certain)
        assert torch.equal(part.slopes, whole.slopes[here])
        assert torch.equal(part.variance, whole.variance[here])


def conditional(known: Tensor, is_drawn: Tensor, n_neighbours: int, own: Tensor | None = None) -> tuple:
    """Return a conditional of column 1 whose 30 reference rows have random values, and these rows."""
    rows = random(30, 4)
    values, params = rows[:, 1] - GAUSSIAN.mean[1], LocalGPParams((0.7, 1.5, 2.5), 0.2, 2.0, 0.4)
    local = LocalLink.of(COLUMNS, rows - GAUSSIAN.mean, values, n_neighbours, params)
    trend = LinearTrend.of(GAUSSIAN, COLUMNS, 1, known)
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
            if not known.any():  # nothing tells which rows are near
                assert float(found.mean[path, cell]) == pytest.approx(float(GAUSSIAN.mean[1]))
                assert float(found.variance[path, cell]) == pytest.approx(1.2)
                continue
            among, cross = kernel(X * scale) + 0.2 * np.eye(30), kernel((x * scale)[None], X * scale)[0]
            e, weights = y - X @ slopes[cell], np.linalg.solve(among, cross)
            mean = x @ slopes[cell] + weights @ e + float(GAUSSIAN.mean[1])
            a = (2.0 * 0.4 + e @ np.linalg.solve(among, e)) / (2.0 + 30)
            assert float(found.mean[path, cell]) == pytest.approx(mean)
            assert float(found.variance[path, cell]) == pytest.approx(a * (1.2 - weights @ cross))


def test_levels_are_the_two_next_to_the_mean_which_they_have() -> None:
    at, _ = conditional(KNOWN, torch.zeros(4, dtype=torch.bool), 5)
    values = torch.tensor([-1.0, 0.5, 2.0]).double()
    fields = {each.name: getattr(at, each.name) for each in dataclasses.fields(at)}
    levels = KnownInputsOfLevels(**fields, values=values)
    mean = torch.tensor([-3.0, -0.25, 0.5, 1.7, 5.0]).double()[None]
    moments = Moments(mean, torch.ones_like(mean))
    drawn = levels.draw(
        Moments(*(each.expand(20_000, 5) for each in (mean, moments.variance))), random(20_000, 5)
    )
    low, high = torch.tensor([[-1.0, -1.0, 0.5, 0.5, 2.0], [-1.0, 0.5, 0.5, 2.0, 2.0]]).double()
    assert ((drawn == low) | (drawn == high)).all()
    torch.testing.assert_close(drawn.mean(0)[None], mean.clamp(-1, 2), atol=0.03, rtol=0)
    torch.testing.assert_close(levels.expectation(moments), mean.clamp(-1, 2))
    squares = levels.expectation(moments, torch.square)
    torch.testing.assert_close(drawn.square().mean(0)[None], squares, atol=0.05, rtol=0)


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
    device = imputer.initial_fill_.device
    observed = torch.zeros(5, imputer.codec_.n_encoded, dtype=torch.bool, device=device)
    observed[:, 0] = True
    drawn = {0}
    for i, known in enumerate(known_inputs(chain, observed, chain.holes(observed.double(), observed))):
        link = chain.links[i]
        if i not in chain.links_of_compounds:
            expected = [int(column) in drawn for column in link.inputs]
            assert (known == torch.tensor(expected, device=device)).all()
        category = next((each for each in chain.compounds if each.links[0] == i), None)
        drawn |= {link.column} if category is None else set(category.columns)


def test_without_local_gps_draws_are_those_of_the_joint_gaussian() -> None:
    frame = pd.DataFrame((random(400, 4) @ torch.linalg.cholesky(COVARIANCE).T).numpy(), columns=[*"abcd"])
    mask = np.random.default_rng(1).random((400, 4)) < 0.2
    imputer = MGPImputer(random_state=0, max_steps=2, progress=False, inputs="others", n_neighbors=0)
    imputer.fit(frame.mask(mask))
    chain, gaussian = imputer.chain_, imputer.initial_fill_
    observed = torch.tensor([[True, False, False, False]], device=gaussian.device)
    n_paths = 20_000
    start = torch.zeros(n_paths, 1, 4).double().to(gaussian.device)
    start[..., 0] = 0.8
    with torch.no_grad(), local_parameters():
        fill = SequentialFill.of(chain, gaussian, start[0], observed.T, [None] * 4, 1, [None] * 4)
        normal, holes = random(4, n_paths, 1, seed=3).to(start), chain.holes(start[0], observed)
        links = chain, chain.conditionals(), [None] * 4
        drawn = fill.draw(*links, start, observed, lambda i, _: normal[i], holes)
    S, mu = gaussian.covariance.cpu().numpy(), gaussian.mean.cpu().numpy()
    mean = mu[1:] + S[1:, 0] / S[0, 0] * (0.8 - mu[0])
    covariance = S[1:, 1:] - np.outer(S[1:, 0], S[0, 1:]) / S[0, 0]
    found = drawn[:, 0, 1:].cpu().numpy()
    np.testing.assert_allclose(found.mean(0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(found.T), covariance, atol=0.04)


def combinations() -> tuple[pd.DataFrame, np.ndarray]:
    """Return rows of 15 combinations of four columns, and two missing cells in every third row."""
    generator = np.random.default_rng(0)
    distinct = pd.DataFrame(generator.integers(0, 12, size=(15, 4)).astype(float), columns=[*"abcd"])
    number = generator.integers(15, size=400)
    complete = distinct.iloc[number].reset_index(drop=True).assign(x=generator.normal(size=400))
    pairs = np.array([[0, 1], [1, 2], [2, 3], [0, 3]])[generator.integers(4, size=400)]
    mask = np.zeros(complete.shape, dtype=bool)
    mask[np.arange(0, 400, 3)[:, None], pairs[::3]] = True
    return complete, mask


def test_cells_that_are_missing_together_form_combinations_that_occur() -> None:
    """From Gaussian starts, 42 % of the rows were in no combination that occurs."""
    complete, mask = combinations()
    known = set(map(tuple, complete[[*"abcd"]].to_numpy()))
    shares = []
    for draw in MGPImputer(random_state=0, progress=False).fit(complete.mask(mask)).impute(m=5):
        rows = draw.loc[mask.any(1), [*"abcd"]].to_numpy()
        shares.append(np.mean([tuple(row) in known for row in rows]))
    assert np.mean(shares) > 0.9


@pytest.mark.parametrize("n_levels", [2, 3])
def test_a_level_and_a_number_that_depends_on_it_are_drawn_together(n_levels: int, tmp_path: Path) -> None:
    """Drawn from sparse GPs, 46 to 51 % of two levels were wrong, with numbers that agreed with them."""
    generator = np.random.default_rng(0)
    who, numbers = np.repeat(np.arange(60), 6), generator.normal(size=(60, 2))
    level = generator.integers(n_levels, size=60)[who]
    truth = np.array(list("abc"))[level]
    y = 2.0 * level + 0.3 * generator.normal(size=len(who))
    frame = pd.DataFrame({"a": numbers[who, 0], "b": numbers[who, 1], "arm": truth, "y": y})
    missing = generator.random(len(frame)) < 0.3
    frame.loc[missing, "arm"], frame.loc[missing, "y"] = None, np.nan
    imputer = MGPImputer(inputs="others", random_state=0, progress=False).fit(frame)
    draws = imputer.impute(m=5)
    assert np.mean([(draw["arm"] != truth)[missing].mean() for draw in draws]) < 0.1
    imputer.save(tmp_path / "imputer")
    assert MGPImputer.load(tmp_path / "imputer").impute(frame, m=2) == imputer.impute(frame, m=2)


@pytest.mark.slow
def test_imputations_have_starts_of_their_own_in_small_tables_and_share_them_in_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame, mask = combinations()
    new = frame.iloc[:60].assign(a=np.nan, b=np.nan, c=np.nan)
    for small, n_starts in ((2000, 8), (300, 4)):
        monkeypatch.setattr(refinement, "_SMALL", small)
        imputer = MGPImputer(random_state=0, progress=False).fit(frame.mask(mask))
        sampler, rows = imputer.model_.sampler(), imputer.codec_.encode(new).to(imputer.initial_fill_.device)
        numbers = imputer.neighbours_.numbers_of_starts(range(8))
        starts = sampler.starts(rows, range(8))
        assert len(set(numbers)) == len(starts.unique(dim=0)) == n_starts
        for j in range(8):
            assert torch.equal(sampler.starts(rows, [j])[0], starts[j])


def test_columns_without_a_link_have_a_draw_for_each_imputation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refinement, "_SMALL", 300)  # imputations share four starts
    frame, mask = combinations()
    imputer = MGPImputer(random_state=0, progress=False).fit(frame.mask(mask))
    new = frame.iloc[:20].assign(x=np.nan)
    with pytest.warns(FitWarning, match="have no link"):
        draws = imputer.impute(new, m=12)
    assert len(np.unique(np.stack([draw["x"] for draw in draws])[:, 0])) == 12


def test_a_saved_imputer_has_its_starts(tmp_path: Path) -> None:
    frame, mask = combinations()
    imputer = MGPImputer(random_state=0, progress=False).fit(frame.mask(mask))
    imputer.save(tmp_path / "imputer")
    loaded, new = MGPImputer.load(tmp_path / "imputer"), frame.mask(mask).iloc[:60] + 1e-9
    assert loaded.impute(new, m=2) == imputer.impute(new, m=2)
    assert loaded.impute(new, m=2, batch_size=7) == imputer.impute(new, m=2)
