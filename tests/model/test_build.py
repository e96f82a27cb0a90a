"""Link specifications of a table, their order and inputs, and the chain built from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO

from pyro_mgp.data.codecs import fit_column
from pyro_mgp.data.column_spec import ColumnSpec
from pyro_mgp.data.table import TableCodec
from pyro_mgp.model.build import (
    LinkSpec,
    build_chain,
    categories,
    likelihoods,
    plan_links,
    sequence_of,
    starting_noise,
)
from pyro_mgp.model.kernels import matern32
from pyro_mgp.model.likelihoods import Gaussian, Ordinal
from pyro_mgp.model.sequential_chain import SequentialChain

# Encoded: height 0 (sd large), species=a 1, species=b 2, species=c 3, width 4, 7 5 (an integer as label).
FRAME = pd.DataFrame(
    {
        "height": [100.0, 500.0, 300.0, np.nan, 900.0, 200.0],
        "species": ["a", "b", "c", None, "b", "b"],
        "width": [0.01, 0.02, np.nan, 0.03, 0.01, 0.02],
        7: [1.0, 5.0, 2.0, 7.0, 3.0, 9.0],
    }
)
CODEC = TableCodec.fit(FRAME)
INCOMPLETE = np.array([True, True, True, True, True, False])


def names(specs: list[LinkSpec]) -> list[str]:
    return [spec.name for spec in specs]


def gaussians(n_links: int) -> list[Gaussian]:
    return [Gaussian(0.5) for _ in range(n_links)]


# -------------------------------------------------------------------------------------------------- the order


def test_links_ascend_by_the_standard_deviation_before_scaling() -> None:
    # Shares among five: a 1/5, b 3/5, c 1/5, so the sd of b is the largest of the indicators.
    assert names(plan_links(CODEC, INCOMPLETE, None)) == ["width", "species=a", "species=b", "height"]
    own_sd = FRAME[["width", "height"]].std(ddof=0)
    assert own_sd["width"] < np.sqrt(0.2 * 0.8) < own_sd["height"]


def test_indicators_of_a_category_stay_together() -> None:
    shares = np.repeat(["a", "b", "c"], [8, 32, 40])
    between = np.tile([0.0, 0.8], 40)
    codec = TableCodec.fit(pd.DataFrame({"between": between, "kind": shares}))
    spread = codec.raw_scale
    assert spread[1] < spread[0] < spread[2]
    assert names(plan_links(codec, np.ones(4, dtype=bool), None)) == ["kind=a", "kind=b", "between"]


def test_units_change_the_order() -> None:
    metres = FRAME.assign(height=FRAME["height"] / 1e6)
    assert names(plan_links(TableCodec.fit(metres), INCOMPLETE, None))[0] == "height"


def test_only_incomplete_columns_get_a_link() -> None:
    specs = plan_links(CODEC, np.array([False, False, False, False, True, False]), None)
    assert specs == [LinkSpec("width", 4, (0, 1, 2, 3, 5))]
    assert plan_links(CODEC, np.zeros(6, dtype=bool), None) == []
    assert plan_links(CODEC, np.zeros(6, dtype=bool), []) == []
    assert names(plan_links(CODEC, np.ones(6, dtype=bool), None))[-2:] == ["7", "height"]


def test_an_order_of_the_users_moves_a_category_as_one() -> None:
    specs = plan_links(CODEC, INCOMPLETE, ["height", "species", "width"])
    assert names(specs) == ["height", "species=a", "species=b", "width"]
    assert [w.column for w in specs] == [0, 1, 2, 4]
    everything = plan_links(CODEC, np.ones(6, dtype=bool), [7, "width", "species", "height"])
    assert [w.column for w in everything] == [5, 4, 1, 2, 0]


@pytest.mark.parametrize(
    "order",
    [
        ["height", "species"],
        ["height", "species", "width", 7],
        ["height", "species", "width", "width"],
        ["height", "species=a", "species=b", "species=c", "width"],
        [],
    ],
)
def test_an_order_that_is_no_order_of_the_links_is_refused(order: list[str | int]) -> None:
    sentence = r"order must name each column with a link once: expected \['height', 'species', 'width'\]"
    with pytest.raises(ValueError, match=sentence) as caught:
        plan_links(CODEC, INCOMPLETE, order)
    assert str(caught.value).endswith(f"got {order}")


# ------------------------------------------------------------------------------------------------- the inputs


def test_a_link_sees_everything_but_its_own_variable() -> None:
    inputs = {w.name: w.inputs for w in plan_links(CODEC, np.ones(6, dtype=bool), None)}
    assert inputs == {
        "height": (1, 2, 3, 4, 5),
        "species=a": (0, 4, 5),
        "species=b": (0, 4, 5),
        "width": (0, 1, 2, 3, 5),
        "7": (0, 1, 2, 3, 4),
    }


def test_a_level_has_the_earlier_indicators_in_unless() -> None:
    unless = {w.name: w.unless for w in plan_links(CODEC, np.ones(6, dtype=bool), None)}
    assert unless == {"height": (), "species=a": (), "species=b": (1,), "width": (), "7": ()}


@pytest.mark.parametrize("is_input", [True, False])
def test_a_target_comes_last_sees_every_column_and_may_be_seen(is_input: bool) -> None:
    target = fit_column(pd.Series([1.0, 2.0, 3.0], name="yield"))
    *columns, last = plan_links(CODEC, np.ones(6, dtype=bool), None, target, is_input)
    assert last == LinkSpec("yield", 6, (0, 1, 2, 3, 4, 5))
    assert len(columns) == 5
    assert all((6 in spec.inputs) == is_input for spec in columns)


def test_a_target_named_like_a_column_gets_a_name_of_its_own() -> None:
    target = fit_column(pd.Series([1.0, 2.0, 3.0], name="width"))
    nothing = np.zeros(6, dtype=bool)
    assert plan_links(CODEC, nothing, None, target)[-1].name == "target width"
    both = TableCodec.fit(FRAME.rename(columns={"height": "target width"}))
    assert plan_links(both, nothing, None, target)[-1].name not in both.names


# ----------------------------------------------------------------------------------------- the starting noise


def test_noise_starts_at_four_fifths_of_the_residual_variance_of_a_regression(device: torch.device) -> None:
    generator = np.random.default_rng(0)
    table = generator.standard_normal((50, 4)) @ generator.standard_normal((4, 4))
    table = (table - table.mean(0)) / table.std(0)
    specs = [LinkSpec("c", 2, (0, 1, 3)), LinkSpec("a", 0, (3,))]
    covariance = torch.tensor(np.cov(table.T, ddof=0), device=device)
    residuals = []
    for spec in specs:
        X = np.column_stack([np.ones(50), table[:, spec.inputs]])
        fitted = X @ np.linalg.lstsq(X, table[:, spec.column])[0]
        residuals.append(np.mean((table[:, spec.column] - fitted) ** 2))
    expected = [0.8 * residual for residual in residuals]
    assert starting_noise(covariance, specs) == pytest.approx(expected, rel=1e-9)


# -------------------------------------------------------------------------------------------------- the chain


@pytest.mark.parametrize("train_inducing", [True, False])
def test_build_chain_follows_the_link_specs(train_inducing: bool, device: torch.device) -> None:
    specs = plan_links(CODEC, INCOMPLETE, ["width", "height", "species"])
    inducing = torch.randn(4, 6, dtype=torch.float64, device=device)
    noise = [0.1, 0.2, 0.3, 0.4]
    chain = build_chain(
        specs,
        matern32,
        inducing,
        [Gaussian(variance) for variance in noise],
        train_inducing=train_inducing,
        n_rows=6,
        propagate="latent",
        n_paths=3,
    )
    assert chain.names == ("width", "height", "species=a", "species=b")
    assert [link.column for link in chain.links] == [4, 0, 1, 2]
    for link, spec, variance in zip(chain.links, specs, noise, strict=True):
        assert tuple(link.inputs.tolist()) == spec.inputs
        assert tuple(link.unless) == spec.unless
        assert torch.equal(link.Xu, inducing[:, list(spec.inputs)])
        assert link.likelihood.noise.item() == pytest.approx(variance)
        assert link.Xu_unconstrained.requires_grad is train_inducing
        assert all(p.requires_grad for name, p in link.named_parameters() if "Xu" not in name)
        assert all(p.device.type == device.type for p in link.parameters())
        assert all(p.dtype == torch.float64 for p in link.parameters())
    assert (chain.n_rows, chain.propagate, chain.n_paths) == (6, "latent", 3)
    kernels = {id(link.kernel) for link in chain.links}
    assert len(kernels) == 4


def test_the_links_do_not_share_their_inducing_inputs_with_the_table() -> None:
    inducing = torch.zeros(2, 6).double()
    specs = plan_links(CODEC, INCOMPLETE, None)
    chain = build_chain(specs, matern32, inducing, gaussians(4), train_inducing=True, n_rows=6)
    chain.links[0].Xu_unconstrained.data.fill_(7.0)
    assert not inducing.any()
    assert not chain.links[1].Xu.any()


@pytest.mark.parametrize("labels", [("x", "u_x"), ("a", "filled"), ("rows", "paths"), ("a b", "ä=1.5")])
def test_any_two_labels_make_a_chain_that_can_be_scored(labels: tuple[str, str]) -> None:
    codec = TableCodec.fit(pd.DataFrame(np.arange(6.0).reshape(3, 2), columns=labels))
    specs = plan_links(codec, np.ones(2, dtype=bool), None)
    chain = build_chain(
        specs, matern32, torch.zeros(1, 2).double(), gaussians(2), train_inducing=True, n_rows=3, n_paths=2
    )
    table = torch.zeros(3, 2).double()
    with pyro.settings.context(module_local_params=True):
        loss = TraceMeanField_ELBO().differentiable_loss(chain.model, chain.guide, table, table == 0)
    assert loss.isfinite()


def test_numbers_are_gaussian_and_all_else_has_two_values() -> None:
    frame = pd.DataFrame(
        {
            "yes": [True, False, False, False],
            "side": [2, 7, 7, 2],
            "count": [1, 2, 3, 9],
            "kind": ["a", "b", "c", "c"],
        }
    )
    codec = TableCodec.fit(frame)
    specs = plan_links(codec, np.ones(codec.n_encoded, dtype=bool), ["yes", "side", "count", "kind"])
    found = likelihoods(codec, specs, [0.1] * 5, torch.device("cpu"))
    assert [isinstance(each, Ordinal) for each in found] == [True, True, False, True, True]
    encoded = codec.encode(frame).values
    for likelihood, spec in zip(found, specs, strict=True):
        if isinstance(likelihood, Ordinal):
            np.testing.assert_allclose(likelihood.values, np.unique(encoded[:, spec.column]))
    # Where nothing is known of a row, its values are as frequent as in the table: three in four are not
    # "yes" and not "a", two in three of the others are not "b".
    below = [float(torch.special.ndtr(found[k].thresholds).detach()) for k in (0, 3, 4)]
    assert below == pytest.approx([0.75, 0.75, 2 / 3])
    (category,) = categories(codec, specs, torch.device("cpu"))
    assert (category.links, category.columns) == ((3, 4), (3, 4, 5))


# ----------------------------------------------------------------------------------------------- the sequence


def curved(n_rows: int = 60) -> pd.DataFrame:
    """Return a table with square = root² + noise; columns 0 and 1 are incomplete, 2 and 3 complete."""
    generator = np.random.default_rng(0)
    root = generator.normal(size=n_rows)
    frame = pd.DataFrame(
        {
            "square": root**2 + 0.3 * generator.normal(size=n_rows),
            "root": root,
            "other": generator.normal(size=n_rows),
            "kind": generator.random(n_rows) < 0.5,
        }
    )
    frame.loc[::5, "square"] = np.nan
    frame.loc[1::5, "root"] = np.nan
    return frame


def planned(frame: pd.DataFrame, specs: Any = None, **switches: bool) -> list[str] | None:
    """Return the names of the columns with a link in a sequential chain, in order."""
    codec = TableCodec.fit(frame, False, 0, specs)
    switches = {"every": False, "curved_only": True, **switches}
    plan = sequence_of(codec, codec.encode_cells(frame), frame, specs or {}, **switches)
    return None if plan is None else [codec.names[d] for d in plan.columns]


def test_a_sequence_is_of_incomplete_columns_and_those_behind_the_first_of_them() -> None:
    frame = curved().drop(columns="other")
    assert planned(frame) == ["root", "square"]
    assert planned(frame.assign(square=frame["square"].fillna(1.0))) == ["root", "square"]
    complete_root = frame.assign(root=frame["root"].fillna(0.0))
    assert planned(complete_root) == ["square"]
    assert planned(complete_root, every=True) == ["root", "square"]


def test_whether_all_columns_get_a_link_all_say_whether_the_table_is_curved() -> None:
    complete = curved().dropna()
    assert planned(complete) is None
    assert planned(complete, curved_only=False) == []
    assert planned(complete, every=True) is not None


def test_straight_tables_are_not_in_need_of_a_sequence() -> None:
    straight = curved().assign(square=lambda f: f["root"].fillna(0.0) + f["other"])
    assert planned(straight) is None
    assert planned(straight, curved_only=False) is not None


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(lambda f: pd.concat([f] * 20, ignore_index=True), id="many rows"),
        pytest.param(
            lambda f: f.assign(**{f"more {i}": np.random.default_rng(i).normal(size=60) for i in range(6)}),
            id="many columns",
        ),
        pytest.param(lambda f: f.assign(kind=f["kind"].astype(object).where(f.index % 7 > 0)), id="boolean"),
        pytest.param(lambda f: f.assign(square=f["square"].where(f.index < 30)), id="few complete rows"),
        pytest.param(lambda f: f.assign(square=f["square"].where(f["root"].isna())), id="no complete rows"),
    ],
)
def test_tables_that_do_not_suit(spoilt: Any) -> None:
    assert planned(spoilt(curved()), curved_only=False) is None


def test_twenty_complete_rows_are_enough() -> None:
    frame = curved()
    whole = frame.dropna().index
    frame.loc[whole[20:], "root"] = np.nan
    assert planned(frame, curved_only=False) is not None
    frame.loc[whole[0], "root"] = np.nan
    assert planned(frame, curved_only=False) is None


@pytest.mark.parametrize("spec", [ColumnSpec(predicts=False), ColumnSpec(predictors=("root",))])
def test_columns_that_may_not_predict_each_other_have_no_sequence(spec: ColumnSpec) -> None:
    assert planned(curved(), {"square": spec}, curved_only=False) is None


def test_a_sequential_link_sees_complete_columns_and_earlier_links() -> None:
    codec = TableCodec.fit(curved(), False, 0)
    incomplete = np.array([True, True, False, False])
    specs = plan_links(codec, incomplete, None, sequence=[1, 0])
    assert specs == [LinkSpec("root", 1, (2, 3)), LinkSpec("square", 0, (2, 3, 1))]
    rows = torch.zeros(2, 4).double()
    chain = build_chain(specs, matern32, rows, gaussians(2), sequential=True, train_inducing=False, n_rows=60)
    assert isinstance(chain, SequentialChain)
