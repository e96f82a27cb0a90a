"""The table decides which columns a link sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import ColumnSpec, MGPImputer
from pyro_mgp.fitting import chain_fit, plan_search, table_fit
from pyro_mgp.fitting.chain_fit import TrainingTable


def steps(n_rows: int = 300) -> pd.DataFrame:
    """Return a table whose columns jump along a line, which only nearby rows tell."""
    generator = np.random.default_rng(1)
    place = generator.uniform(0, 20, n_rows)
    level = generator.normal(size=21)[place.astype(int)]
    frame = pd.DataFrame(
        {"a": level + 0.1 * generator.normal(size=n_rows), "b": level + generator.normal(size=n_rows)}
    )
    return frame.mask(generator.random(frame.shape) < 0.2).assign(place=place)


def curved(n_rows: int = 600) -> pd.DataFrame:
    """Return a table with a product and a wave, the inputs of which are missing."""
    generator = np.random.default_rng(1)
    z = generator.multivariate_normal(np.zeros(3), 0.5 + 0.5 * np.eye(3), n_rows)
    y = np.sin(2 * z[:, 0]) + z[:, 1] * z[:, 2] + 0.3 * generator.normal(size=n_rows)
    frame = pd.DataFrame(z, columns=["a", "b", "c"])
    return frame.mask(generator.random(z.shape) < 0.3).assign(y=y)


@pytest.mark.parametrize(
    ("frame", "inputs", "reason"),
    [
        (steps(), "others", "nearby rows improve predictions"),
        (curved(), "earlier", "a joint density of the columns"),
    ],
    ids=["steps", "curves"],
)
def test_auto_takes_a_joint_density_unless_nearby_rows_tell_more(
    frame: pd.DataFrame, inputs: str, reason: str
) -> None:
    choice = MGPImputer(random_state=0, progress=False).fit(frame).settings_.inputs
    assert (choice.value, choice.reason) == (inputs, reason)


def record_fits(monkeypatch: pytest.MonkeyPatch) -> list[TrainingTable]:
    """Return a list to which every further fit of links adds its table."""
    fitted = list[TrainingTable]()

    def fit_chain(*given: Any) -> Any:
        fitted.append(given[2])
        return chain_fit.fit_chain(*given)

    monkeypatch.setattr(table_fit, "fit_chain", fit_chain)
    monkeypatch.setattr(plan_search, "fit_chain", fit_chain)
    return fitted


@pytest.mark.parametrize(
    ("frame", "sizes", "inputs"),
    [
        (steps(600), [600], "others"),
        (steps(601), [300, 601], "others"),
        (curved(601), [300, 601], "earlier"),
    ],
    ids=["small", "nearby rows", "joint density"],
)
def test_few_rows_of_a_large_table_decide(
    frame: pd.DataFrame, sizes: list[int], inputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = record_fits(monkeypatch)
    monkeypatch.setattr(table_fit, "_FEW_ROWS", 300)
    imputer = MGPImputer(random_state=0, progress=False).fit(frame)
    # Plans are fitted to few rows as often as they change.
    n_rows = [len(each.encoded) for each in fitted]
    assert sorted(n_rows) == n_rows
    assert list(dict.fromkeys(n_rows)) == sizes
    assert n_rows.count(len(frame)) == 1
    assert imputer.settings_.inputs.value == inputs
    assert imputer.chain_.n_rows == len(frame)


def test_incomplete_columns_have_links_in_few_rows_that_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = steps(400).interpolate(limit_direction="both").drop(columns="place")
    # A missing cell changes the scale of its column and all keys: find a row that is not among the few then.
    for outside in range(10):
        holed = frame.mask((frame.index == outside)[:, None] & (frame.columns == "a"))
        fitted = MGPImputer(inputs="others", max_steps=1, random_state=0, progress=False).fit(holed).model_
        if fitted.training.observed[:150].all():
            break
    monkeypatch.setattr(table_fit, "_FEW_ROWS", 150)
    tables = record_fits(monkeypatch)
    imputer = MGPImputer(random_state=0, progress=False).fit(holed)
    assert len(tables[0].encoded) == 150 and tables[0].encoded.observed.all()
    assert [link.name for link in tables[0].link_specs] == ["a"]
    assert "a" in imputer.chain_.names
    assert imputer.impute(m=2)[0].notna().to_numpy().all()


@pytest.mark.slow
def test_a_column_without_observed_cells_in_few_rows_takes_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = curved(400)
    frame.loc[10:, "c"] = np.nan
    monkeypatch.setattr(table_fit, "_FEW_ROWS", 2)
    fitted = record_fits(monkeypatch)
    imputer = MGPImputer(random_state=0, progress=False).fit(frame)
    assert {len(each.encoded) for each in fitted} == {400}
    assert imputer.impute(m=2)[0].notna().to_numpy().all()


def test_what_is_no_checkpoint_is_not_removed_by_a_fit_to_a_large_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_fit, "_FEW_ROWS", 100)
    (tmp_path / "mine").write_text("notes")
    with pytest.raises(ValueError, match="is no checkpoint"):
        MGPImputer(random_state=0, progress=False).fit(curved(300), checkpoint=tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "notes"


def test_the_gain_of_local_gps_is_an_average_over_links_that_may_have_one() -> None:
    frame = steps()
    frame["kind"] = np.where(frame["place"] < 10, "left", "right")
    frame["tail"] = np.random.default_rng(0).standard_t(2, size=len(frame))
    frame.loc[::5, ["kind", "tail"]] = None
    specs = {"tail": ColumnSpec(kind="heavy-tailed")}
    model = MGPImputer(inputs="others", specs=specs, random_state=0, progress=False).fit(frame).model_
    assert model.neighbours is not None and len(model.chain.links) == 4
    pairs = zip(model.chain.names, model.neighbours.links, strict=True)
    each = {name: metrics[0].params.gain if metrics else 0.0 for name, metrics in pairs}
    assert each.pop("tail") == 0 and 0.1 < max(each.values()) < 1
    assert model.local_gain == sum(each.values()) / 3


def test_levels_that_only_other_rows_of_a_subject_tell_have_links_that_see_all_others() -> None:
    """With a joint density, whose links have no local GPs, 35, 18 and 21 % are wrong in three such tables."""
    generator = np.random.default_rng(0)
    who, numbers = np.repeat(np.arange(60), 6), generator.normal(size=(60, 2))
    truth = (generator.random(60) < 0.5)[who]
    frame = pd.DataFrame({"a": numbers[who, 0], "b": numbers[who, 1], "arm": pd.array(truth)})
    missing = generator.random(len(frame)) < 0.3
    frame.loc[missing, "arm"] = pd.NA
    imputer = MGPImputer(random_state=0, progress=False).fit(frame)
    assert imputer.settings_.inputs.value == "others"
    for draw in imputer.impute(m=5):
        assert (draw["arm"].astype(bool) != truth)[missing].mean() < 0.1


@pytest.mark.parametrize("inputs", ["earlier", "others"])
@pytest.mark.parametrize("names", ["abc", "bac", "bca"])
def test_names_of_levels_do_not_tell_which_comes_first(names: str, inputs: Any) -> None:
    """Of three stages along x, the second one is told from both others by no linear function."""
    generator = np.random.default_rng(0)
    x = 2 * generator.normal(size=200)
    stage = np.digitize(x + 0.3 * generator.normal(size=200), [-1, 1])
    frame = pd.DataFrame({"x": x, "stage": np.array(list(names))[stage]})
    frame.loc[generator.random(200) < 0.2, "stage"] = None
    imputer = MGPImputer(inputs=inputs, max_steps=5, random_state=0, progress=False).fit(frame)
    first, _ = imputer.order_
    assert first != f"stage={names[1]}"


@pytest.mark.parametrize(("n_columns", "inputs"), [(3, "earlier"), (4, "others")])
def test_tables_of_many_links_have_links_that_see_all_others(
    n_columns: int, inputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_fit, "_MOST_LINKS", 3)
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(60, n_columns))).mask(generator.random((60, n_columns)) < 0.1)
    assert MGPImputer(random_state=0, progress=False).fit(frame).settings_.inputs.value == inputs
