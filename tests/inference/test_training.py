"""Training: losses, stopping, kept parameters, held-out cells, and absence of side effects."""

from __future__ import annotations

import dataclasses
import io
import itertools
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from natural_gradient import variational_pairs
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.nn import PyroParam
from torch import Tensor

from pyro_mgp._support.messages import FitWarning
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.inference import closed_form
from pyro_mgp.inference.closed_form import ConjugateStep
from pyro_mgp.inference.training import History, Options, train
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import LocalModule, local_method
from pyro_mgp.sampling.initial_fill import InitialFill

N_ROWS = 80
# Without gradients through the draws, training has a closed form of its own (`closed_form.py`).
both_ways = pytest.mark.parametrize("backpropagate", [True, False])


Problem = tuple[Any, EncodedTable, Tensor, Tensor]
"""A chain, the table it is trained on, the held-out cells, and the table with its missing cells filled."""


def problem(
    device: torch.device | str = "cpu",
    *,
    missing: float = 0.25,
    held_out: float = 0.15,
    backpropagate: bool = True,
    jitter: float | None = None,
) -> Problem:
    """Return three columns, a sine and a line of the first one, and an untrained chain over all."""
    generator = np.random.default_rng(0)
    x, e1, e2 = generator.standard_normal((3, N_ROWS))
    values = torch.tensor(np.stack([x, np.sin(2 * x) + 0.2 * e1, 0.8 * x + 0.3 * e2], 1), device=device)
    observed = torch.tensor(generator.random(values.shape) >= missing, device=device)
    held = torch.tensor(generator.random(values.shape) < held_out, device=device) & observed
    seen = observed & ~held
    filled = InitialFill.fit(values, seen, "linear").conditional_mean(values, seen)
    links = []
    for column, inputs in enumerate([[1, 2], [0, 2], [0, 1]]):
        # The closed form wants K_ZZ well conditioned.
        jitter = jitter or (1e-10 if backpropagate else 1e-6)
        links.append(Link(matern32(2), filled[:8, inputs].clone(), column, inputs, Gaussian(0.4), jitter))
    chain = Chain(links, ["a", "b", "c"], N_ROWS, backpropagate=backpropagate)
    assert closed_form.applies_to(chain) != backpropagate
    return chain, EncodedTable(values, observed, torch.arange(N_ROWS, device=device)), held, filled


def trained(problem: Problem, seed: int = 0, loss: Any = None, **options: Any) -> tuple[Any, History]:
    chain, *data, filled = problem
    made = Options(**options)
    return chain, train(chain, *data, filled.clone(), made, seed=seed, loss=loss, progress=False)


class Recording(TraceMeanField_ELBO):
    """Evidence bound that records the tables it scores."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def loss_and_grads(self, model: Any, guide: Any, filled: Tensor, observed: Tensor, rows: Any) -> Any:
        self.calls.append((filled.clone(), observed.clone(), rows))
        return super().loss_and_grads(model, guide, filled, observed, rows)


Calls = list[tuple[Tensor, Tensor, Tensor | None]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Return the list of the tables, masks and row numbers that steps in closed form are taken on."""
    recorded: Calls = []

    class RecordingStep(ConjugateStep):
        def __call__(self, filled: Tensor, observed: Tensor, rows: Any, *size: Any, **only: Any) -> Any:
            recorded.append((filled.clone(), observed.clone(), rows))
            return super().__call__(filled, observed, rows, *size, **only)

    monkeypatch.setattr(closed_form, "ConjugateStep", RecordingStep)
    return recorded


class Scripted(LocalModule):
    """Chain whose bound is -(weight - 9)² and whose held-out scores are given."""

    def __init__(self, scores: Iterable[list[float]] = ()) -> None:
        super().__init__()
        self.weight = PyroParam(torch.zeros(()).double())
        self.frozen = PyroParam(torch.zeros(()).double())
        self.frozen_unconstrained.requires_grad_(False)
        self.scores = iter(scores)
        self.seen: list[float] = []
        self.asked: list[tuple[Tensor, ...]] = []

    @local_method
    def model(self, filled: Tensor, observed: Tensor, rows: Tensor | None = None) -> Tensor:
        pyro.factor("bound", -((self.weight + self.frozen - 9) ** 2))
        return filled

    def guide(self, filled: Tensor, observed: Tensor, rows: Tensor | None = None) -> None:
        pass

    def log_density(self, *arguments: Tensor) -> Tensor:
        self.seen.append(self.weight.item())
        self.asked.append(arguments)
        return torch.tensor(next(self.scores))


def train_scripted(chain: Scripted, n_rows: int = 2, held_out: bool = True, **options: Any) -> History:
    """Train on a table whose first column is held out."""
    observed = torch.ones(n_rows, 2, dtype=torch.bool)
    held = torch.zeros_like(observed)
    held[:, 0] = held_out
    values = torch.arange(2.0 * n_rows).reshape(n_rows, 2)
    encoded = EncodedTable(values, observed, torch.arange(n_rows))
    options = {"loss": TraceMeanField_ELBO(), **options}
    return trained((chain, encoded, held, values.clone()), **options)[1]


# ------------------------------------------------------------------------ stopping, on a script typed by hand


def test_it_stops_when_held_out_cells_stop_improving_and_goes_back_to_the_best() -> None:
    # Means of the last three checks: -2, -1.5, -1.35, -1.349, -1.849. The third check alone is worse than the
    # second; the fourth mean is better by one thousandth, which is no progress.
    chain = Scripted([[-2.0], [-1.0], [-1.05], [-1.997], [-2.5], [0.0]])
    history = train_scripted(chain, check_every=4, patience=2)
    assert history.validation == pytest.approx([-2.0, -1.0, -1.05, -1.997, -2.5])
    assert history.steps == [4, 8, 12, 16, 20]
    assert (history.best_step, history.converged, len(history.loss)) == (12, True, 20)
    assert chain.weight.item() == chain.seen[2]
    assert len(set(chain.seen)) == 5


def test_losses_are_minus_the_bound_at_each_step() -> None:
    chain = Scripted([[0.0]])
    history = train_scripted(chain, max_steps=3, learning_rate=0.5, weight_decay=0.0)
    # Adam's first steps have the length of the learning rate, here up to a tenth.
    assert history.loss[0] == 81.0
    assert history.loss == pytest.approx([81.0, 8.5**2, 8.0**2], rel=1e-2)
    assert chain.frozen.item() == 0


def test_it_stops_at_the_last_step_in_the_middle_of_a_window() -> None:
    chain = Scripted([[-3.0], [-2.0], [-1.0]])
    history = train_scripted(chain, max_steps=10, check_every=4)
    assert (history.steps, history.best_step, history.converged) == ([4, 8, 10], 10, False)
    assert len(history.loss) == 10
    assert history.seconds > 0


def test_no_steps_change_nothing() -> None:
    chain = Scripted()
    history = train_scripted(chain, max_steps=0)
    assert (history.loss, history.validation, history.steps) == ([], [], [])
    assert (history.best_step, history.converged, chain.weight.item()) == (0, False, 0.0)


def test_a_held_out_outlier_counts_as_minus_three() -> None:
    history = train_scripted(Scripted([[-1000.0, -2.0], [-np.inf, 4.0]]), max_steps=2, check_every=1)
    assert history.validation == [-2.5, 0.5]


def test_without_held_out_cells_the_bound_per_cell_of_the_last_steps_decides() -> None:
    chain = Scripted()  # log_density would raise StopIteration
    history = train_scripted(chain, held_out=False, max_steps=6, check_every=3)
    windows = np.reshape(history.loss, (2, 3))
    assert history.validation == pytest.approx((-windows.mean(1) / 4).tolist())
    assert history.best_step == 6


def test_no_more_than_two_thousand_rows_are_scored_and_they_belong_together() -> None:
    chain = Scripted([[0.0]])
    train_scripted(chain, n_rows=3000, max_steps=1)
    ((filled, observed, values, scored, limits),) = chain.asked
    assert limits is None
    assert len(filled) == 2000
    assert filled[:, 0].unique().numel() == 2000
    assert torch.equal(filled, values)  # the fill was the values
    assert observed.tolist() == [[False, True]] * 2000
    assert scored.tolist() == [[True, False]] * 2000


class NotANumber(TraceMeanField_ELBO):
    """Evidence bound that is not a number."""

    def loss_and_grads(self, *args: Any, **kwargs: Any) -> float:
        return np.nan


@pytest.mark.parametrize("held_out", [False, True])
def test_a_bound_that_is_not_finite_stops_training(held_out: bool) -> None:
    chain, settings = Scripted([[-1.0]] * 10), {"check_every": 4, "learning_rate": 0.25}
    # A quarter of the rate, and a quarter of that, and once more.
    sentence = "the evidence bound is no longer finite after 4 steps; use a learning rate below 0.00390625"
    with pytest.raises(FloatingPointError, match=sentence):
        train_scripted(chain, held_out=held_out, loss=NotANumber(), **settings)


class LostAboveARate(Scripted):
    """Chain whose bound is infinite beyond a weight that only large steps reach."""

    @local_method
    def model(self, filled: Tensor, observed: Tensor, rows: Tensor | None = None) -> Tensor:
        if self.weight > 1.5:
            pyro.factor("bound", 0 * self.weight - torch.inf)
            return filled
        return super().model(filled, observed, rows)


def test_steps_into_numbers_that_are_not_finite_are_taken_back_and_made_smaller() -> None:
    chain = LostAboveARate([[-1.0], [-1.0]])
    with pytest.warns(FitWarning, match=r"in the end with learning_rate=0\.5 instead of 2"):
        history = train_scripted(chain, max_steps=3, check_every=3, learning_rate=2.0, weight_decay=0.0)
    assert np.isfinite(history.loss).all()
    assert history.loss[0] == 81.0  # the first window began again where it had begun
    assert 1.0 < chain.weight.item() <= 1.5  # three steps of a quarter of the rate


@both_ways
@pytest.mark.filterwarnings("ignore:Encountered NaN", "ignore:training reached numbers")
@pytest.mark.parametrize("check_every", [1, 5])
def test_a_rate_that_is_far_too_high_is_cut_until_the_steps_hold(
    backpropagate: bool, check_every: int
) -> None:
    one = problem(backpropagate=backpropagate)
    options: dict[str, Any] = {"learning_rate": 300.0, "max_steps": 15, "check_every": check_every}
    chain, history = trained(one, **options)
    assert np.isfinite(history.loss).all()
    assert all(parameter.isfinite().all() for parameter in chain.parameters())


# ----------------------------------------------------------------------------------------------- a real chain


@both_ways
def test_training_lowers_the_loss_and_stops_by_itself(device: torch.device, backpropagate: bool) -> None:
    chain, history = trained(problem(device, backpropagate=backpropagate), max_steps=500)
    assert history.converged
    assert history.best_step < len(history.loss) < 500
    assert len(history.validation) == len(history.steps)
    assert history.steps[-1] == len(history.loss)
    recent = [np.mean(history.validation[max(0, k - 2) : k + 1]) for k in range(len(history.steps))]
    assert recent[history.steps.index(history.best_step)] >= max(recent) - 2e-3
    one_step = {"max_steps": 1, "closed_form": False}
    _, untrained = trained(problem(device, backpropagate=backpropagate), **one_step)
    assert np.mean(history.loss[-10:]) < 0.5 * untrained.loss[0]
    assert all(p.isfinite().all() for p in chain.parameters())


def test_the_parameters_kept_are_those_of_the_best_check() -> None:
    settings: dict[str, Any] = {"closed_form": False, "check_every": 5}
    long, history = trained(problem(), max_steps=200, **settings)
    assert 0 < history.best_step < len(history.loss)
    short, same = trained(problem(), max_steps=history.best_step, **settings)
    assert same.best_step == history.best_step
    assert same.loss == history.loss[: history.best_step]
    for (name, kept), expected in zip(long.named_parameters(), short.parameters(), strict=True):
        assert torch.equal(kept, expected), name


def test_natural_gradients_are_faster_than_adam_alone(device: torch.device) -> None:
    _, natural = trained(problem(device, backpropagate=False), max_steps=20, closed_form=True)
    _, adam = trained(problem(device, backpropagate=False), max_steps=20, closed_form=False)
    assert natural.loss[0] < adam.loss[0] - 50  # q(u) has learnt from the initial fill
    assert np.mean(natural.loss[-5:]) < np.mean(adam.loss[-5:]) - 5


def test_on_the_whole_table_q_is_optimal_from_the_first_step_on(device: torch.device) -> None:
    # With all cells observed and Adam standing still, every loss is the minimum over q.
    untrained, encoded, _, filled = one = problem(device, missing=0, held_out=0, backpropagate=False)
    with pyro.settings.context(module_local_params=True), torch.no_grad():
        before = TraceMeanField_ELBO().loss(
            untrained.marginal_model, untrained.marginal_guide, filled, encoded.observed
        )
    chain, history = trained(one, max_steps=4, learning_rate=0.0)
    assert history.loss[0] < before - 100
    np.testing.assert_allclose(history.loss[1:], history.loss[0], rtol=1e-10)
    generator = torch.Generator().manual_seed(0)

    def loss() -> float:
        with pyro.settings.context(module_local_params=True), torch.no_grad():
            return TraceMeanField_ELBO().loss(
                chain.marginal_model, chain.marginal_guide, filled, encoded.observed
            )

    for pair in variational_pairs(chain):
        for leaf in (pair.loc, pair.tril):
            step = 0.05 * torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(device)
            leaf.data += step
            assert loss() > history.loss[1]
            leaf.data -= step


@both_ways
def test_minibatches_come_near_to_what_the_whole_table_gives(
    device: torch.device, backpropagate: bool
) -> None:
    def bound(chain: Chain) -> float:
        _, encoded, _, filled = problem(device, missing=0, held_out=0)
        with pyro.settings.context(module_local_params=True), torch.no_grad():
            return TraceMeanField_ELBO().loss(
                chain.marginal_model, chain.marginal_guide, filled, encoded.observed
            )

    start = bound(problem(device)[0])
    complete, same = (problem(device, missing=0, held_out=0, backpropagate=backpropagate) for _ in range(2))
    whole = bound(trained(complete, max_steps=60)[0])
    minibatches = bound(trained(same, max_steps=60, batch_size=20)[0])
    assert minibatches - whole < 0.1 * (start - whole)


def test_a_minibatch_is_rows_of_the_table_without_repetition(device: torch.device) -> None:
    recording = Recording()
    _, encoded, held_out, filled = one = problem(device)
    trained(one, loss=recording, max_steps=5, batch_size=30, refresh_fill=False)
    seen = encoded.observed & ~held_out
    for table, observed, rows in recording.calls[:5]:
        assert len(rows.unique()) == len(rows) in (26, 27)  # 80 rows in three nearly equal parts
        assert torch.equal(table, filled[rows])
        assert torch.equal(observed, seen[rows])
    visited = torch.cat([rows for _, _, rows in recording.calls]).unique()
    assert len(visited) > 60
    recording = Recording()
    trained(problem(device), loss=recording, max_steps=1, batch_size=N_ROWS)
    assert recording.calls[0][2] is None


def test_the_last_pass_sees_every_minibatch_of_a_table(calls: Calls) -> None:
    trained(problem(backpropagate=False), max_steps=2, batch_size=10)
    assert len(calls) == 1 + 2 + N_ROWS // 10
    recording = Recording()
    trained(problem(), loss=recording, max_steps=2)
    assert len(recording.calls) == 2  # the last pass is for natural gradients


@both_ways
def test_training_works_under_the_bound_that_samples_its_divergence(backpropagate: bool) -> None:
    chain, history = trained(problem(backpropagate=backpropagate), loss=Trace_ELBO(), max_steps=60)
    assert np.mean(history.loss[-10:]) < 0.5 * history.loss[0]
    assert all(p.isfinite().all() for p in chain.parameters())


# -------------------------------------------------------------------------------- the fill and held-out cells


def test_each_step_uses_the_draws_of_the_one_before_as_fill(device: torch.device, calls: Calls) -> None:
    _, encoded, held_out, filled = one = problem(device, backpropagate=False)
    trained(one, max_steps=3)
    seen = encoded.observed & ~held_out
    tables = [table for table, _, _ in calls]
    assert torch.equal(tables[0], filled)  # q(u) is fitted to the initial fill before draws replace it
    assert torch.equal(tables[1], filled)
    for before, after in itertools.pairwise(tables[1:4]):
        assert (before[~seen] != after[~seen]).all()
        assert torch.equal(after[seen], encoded.values[seen])


def test_a_minibatch_refreshes_its_own_rows_only(calls: Calls) -> None:
    _, encoded, held_out, filled = one = problem(missing=0.5, backpropagate=False)
    trained(one, max_steps=2, batch_size=40)
    (_, _, first), (table, _, second) = calls[1:3]
    assert first is not None and second is not None
    unseen = ~(encoded.observed & ~held_out)[second]
    changed = (table != filled[second]) & unseen
    assert torch.equal(changed.any(1), torch.isin(second, first) & unseen.any(1))


def test_the_fill_stays_when_it_is_not_refreshed() -> None:
    recording = Recording()
    one = problem()
    trained(one, loss=recording, max_steps=3, refresh_fill=False)
    assert all(torch.equal(table, one[3]) for table, _, _ in recording.calls[:3])


@pytest.mark.parametrize("refresh_fill", [True, False])
def test_held_out_cells_are_seen_in_the_last_pass_only(refresh_fill: bool, calls: Calls) -> None:
    _, encoded, held_out, _ = one = problem(backpropagate=False)
    trained(one, max_steps=4, refresh_fill=refresh_fill)
    assert len(calls) > 5
    for number, (table, observed, _) in enumerate(calls):
        last_pass = number > 4
        assert torch.equal(observed, encoded.observed if last_pass else encoded.observed & ~held_out)
        assert (table == encoded.values)[held_out].all() == last_pass


@both_ways
def test_values_of_held_out_cells_move_the_validation_and_not_the_losses(backpropagate: bool) -> None:
    settings: dict[str, Any] = {"max_steps": 20, "patience": 100}
    _, history = trained(problem(backpropagate=backpropagate), **settings)
    chain, encoded, held_out, filled = problem(backpropagate=backpropagate)
    values = torch.where(held_out, encoded.values + 3, encoded.values)
    moved = dataclasses.replace(encoded, values=values)
    _, other = trained((chain, moved, held_out, filled), **settings)
    assert other.loss == history.loss
    assert max(other.validation) < min(history.validation)


def test_the_last_pass_learns_from_held_out_cells() -> None:
    # A column seen in its held-out cells alone: only the last pass can teach its link anything.
    def error(closed_form: bool) -> float:
        chain, encoded, _, filled = problem(missing=0, held_out=0, backpropagate=False)
        held = torch.zeros_like(encoded.observed)
        held[:, 2] = True
        filled[:, 2] = 0
        settings: dict[str, Any] = {
            "max_steps": 1,
            "closed_form": closed_form,
            "learning_rate": 1e-3,
        }
        trained((chain, encoded, held, filled), **settings)
        with torch.no_grad():
            mean = chain.conditionals()[2].moments(encoded.values[None]).mean[0]
        return float((mean - encoded.values[:, 2]).square().mean())

    assert error(closed_form=True) < 0.5 * error(closed_form=False)


# ----------------------------------------------------------------------------------------- what is left alone


@both_ways
def test_the_seed_decides_everything_and_the_state_of_the_process_nothing(backpropagate: bool) -> None:
    results = []
    for seed, state in [(1, 0), (1, 5), (2, 0)]:
        torch.manual_seed(state)
        np.random.seed(state)  # noqa: NPY002
        chain, history = trained(problem(backpropagate=backpropagate), seed=seed, max_steps=12, batch_size=40)
        results.append((history, torch.cat([p.detach().flatten() for p in chain.parameters()])))
    (a, p), (b, q), (c, _) = results
    assert (a.loss, a.validation) == (b.loss, b.validation)
    assert torch.equal(p, q)
    assert a.loss != c.loss


@both_ways
def test_the_generators_and_the_parameter_store_of_the_process_are_untouched(backpropagate: bool) -> None:
    pyro.get_param_store()["mine"] = torch.tensor(1.0)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    trained(problem(backpropagate=backpropagate), max_steps=3, batch_size=40)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert list(pyro.get_param_store()) == ["mine"]
    assert not pyro.settings.get("module_local_params")
    pyro.clear_param_store()


@both_ways
def test_two_chains_do_not_disturb_each_other(backpropagate: bool) -> None:
    first, _ = trained(problem(backpropagate=backpropagate), max_steps=3)
    before = [p.detach().clone() for p in first.parameters()]
    second, history = trained(problem(backpropagate=backpropagate), max_steps=3)
    assert all(torch.equal(p, old) for p, old in zip(first.parameters(), before, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
    assert history.loss[-1] < history.loss[0]


@pytest.mark.parametrize("batch_size", [N_ROWS, 30])
@both_ways
def test_the_tensors_of_the_caller_are_not_changed(batch_size: int, backpropagate: bool) -> None:
    chain, encoded, held_out, filled = problem(backpropagate=backpropagate)
    copies = [t.clone() for t in (encoded.values, encoded.observed, held_out, filled)]
    trained((chain, encoded, held_out, filled), max_steps=3, batch_size=batch_size)
    for tensor, copy in zip((encoded.values, encoded.observed, held_out, filled), copies, strict=True):
        assert torch.equal(tensor, copy)


@both_ways
def test_inducing_inputs_that_are_not_to_be_trained_stay(backpropagate: bool) -> None:
    chain, encoded, held_out, filled = problem(backpropagate=backpropagate)
    for link in chain.links:
        link.Xu_unconstrained.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in chain.named_parameters()}
    trained((chain, encoded, held_out, filled), max_steps=3)
    for name, p in chain.named_parameters():
        assert torch.equal(p, before[name]) == ("Xu" in name), name


# ----------------------------------------------------------------------------------------------- the progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("progress", [True, False])
def test_progress_is_shown_on_a_terminal_if_wanted(progress: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    chain, encoded, held_out, filled = problem()
    train(chain, encoded, held_out, filled, Options(max_steps=2), seed=0, progress=progress)
    shown = terminal.getvalue()
    assert ("training" in shown and "2/2" in shown) if progress else shown == ""


def test_nothing_is_printed_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    chain, encoded, held_out, filled = problem()
    train(chain, encoded, held_out, filled, Options(max_steps=2), seed=0, progress=True)
    assert capsys.readouterr() == ("", "")
