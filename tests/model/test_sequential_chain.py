"""Sequential chains: draws given later columns agree with closed forms and grids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from known_function import Known
from pyro import poutine
from scipy.stats import kstest, norm
from torch import Tensor

from pyro_mgp import MGPImputer
from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp.inference.closed_form_rows import Share, Sweep
from pyro_mgp.model.chain import Chain, Noise, by_column, fresh_noise
from pyro_mgp.model.conditional import Conditional, Moments, Shifted
from pyro_mgp.model.kernels import matern32
from pyro_mgp.model.likelihoods import Gaussian, Ordinal, TwoPart
from pyro_mgp.model.link import Link
from pyro_mgp.model.sequential_chain import SequentialChain


def sequential(
    n_columns: int, device: torch.device | str = "cpu", kind: type[Chain] = SequentialChain
) -> Chain:
    """Return a chain over all columns, in which the inputs of each link are the earlier columns."""
    links = []
    for column in range(n_columns):
        Xu = torch.zeros(1, column, dtype=torch.float64, device=device)
        links.append(Link(matern32(column), Xu, column, list(range(column)), Gaussian(0.5)))
    return kind(links, [f"x{d}" for d in range(n_columns)], n_rows=1)


def keyed(n_rows: int, n_paths: int, device: torch.device | str = "cpu") -> Callable[[int], Noise]:
    """Iterate over the noise of consecutive sweeps."""
    noise = KeyedNoise(3, torch.arange(n_rows, device=device), range(n_paths))
    return lambda sweep: lambda link, rows: noise.normal(sweep, link, rows=rows)


def swept(
    conditionals: Sequence[Conditional], table: Tensor, observed: Tensor, n_sweeps: int, first: int = 0
) -> Tensor:
    """Return the table `[S, n, D]` after some sweeps."""
    chain = sequential(table.shape[-1], table.device)
    noise = keyed(table.shape[1], len(table), table.device)
    for sweep in range(first, first + n_sweeps):
        table, _ = chain.sweep(conditionals, table, observed, noise(sweep), chain.holes(table[0], observed))
    return table


# --------------------------------------------------------------------------------------- against closed forms

# x₀ ~ N(0, 1), x₁ = .8 x₀ + N(0, .5), x₂ = x₀ - x₁ + N(0, .3 or .9), by path.
SLOPES = np.array([[0.0, 0.0, 0.0], [0.8, 0.0, 0.0], [1.0, -1.0, 0.0]])
NOISES = np.array([[1.0, 0.5, 0.3], [1.0, 0.5, 0.9]])


def linear(device: torch.device | str) -> list[Conditional]:
    noises = torch.tensor(NOISES, device=device)
    slopes = torch.tensor(SLOPES, device=device)
    return [Known(noises[:, d : d + 1], lambda rows, w=w: rows @ w) for d, w in enumerate(slopes)]


def exact_conditional(noise: np.ndarray, observed: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return mean and covariance of the missing cells of a row under the joint Gaussian."""
    root = np.linalg.inv(np.eye(3) - SLOPES)
    joint = root @ np.diag(noise) @ root.T
    gain = joint[np.ix_(~observed, observed)] @ np.linalg.inv(joint[np.ix_(observed, observed)])
    covariance = joint[np.ix_(~observed, ~observed)] - gain @ joint[np.ix_(observed, ~observed)]
    return gain @ row[observed], covariance


@pytest.mark.parametrize(
    ("observed", "n_sweeps"),
    # Two cells between which another stands firm are strongly correlated (.9): sweeps forget slowly.
    [([0, 1, 1], 15), ([0, 0, 1], 40), ([1, 0, 1], 15), ([0, 1, 0], 15), ([1, 1, 0], 1), ([0, 0, 0], 1)],
)
def test_sweeps_of_linear_links_converge_to_the_conditional_gaussian(
    observed: list[int], n_sweeps: int, device: torch.device
) -> None:
    """Thousands of equal rows give the joint Gaussian; each path has noise of its own."""
    n_rows, row = 3000, np.array([0.7, -1.2, 1.5])
    seen = np.array(observed) > 0
    start = torch.tensor(np.where(seen, row, 0.0), device=device).expand(2, n_rows, 3)
    known = torch.tensor(seen, device=device).expand(n_rows, 3)
    found = swept(linear(device), start, known, n_sweeps).cpu().numpy()
    assert (found[..., seen] == row[seen]).all()
    for path, noise in zip(found, NOISES, strict=True):
        mean, covariance = exact_conditional(noise, seen, row)
        cells = path[:, ~seen]
        sd = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(cells.mean(0), mean, atol=5 * sd.max() / n_rows**0.5)
        np.testing.assert_allclose(np.cov(cells.T), covariance, atol=6 * sd.max() ** 2 / n_rows**0.5)


def grid_of_square_root(y: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid, and on it the distribution function of x ~ N(0, 1) given y = x² + N(0, noise)."""
    x = np.linspace(-5, 5, 20_001)
    density = norm.pdf(x) * norm.pdf(y, x**2, noise**0.5)
    return x, np.cumsum(density) / density.sum()


def square(device: torch.device | str, noise: float = 0.4) -> list[Conditional]:
    one = torch.ones((), dtype=torch.float64, device=device)
    return [
        Known(one, lambda rows: torch.zeros_like(rows[..., 0])),
        Known(noise * one, lambda rows: rows[..., 0].square()),
    ]


def test_slices_leave_a_posterior_of_two_modes_as_it_is(device: torch.device) -> None:
    """A sweep leaves the distribution of x given y = x² + noise invariant, and every cell moves."""
    n_rows, y = 20_000, 2.0
    x, distribution = grid_of_square_root(y, 0.4)
    uniform = (np.arange(n_rows) + 0.5) / n_rows
    start = torch.tensor(np.interp(uniform, distribution, x), device=device)
    table = torch.stack([start, torch.full_like(start, y)], dim=-1)[None]
    observed = torch.tensor([False, True], device=device).expand(n_rows, 2)
    for n_sweeps in (1, 3):
        found = swept(square(device), table, observed, n_sweeps)[0, :, 0].cpu().numpy()
        assert (found != start.cpu().numpy()).mean() > 0.99
        assert kstest(found, lambda q: np.interp(q, x, distribution)).pvalue > 1e-3


def test_slices_find_the_other_mode(device: torch.device) -> None:
    n_rows, y = 5000, 2.0
    x, distribution = grid_of_square_root(y, 0.4)
    table = torch.tensor([1.0, y], dtype=torch.float64, device=device).expand(1, n_rows, 2)
    observed = torch.tensor([False, True], device=device).expand(n_rows, 2)
    found = swept(square(device), table, observed, 30)[0, :, 0].cpu().numpy()
    assert kstest(found, lambda q: np.interp(q, x, distribution)).pvalue > 1e-3


# ------------------------------------------------------------------------------- informative rows and weights


def test_rows_are_informative_if_any_later_cell_is_observed() -> None:
    observed = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1]]) > 0
    chain = sequential(3)
    expected = [[0, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 1, 0, 0, 1]]
    found = [chain.learns_from(i, observed.double(), observed).long().tolist() for i in range(3)]
    assert found == expected


def test_a_link_without_a_column_as_input_does_not_weight_it() -> None:
    links = [Link(matern32(1), torch.zeros(1, 1).double(), d, [0], Gaussian(0.5)) for d in (1, 2)]
    chain = SequentialChain(links, ["b", "c"], n_rows=2)
    observed = torch.tensor([[True, False, True]])
    assert not chain.learns_from(0, observed.double(), observed)


def test_cells_without_later_observations_are_drawn_as_in_a_plain_chain() -> None:
    """Cells without informative later links have the same bits as in a plain chain."""
    table, observed = torch.randn(2, 50, 3).double(), torch.rand(50, 3) > 0.3
    observed = observed.cummin(1).values
    chain = sequential(3)
    noise, holes, conditionals = keyed(50, 2)(0), chain.holes(table[0], observed), linear("cpu")
    weighted, _ = chain.sweep(conditionals, table, observed, noise, holes)
    drawn, _ = sequential(3, kind=Chain).sweep(conditionals, table, observed, noise, holes)
    assert torch.equal(weighted, drawn)


def test_a_sweep_does_not_depend_on_the_rows_swept_together() -> None:
    table, observed = torch.randn(2, 60, 3).double(), torch.rand(60, 3) > 0.4
    chain, conditionals, noise = sequential(3), linear("cpu"), keyed(60, 2)(0)
    before = table.clone()
    whole, _ = chain.sweep(conditionals, table, observed, noise)
    assert torch.equal(table, before)
    assert torch.equal(whole[:, observed], table[:, observed])
    assert (whole != table)[:, ~observed].float().mean() > 0.99
    among_holes, _ = chain.sweep(conditionals, table, observed, noise, chain.holes(table[0], observed))
    torch.testing.assert_close(among_holes, whole, rtol=0, atol=1e-12)
    for path in (0, 1):
        own = [Known(each.noise[path : path + 1], each.function) for each in conditionals]
        for row in range(0, 60, 7):
            here, at = slice(path, path + 1), torch.tensor([row])
            alone, _ = chain.sweep(
                own,
                table[here, at],
                observed[at],
                lambda link, rows, here=here, at=at: noise(link, at[rows])[here],
            )
            torch.testing.assert_close(alone[0, 0], whole[path, row], rtol=0, atol=1e-12)


def two_parts(n_rows: int) -> tuple[SequentialChain, list[Conditional]]:
    """Return a chain of [x = bound], of amounts x ~ N(.2, .5) and of y, with known functions.

    P(x = bound) = .4; y = 1 + N(0, .3) at the bound, and y = x + N(0, .3) elsewhere.
    """
    off, on = torch.tensor([-0.8, 1.25]).double()
    ordinal = Ordinal(torch.stack([off, on]), torch.tensor([0.6, 0.4]).double())
    links = [
        Link(matern32(0), torch.zeros(1, 0).double(), 0, [], ordinal),
        Link(matern32(0), torch.zeros(1, 0).double(), 1, [], Gaussian(0.5), unless=[0]),
        Link(matern32(2), torch.zeros(1, 2).double(), 2, [0, 1], Gaussian(0.3)),
    ]
    chain = SequentialChain(
        links, ["x=0", "x", "y"], n_rows, compounds=[TwoPart((0, 1), (0, 1), off, on, -2.0)]
    )
    one = torch.tensor(1.0).double()
    functions = [lambda rows: 0.0 * rows[..., 0], lambda rows: 0.2 + 0.0 * rows[..., 0], _after_two_parts]
    known = [Known(one * noise, f) for noise, f in zip((1.0, 0.5, 0.3), functions, strict=True)]
    return chain, [known[0].observed_as(ordinal, noisy=False), *known[1:]]


def _after_two_parts(rows: Tensor) -> Tensor:
    return rows[..., 1].where(rows[..., 0] < 0, 1.0)


@pytest.mark.parametrize("start", [1.25, -0.8])
@pytest.mark.parametrize("is_observed", [True, False])
def test_two_parts_converge_to_their_posterior_and_stay_there(start: float, is_observed: bool) -> None:
    chain, conditionals = two_parts(n := 6000)
    table = torch.tensor([start, 0.0, 1.4]).double().expand(1, n, 3)
    observed = torch.tensor([False, False, is_observed]).expand(n, 3)
    noise, y = keyed(n, 1), 1.4
    for sweep in range(25):
        table, _ = chain.sweep(conditionals, table, observed, noise(sweep), chain.holes(table[0], observed))
        if sweep < 20:
            continue
        at_bound, amounts = table[0, :, 0] > 0, table[0, :, 1]
        weights, mean, variance = np.array([0.4, 0.6]), 0.2, 0.5
        if is_observed:
            weights *= norm.pdf(y, [1.0, 0.2], np.sqrt([0.3, 0.8]))
            variance = 1 / (1 / 0.5 + 1 / 0.3)
            mean = variance * (0.2 / 0.5 + y / 0.3)
        share = weights[0] / weights.sum()
        assert float(at_bound.double().mean()) == pytest.approx(
            share, abs=4 * np.sqrt(share * (1 - share) / n)
        )
        assert (amounts[at_bound] == 0).all()
        assert kstest(amounts[~at_bound].numpy(), norm(mean, variance**0.5).cdf).pvalue > 1e-3


def test_two_parts_are_written_once_both_are_drawn() -> None:
    """The Pyro model draws them from their own density, with the amount zero at the bound."""
    chain, _ = two_parts(n := 4000)
    for link in chain.links:
        link.kernel.variance = torch.tensor(1e-12).double()
    table, observed = torch.zeros(n, 3).double(), torch.zeros(n, 3, dtype=torch.bool)
    drawn = poutine.trace(chain.model).get_trace(table, observed).nodes["filled"]["value"].detach()
    at_bound = drawn[:, 0] > 0
    assert float(at_bound.double().mean()) == pytest.approx(0.4, abs=0.03)
    assert (drawn[at_bound, 1] == 0).all() and (drawn[~at_bound, 1] != 0).all()
    assert float(drawn[~at_bound, 1].var()) == pytest.approx(0.5, rel=0.1)


def test_a_shift_is_of_draws_and_not_of_what_later_links_say_of_them() -> None:
    table = torch.tensor([1.0, 2.0]).double().expand(1, 300, 2)
    observed = torch.tensor([False, True]).expand(300, 2)
    plain = square("cpu")
    moved = swept([Shifted.of(plain[0], 0.75), plain[1]], table, observed, 1)
    torch.testing.assert_close(moved[..., 0], swept(plain, table, observed, 1)[..., 0] + 0.75)


# ----------------------------------------------------------------------------------------------------- errors


def test_links_see_earlier_ones_only() -> None:
    Xu = torch.zeros(1, 1).double()
    links = [Link(matern32(1), Xu, d, [1 - d], Gaussian(0.5)) for d in (0, 1)]
    with pytest.raises(ValueError, match="link 'a' has the column of a later link, or its own, as input"):
        SequentialChain(links, ["a", "b"], n_rows=3)


@pytest.mark.parametrize("missing", [(0.4, 0.6), (0.5, 0.5), (0.1, 0.3)])
def test_training_uses_informative_missing_cells_only(missing: tuple[float, float]) -> None:
    """A table with more missing cells than a tile, few or most with informative later columns."""
    generator = np.random.default_rng(0)
    x, e = generator.normal(size=900), generator.normal(size=(2, 900))
    frame = pd.DataFrame({"x": x, "y": x + 0.5 * e[0]})
    frame["z"] = frame["x"] * frame["y"] + 0.5 * e[1]
    for label, share in zip("yz", missing, strict=True):
        frame.loc[generator.random(900) < share, label] = np.nan
    imputer = MGPImputer(inputs="earlier", random_state=0, max_steps=5, n_inducing=30, progress=False)
    imputer.fit(frame)
    assert isinstance(imputer.chain_, SequentialChain)
    assert np.isfinite(imputer.history_.loss).all() and len(imputer.history_.loss) == 5


def test_copies_of_a_missing_cell_get_the_same_draw() -> None:
    """Sweep with the closed form, which pads lists of missing cells to whole tiles."""
    torch.manual_seed(0)
    chain = sequential(3)
    table, observed = torch.randn(200, 3).double(), torch.rand(200, 3) > torch.tensor([0.1, 0.6, 0.4])
    asked: list[tuple[int, Tensor, Tensor]] = []

    def visit(
        _: object, paths: Tensor, seen: Tensor, noise: Noise, visited: list[Moments], holes: Tensor, __: None
    ) -> None:
        for number, rows in ((len(visited), holes), (len(visited) + 3, holes[::5])):
            asked.append((number, rows, noise(number, rows)))
        visited.append(Moments(holes, holes))

    chain.visit = visit  # type: ignore[method-assign]
    share = Share(by_column(table[None]), observed, torch.arange(200), fresh_noise(table[None]), 200)
    Sweep(chain, [Known(torch.tensor(1.0), square_of_first)] * 3, share).visit(slice(0, 3))
    assert len(asked) == 6
    for _, rows, numbers in asked:
        assert len(numbers[0]) == len(rows)
        assert len({(int(row), float(z)) for row, z in zip(rows, numbers[0], strict=True)}) == len(
            rows.unique()
        )
        assert len(numbers.unique()) == len(rows.unique())


def square_of_first(rows: Tensor) -> Tensor:
    """Return a function of rows."""
    return rows[..., 0].square()


@pytest.mark.parametrize("told", [0, 1, 2], ids=["first row", "second row", "third row"])
def test_any_row_of_a_group_tells_of_its_cell(told: int, device: torch.device | str) -> None:
    """In y = z + noise, z ~ N(0, 1), a group has one z, and y is known in one of its three rows."""
    n_groups, n_paths, noise = 30, 64, 0.1
    Xu = torch.zeros(1, 1, dtype=torch.float64, device=device)
    z = Link(matern32(0), Xu[:, :0], 1, [], Gaussian(0.5), once_per=0)
    y = Link(matern32(1), Xu, 2, [1], Gaussian(0.5))
    chain = SequentialChain([z, y], ["z", "y"], n_rows=3 * n_groups)
    one = torch.ones(n_paths, 1, dtype=torch.float64, device=device)
    slope = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64, device=device)
    conditionals = [
        Known(one, lambda rows: rows @ (0 * slope)),
        Known(noise * one, lambda rows: rows @ slope),
    ]
    table = torch.zeros(n_paths, 3 * n_groups, 3, dtype=torch.float64, device=device)
    table[..., 0] = torch.arange(n_groups, device=device).repeat_interleave(3)
    observed = torch.zeros(3 * n_groups, 3, dtype=torch.bool, device=device)
    observed[:, 0], observed[told::3, 2] = True, True
    # Nothing tells of the last group, of which later links say nothing.
    observed[-3:, 2] = False
    table[..., 2] = 2.0
    keys = keyed(3 * n_groups, n_paths, device)
    for sweep in range(8):
        holes = chain.holes(table[0], observed)
        table, _ = chain.sweep(conditionals, table, observed, keys(sweep), holes)
    cells = table[:, ::3, 1].cpu()
    assert torch.equal(table[:, ::3, 1], table[:, 2::3, 1])
    variance = 1 / (1 + 1 / noise)
    assert float(cells[:, :-1].mean()) == pytest.approx(2 * variance / noise, abs=0.03)
    assert float(cells[:, :-1].var()) == pytest.approx(variance, rel=0.15)
    assert float(cells[:, -1].mean()) == pytest.approx(0, abs=0.5)
