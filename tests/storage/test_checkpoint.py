"""Checkpoints: whole or not there, of this work or refused, and what goes on from them ends the same."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import MGPImputer
from pyro_mgp.inference import training
from pyro_mgp.inference.training import History, Options, train
from pyro_mgp.model.chain import Chain
from pyro_mgp.sampling import kept_draws
from pyro_mgp.storage import checkpoint
from pyro_mgp.storage.checkpoint import Checkpoint, State, fingerprint
from tests.inference.test_training import problem


class Crash(Exception):
    """Stands for the end of the process."""


class Crashing(Checkpoint):
    """Keeps everything, and ends the process after a number of writes."""

    def __init__(self, path: Path, writes: int) -> None:
        super().__init__(path, every=0)
        self.left = writes

    @property
    def due(self) -> bool:
        return True

    def keep(self, *args: object, **named: object) -> bool:
        super().keep(*args, **named)  # type: ignore[arg-type]
        self.left -= 1
        if self.left == 0:
            raise Crash
        return True


def tables() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((150, 3))
    frame = pd.DataFrame(
        {"a": x[:, 0], "b": np.sin(x[:, 0]) + 0.1 * x[:, 1], "c": np.where(x[:, 2] > 0, "yes", "no")}
    )
    return frame.mask(generator.random(frame.shape) < 0.2).assign(d=x[:, 1])


# ---------------------------------------------------------------------------------------------------- files


def test_a_state_comes_back_to_the_last_digit(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal(5)
    state = State({"x": numbers, "n": np.zeros((0, 3), bool)}, {"loss": [0.1 + 0.2, float("-inf")]})
    checkpoint.write(tmp_path / "it", state, {"seed": 2**62})
    back = checkpoint.read(tmp_path / "it", {"seed": 2**62})
    assert back.fields == state.fields
    assert np.array_equal(back.arrays["x"], numbers) and back.arrays["n"].shape == (0, 3)


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ({"seed": 1, "table": "#b"}, "another table"),
        ({"seed": 2, "table": "#a"}, "seed is 1 there and 2 here"),
        ({"seed": 1}, "table is '#a' there and None here"),
    ],
)
def test_other_work_is_refused(tmp_path: Path, identity: dict[str, str | int], said: str) -> None:
    checkpoint.write(tmp_path / "it", State({}), {"seed": 1, "table": "#a"})
    with pytest.raises(ValueError, match=rf"another computation \({re.escape(said)}\): resume it with"):
        checkpoint.read(tmp_path / "it", identity)


@pytest.mark.parametrize("content", [b"", b"junk", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "it").write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: choose another path, or remove it to start over"):
        checkpoint.read(tmp_path / "it", {})


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.write(tmp_path / "it", State({"x": np.ones(2)}), {})

    def fail(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, os.strerror(28), str(path))

    monkeypatch.setattr("pyro_mgp.storage.checkpoint.write_arrays", fail)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(tmp_path / "it", State({"x": np.zeros(2)}), {})
    assert os.listdir(tmp_path) == ["it"]
    assert checkpoint.read(tmp_path / "it", {}).arrays["x"].tolist() == [1, 1]


def test_fingerprints_tell_values_names_shapes_and_dtypes_apart() -> None:
    one = torch.arange(6.0)
    others = [one + 1, one.reshape(2, 3), one.double(), one.reshape(2, 3).T]
    assert len({fingerprint([("x", each)]) for each in [one, *others]} | {fingerprint([("y", one)])}) == 6
    assert fingerprint([("x", one.reshape(2, 3).T)]) == fingerprint([("x", one.reshape(2, 3).T.contiguous())])


def test_writes_are_rare_where_they_are_dear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 5.0, 10.0, 10.0, 11.0, 12.0, 60.9, 61.1])
    monkeypatch.setattr("pyro_mgp.storage.checkpoint.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("pyro_mgp.storage.checkpoint.write", lambda *_: None)
    kept = Checkpoint(tmp_path / "it", every=10)
    with kept.working():
        assert not kept.due  # 5 s
        assert kept.keep(lambda: State({}), {})  # at 10 s; it takes 1 s, two per cent of 50 s
        assert not kept.due  # 12 s
        assert not kept.due  # 60.9 s
        assert kept.due  # 61.1 s


# ------------------------------------------------------------------------------------------------- training


def trained(options: Options, backpropagate: bool, kept: Checkpoint | None) -> tuple[Chain, History]:
    chain, *data = problem(backpropagate=backpropagate)
    return chain, train(chain, *data, options, seed=3, progress=False, checkpoint=kept)


@pytest.mark.parametrize("backpropagate", [True, False], ids=["by gradient", "in closed form"])
@pytest.mark.parametrize("batch_size", [2000, 17], ids=["whole", "minibatches"])
@pytest.mark.parametrize("writes", [1, 3])
def test_training_that_goes_on_takes_the_same_steps(
    tmp_path: Path, backpropagate: bool, batch_size: int, writes: int
) -> None:
    natural = not backpropagate
    options = Options(max_steps=22, batch_size=batch_size, closed_form=natural, patience=10)
    whole, expected = trained(options, backpropagate, None)
    with pytest.raises(Crash):
        trained(options, backpropagate, Crashing(tmp_path / "it", writes))
    with pytest.raises(Crash):  # and once more, from there
        trained(options, backpropagate, Crashing(tmp_path / "it", 1))
    resumed, history = trained(options, backpropagate, Checkpoint(tmp_path / "it"))
    assert history.loss == expected.loss and history.validation == expected.validation
    assert (history.steps, history.best_step) == (expected.steps, expected.best_step)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.filterwarnings("ignore:training reached numbers")
def test_training_goes_on_after_its_rate_was_cut(tmp_path: Path) -> None:
    options = Options(max_steps=30, learning_rate=1e4, patience=10)
    whole, expected = trained(options, False, None)
    with pytest.raises(Crash):
        trained(options, False, Crashing(tmp_path / "it", 2))
    kept = checkpoint.read(tmp_path / "it", _identity(tmp_path / "it"))
    assert kept.fields["rate"] < 1e4
    resumed, history = trained(options, False, Checkpoint(tmp_path / "it"))
    assert history.loss == expected.loss
    assert all(torch.equal(v, resumed.state_dict()[n]) for n, v in whole.state_dict().items())


def _identity(path: Path) -> dict[str, object]:
    import json

    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["pyro_mgp"])["identity"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options": Options(max_steps=21, closed_form=False)}, "training max_steps is 20 there and 21"),
        ({"seed": 4}, "seed is 3 there and 4 here"),
        ({"table": 1.0}, "another table"),
    ],
)
def test_training_of_something_else_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    def run(kept: Checkpoint, seed: int = 3, table: float = 0.0, **more: object) -> History:
        chain, encoded, held_out, filled = problem()
        encoded = dataclasses.replace(encoded, values=encoded.values + table)
        options = {"options": Options(max_steps=20, closed_form=False)} | more
        return train(chain, encoded, held_out, filled, seed=seed, progress=False, checkpoint=kept, **options)

    with pytest.raises(Crash):
        run(Crashing(tmp_path / "it", 1))
    with pytest.raises(ValueError, match=re.escape(said)):
        run(Checkpoint(tmp_path / "it"), **change)


def test_observed_cells_are_not_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        trained(Options(max_steps=20, closed_form=False), True, Crashing(tmp_path / "it", 1))
    _, encoded, held_out, _ = problem()
    kept = checkpoint.read(tmp_path / "it", _identity(tmp_path / "it"))
    assert kept.arrays["fill"].shape == (int((~(encoded.observed & ~held_out)).sum()),)


# -------------------------------------------------------------------------------------- fitting and imputing


def test_a_fit_that_goes_on_is_the_same_and_removes_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"random_state": 0, "max_steps": 20, "progress": False, "inputs": "others"}
    whole = MGPImputer(**settings).fit(tables())
    with pytest.raises(Crash):
        MGPImputer(**settings).fit(tables(), checkpoint=Crashing(tmp_path / "it", 2))
    assert os.listdir(tmp_path) == ["it"]
    seen: list[int] = []
    check = training.Run.check
    monkeypatch.setattr(
        training.Run, "check", lambda run, bar: (seen.append(len(run.losses)), check(run, bar))
    )
    resumed = MGPImputer(**settings).fit(tables(), checkpoint=tmp_path / "it")
    assert seen[0] == 10
    assert os.listdir(tmp_path) == []
    assert resumed.impute(m=3) == whole.impute(m=3)
    for name, value in whole.chain_.state_dict().items():
        assert torch.equal(value, resumed.chain_.state_dict()[name]), name


def test_a_checkpoint_with_other_things_in_it_is_damaged(tmp_path: Path) -> None:
    settings = {"random_state": 0, "max_steps": 10, "progress": False, "inputs": "others"}
    with pytest.raises(Crash):
        MGPImputer(**settings).fit(tables(), checkpoint=Crashing(tmp_path / "it", 1))
    identity = _identity(tmp_path / "it")
    state = checkpoint.read(tmp_path / "it", identity)
    imputer = MGPImputer(**settings)
    for arrays, fields in (
        (state.arrays | {"fill": np.zeros(3)}, state.fields),
        ({}, state.fields),
        (state.arrays, state.fields | {"adam_steps": []}),
    ):
        checkpoint.write(tmp_path / "it", State(arrays, fields), identity)
        with pytest.raises(ValueError, match="it' is no checkpoint, or is damaged: choose another path"):
            imputer.fit(tables(), checkpoint=tmp_path / "it")
        assert not hasattr(imputer, "chain_")


def test_a_checkpoint_needs_a_seed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a checkpoint needs random_state=<an integer>, got None"):
        MGPImputer().fit(tables(), checkpoint=tmp_path / "it")


@pytest.mark.parametrize("inputs", ["others", "earlier"])
def test_draws_that_go_on_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: Literal["others", "earlier"]
) -> None:
    imputer = MGPImputer(inputs=inputs, order=["a", "b", "c"], random_state=0, max_steps=5, progress=False)
    imputer.fit(tables())
    frame = pd.concat([tables().iloc[79::-1]] * 2, ignore_index=True)
    whole = imputer.impute(frame, m=3, batch_size=20)
    with pytest.raises(Crash):
        imputer.impute(frame, m=3, batch_size=20, checkpoint=Crashing(tmp_path / "it", 2))
    assert sorted(os.listdir(tmp_path / "it")) == ["from_row_000000000000", "from_row_000000000020"]
    drawn: list[slice] = []
    state = kept_draws._state
    monkeypatch.setattr(
        kept_draws, "_state", lambda waiting: (drawn.extend(here for here, _ in waiting), state(waiting))[1]
    )
    imputer.save(tmp_path / "saved")
    loaded = MGPImputer.load(tmp_path / "saved")
    with pytest.raises(Crash):
        loaded.impute(frame, m=3, batch_size=20, checkpoint=Crashing(tmp_path / "it", 1))
    assert drawn == [slice(40, 60)]
    assert loaded.impute(frame, m=3, batch_size=20, checkpoint=tmp_path / "it") == whole
    assert os.listdir(tmp_path) == ["saved"]


@pytest.fixture(scope="module")
def fitted() -> MGPImputer:
    """Fitted to `tables()`; no test may change it."""
    return MGPImputer(inputs="others", random_state=0, max_steps=5, progress=False).fit(tables())


@pytest.mark.parametrize("fields", [{"stop": 0}, {"stop": 10**9}, {"stop": "20"}, {}, {"stop": 19}])
def test_draws_of_other_rows_than_they_say_are_damaged(
    fitted: MGPImputer, tmp_path: Path, fields: dict[str, object]
) -> None:
    with pytest.raises(Crash):
        fitted.impute(m=3, batch_size=20, checkpoint=Crashing(tmp_path / "it", 1))
    (path,) = (tmp_path / "it").iterdir()
    identity = _identity(path)
    checkpoint.write(path, State(checkpoint.read(path, identity).arrays, fields), identity)
    with pytest.raises(ValueError, match="is no checkpoint, or is damaged"):
        fitted.impute(m=3, batch_size=20, checkpoint=tmp_path / "it")


def test_files_of_others_are_not_removed(fitted: MGPImputer, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("notes", "mine/notes", "mine/.notes"):
        (tmp_path / name).write_text("important")
    complete = tables().dropna()
    settings = {"random_state": 0, "max_steps": 2, "progress": False}
    for place in ("mine", "notes"):
        with pytest.raises(ValueError, match="is no checkpoint, or is damaged: choose another path"):
            fitted.impute(m=1, checkpoint=tmp_path / place)
        with pytest.raises(ValueError, match="is no checkpoint, or is damaged: choose another path"):
            MGPImputer(**settings).fit(complete, checkpoint=tmp_path / place)
    assert {(tmp_path / name).read_text() for name in ("notes", "mine/notes", "mine/.notes")} == {"important"}
    with pytest.raises(Crash):  # a checkpoint of training, where draws would be kept in a folder
        MGPImputer(**settings).fit(tables(), checkpoint=Crashing(tmp_path / "training", 1))
    with pytest.raises(ValueError, match="is no checkpoint"):
        fitted.impute(m=1, checkpoint=tmp_path / "training")
    assert (tmp_path / "training").is_file()


def test_an_unfinished_file_does_not_hinder_draws_that_go_on(fitted: MGPImputer, tmp_path: Path) -> None:
    whole = fitted.impute(m=3, batch_size=20)
    with pytest.raises(Crash):
        fitted.impute(m=3, batch_size=20, checkpoint=Crashing(tmp_path / "it", 1))
    (tmp_path / "it" / ".from_row_000000000020.0a1b2c3d.partial").write_bytes(b"half")
    assert fitted.impute(m=3, batch_size=20, checkpoint=tmp_path / "it") == whole
    assert os.listdir(tmp_path) == []


def test_draws_of_something_else_are_refused(fitted: MGPImputer, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        fitted.impute(m=3, batch_size=20, checkpoint=Crashing(tmp_path / "it", 1))
    for call, said in (
        (lambda: fitted.impute(m=4, batch_size=20, checkpoint=tmp_path / "it"), "m is 3 there and 4 here"),
        (
            lambda: fitted.impute(tables()[::2], m=3, batch_size=20, checkpoint=tmp_path / "it"),
            "another table",
        ),
        (
            lambda: (
                MGPImputer(inputs="others", random_state=0, max_steps=4, progress=False)
                .fit(tables())
                .impute(m=3, batch_size=20, checkpoint=tmp_path / "it")
            ),
            "another imputer",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            call()
