"""The search for the plan of a joint density: the outcome comes last, and part of the rows shows an order."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import MGPImputer
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import TableCodec
from pyro_mgp.fitting import table_fit
from pyro_mgp.fitting.plan_search import GivenTable, PlanSearch
from pyro_mgp.settings import Choice, Engine


def product(n_rows: int = 300) -> pd.DataFrame:
    """Return y = x1·x2 + noise, of which x1 and x2 have missing cells."""
    generator = np.random.default_rng(0)
    x1, x2, noise = generator.normal(size=(3, n_rows))
    frame = pd.DataFrame({"y": x1 * x2 + 0.3 * noise, "x1": x1, "x2": x2})
    missing = generator.random((n_rows, 2)) < 0.2
    frame[["x1", "x2"]] = frame[["x1", "x2"]].mask(missing)
    return frame


def search_of(frame: pd.DataFrame) -> tuple[PlanSearch, torch.Tensor]:
    """Return a search without transforms, and the table with its missing cells at zero, `[1, N, D]`."""
    rules = Rules.parse(None, frame.columns.tolist()).learn(frame)
    codec = TableCodec.fit(frame, False, 0, {})
    table = codec.encode_cells(frame)
    imputer = MGPImputer(random_state=0, progress=False)
    given = GivenTable(imputer, Engine(), rules, frame, frame, (None, None))
    search = PlanSearch(
        given, [(codec, table)], Choice("earlier", "as given"), ~table.observed.all(0).numpy()
    )
    return search, table.values[None]


def test_an_outcome_in_front_moves_to_the_end() -> None:
    search, completed = search_of(product())
    planned = search.fit((0, [1, 2]), completed)
    found = search.after_rival(planned)
    assert found.plan == (0, [1, 2, 0])
    assert found.fitted[0].chain.names == ("x1", "x2", "y")
    # The outcome is the last one now, and has no rival.
    assert search.after_rival(found) is found


def test_a_plan_is_drawn_by_four_chains_that_impute_does_not_use() -> None:
    search, completed = search_of(product())
    planned = search.fit((0, [1, 2]), completed)
    draws = [planned.completed(draw) for draw in (0, 3)]
    assert [each.shape for each in draws] == [(4, 300, 3)] * 2
    fitted, _ = planned.fitted
    assert fitted.sampler().n_chains == 20
    table = search.encodings[0][1]
    (_, first), *_ = fitted.sampler(chains=20, searching=True).draws(table, range(4))
    # Chains have the noise of their number, whatever their number is.
    torch.testing.assert_close(draws[0], first, rtol=0, atol=1e-6)
    assert not torch.equal(draws[0], draws[1])
    assert fitted.sampler().chains(fitted.training).n_recorded[0] == 20


def test_a_search_on_some_rows_has_the_same_cells_in_every_form() -> None:
    search, _ = search_of(product())
    (_, every), rows = search.encodings[0], torch.tensor([7, 3, 200])
    few = search.on(rows)
    assert torch.equal(few.encodings[0][1].keys, every.keys[rows])
    assert few.given.frame.index.tolist() == few.given.modelled.index.tolist() == rows.tolist()
    expected, table = few.given.frame.to_numpy(), few.encodings[0][1]
    decoded = table.values.numpy() * few.codecs[0].raw_scale + [c.mean[0] for c in few.codecs[0].columns]
    np.testing.assert_allclose(decoded[~np.isnan(expected)], expected[~np.isnan(expected)], atol=1e-12)


def test_the_plan_of_a_large_table_is_learnt_from_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_fit, "_FEW_ROWS", 100)
    rows, search = list[int](), PlanSearch.on
    monkeypatch.setattr(
        PlanSearch, "on", lambda whole, few: (rows.extend(few.tolist()), search(whole, few))[1]
    )
    fitted = MGPImputer(inputs="earlier", random_state=0, progress=False).fit(product())
    assert fitted.chain_.n_rows == 300
    assert fitted.chain_.names[-1] == "y"
    assert len(set(rows)) == 100
