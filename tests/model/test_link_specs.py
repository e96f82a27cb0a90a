"""Link specifications of a table: their order and inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from linked_table import CODEC, FRAME, INCOMPLETE, names

from pyro_mgp.data.codecs import fit_column
from pyro_mgp.data.column_spec import ColumnSpec
from pyro_mgp.data.table import TableCodec
from pyro_mgp.model.build import build_chain, products_of
from pyro_mgp.model.kernels import matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link_specs import (
    LinkSpec,
    best_plan,
    evidence_of,
    log_evidence,
    plan_links,
    plan_sequence,
    recoded,
    rival_sequence,
    rows_in_kernels,
    rows_of_training,
    symmetrised_gain,
    with_level_orders,
    with_product_inputs,
)
from pyro_mgp.model.sequential_chain import SequentialChain


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
    hint = '. Complete columns have one with inputs="earlier" only' if 7 in order else ""
    assert str(caught.value).endswith(f"got {order}{hint}")


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


def test_links_of_levels_follow_the_order_that_observed_rows_show() -> None:
    x = np.linspace(-3, 3, 90)
    stage = np.array(["first", "among", "third"])[np.digitize(x, [-1, 1])]
    frame = pd.DataFrame({"x": x, "stage": stage, "on": np.arange(90) % 2 == 0})
    codec = TableCodec.fit(frame)
    links = plan_links(codec, np.ones(codec.n_encoded, dtype=bool), None, sequence=[4, 0, 1, 2, 3])
    assert names(links) == ["on", "x", "stage=among", "stage=first"]
    table = codec.encode_cells(frame)
    found = with_level_orders(codec, links, table.values, table.observed)
    assert found[:2] == links[:2]
    assert found[2].name != "stage=among"  # which is told from both others by no linear function
    assert found[3].unless == (found[2].column,)
    assert {link.inputs for link in found[2:]} == {links[2].inputs}
    assert [codec.names[link.column] for link in found] == names(found)
    # Where "first" is not known, "among" is at an end, and the order of the table tells as much as another.
    observed = table.observed.clone()
    observed[:30, 1:4] = False
    assert names(with_level_orders(codec, links, table.values, observed)) == names(links)


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


def planned(frame: pd.DataFrame, every: bool = False) -> list[str]:
    """Return the names of the columns with a link in a sequential chain, in order."""
    codec = TableCodec.fit(frame, False, 0)
    observed = codec.encode_cells(frame).observed
    evidence = evidence_of(codec, codec.encode_cells(complete_version()[frame.columns]).values[None])
    return [codec.names[d] for d in plan_sequence(codec, evidence, ~observed.all(0).numpy(), every)]


def complete_version(n_rows: int = 60) -> pd.DataFrame:
    """Return the table of `curved` before cells were removed."""
    generator = np.random.default_rng(0)
    root = generator.normal(size=n_rows)
    square = root**2 + 0.3 * generator.normal(size=n_rows)
    other = generator.normal(size=n_rows)
    return pd.DataFrame(
        {"square": square, "root": root, "other": other, "kind": generator.random(n_rows) < 0.5}
    )


def test_a_sequence_is_of_incomplete_columns_and_those_behind_the_first_of_them() -> None:
    frame, complete = curved(), complete_version()
    assert planned(frame) == ["root", "square"]
    # A complete outcome comes late, with a link, if the columns that it depends on are incomplete.
    assert planned(frame.assign(square=complete["square"])) == ["root", "square"]
    complete_root = frame.assign(root=complete["root"])
    assert planned(complete_root) == ["square"]
    assert set(planned(complete_root, every=True)) == {"root", "square", "other", "kind"}


def test_a_plan_stays_unless_another_is_clearly_better() -> None:
    noise = np.random.default_rng(1).normal(size=60)
    frame = complete_version().assign(skewed=lambda f: np.exp(f["root"] + noise))
    codecs = [TableCodec.fit(frame, warp, 0) for warp in (True, False)]
    rows, every = codecs[0].encode_cells(frame).values[None], np.ones(codecs[0].n_encoded, dtype=bool)
    number, sequence = best_plan(codecs, rows, 0, [], every, every=False)
    assert number == 0  # the exponential of a normal variable needs its transform
    assert best_plan(codecs, rows, 0, sequence, every, every=False) == (0, sequence)
    backwards = sequence[::-1]
    assert best_plan(codecs, rows, 0, backwards, every, every=False) != (0, backwards)


def test_tables_without_missing_cells_have_an_empty_sequence() -> None:
    assert planned(complete_version()) == []
    assert len(planned(complete_version(), every=True)) == 4


def test_the_evidence_is_in_units_of_the_columns() -> None:
    """In units a thousand times as large, each cell of a column has a thousand times the density."""
    frame = complete_version()
    thousands = frame.assign(square=frame["square"] / 1000)
    codecs = [TableCodec.fit(each, False, 0) for each in (frame, thousands)]
    pairs = zip(codecs, (frame, thousands), strict=True)
    rows = [codec.encode_cells(each).values[None] for codec, each in pairs]
    evidence = [
        log_evidence(codec, evidence_of(codec, own), own, [1, 0])
        for codec, own in zip(codecs, rows, strict=True)
    ]
    assert evidence[1] - evidence[0] == pytest.approx(60 * np.log(1000))


def test_rows_are_recoded_without_a_transform_and_back() -> None:
    frame = complete_version().assign(skewed=lambda f: np.exp(2 * f["root"]))
    straight, transformed = (TableCodec.fit(frame, warp, 0) for warp in (False, True))
    assert any(column.warp is not None for column in transformed.columns)
    expected = straight.encode_cells(frame).values
    found = recoded(transformed, straight, transformed.encode_cells(frame).values)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(recoded(straight, transformed, found), transformed.encode_cells(frame).values)


def test_completed_numbers_become_the_nearer_one_of_two_values() -> None:
    frame = pd.DataFrame({"x": [2.0, 5.0, 5.0, 5.0, 2.0] * 4, "y": np.arange(20.0)})
    codec = TableCodec.fit(frame, False, 50)
    other, _ = codec.for_joint_density(frame, codec.encode_cells(frame), False, 50, {})
    cells = np.array([[-9.0], [3.4], [3.6], [99.0]])
    rows = torch.as_tensor(np.hstack([codec.columns[0].standardise(cells), cells]))
    found = recoded(codec, other, rows)
    assert other.columns[0].decode(found[:, :1].numpy()).tolist() == [2, 2, 5, 5]
    ends = other.columns[0].standardise(np.array([[2.0], [2.0], [5.0], [5.0]]))
    np.testing.assert_allclose(found[:, :1], ends)


def test_an_outcome_of_a_curve_has_a_rival_order_and_of_a_line_has_none() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 2))
    noise = generator.normal(size=300)
    frames = [
        pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": mean + noise})
        for mean in (x.sum(1), x[:, 0] + 0.5 * x.prod(1))
    ]
    codecs = [TableCodec.fit(frame, False, 0) for frame in frames]
    line, product = (c.encode_cells(f).values[None] for c, f in zip(codecs, frames, strict=True))
    assert rival_sequence(codecs[0], line, [0, 1]) is None
    assert rival_sequence(codecs[1], product, [0, 1]) == [0, 1, 2]
    assert rival_sequence(codecs[1], product, [0, 2, 1]) == [0, 1, 2]
    assert rival_sequence(codecs[1], product, [1, 0, 2]) is None
    gain = symmetrised_gain(codecs[1], [product, product], [[0, 1], [0, 1, 2]])
    assert gain > 10
    assert symmetrised_gain(codecs[1], [product, product], [[0, 1, 2], [0, 1]]) == pytest.approx(-gain)
    # The mean of what draws under either order say.
    alone = [symmetrised_gain(codecs[1], [rows, rows], [[0, 1], [0, 1, 2]]) for rows in (product, line)]
    mixed = symmetrised_gain(codecs[1], [product, line], [[0, 1], [0, 1, 2]])
    assert mixed == pytest.approx(sum(alone) / 2)


def test_counts_come_after_the_columns_on_which_their_logarithm_depends() -> None:
    generator = np.random.default_rng(0)
    x, treated = generator.normal(size=500), generator.random(500) < 0.5
    visits = generator.poisson(np.exp(0.3 + 0.4 * x + 0.4 * x * treated))
    frame = pd.DataFrame({"x": x, "treated": treated, "visits": visits})
    codec = TableCodec.fit(frame, True, 50)
    rows = codec.encode_cells(frame).values[None]
    assert [column.kind for column in codec.columns] == ["continuous", "boolean", "count"]
    assert symmetrised_gain(codec, [rows, rows], [[2, 0, 1], [0, 1, 2]]) > 10


def test_counts_come_first_where_the_evidence_does_not_tell() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"x": 0.1 * generator.normal(size=300), "visits": generator.poisson(2, 300)})
    codec = TableCodec.fit(frame, False, 50)
    evidence = evidence_of(codec, codec.encode_cells(frame).values[None])
    assert abs(evidence.of_order([0, 1]) - evidence.of_order([1, 0])) < 1
    assert plan_sequence(codec, evidence, np.ones(2, dtype=bool), False) == [1, 0]


def test_products_of_binary_columns_and_those_of_counts() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"x": generator.normal(size=50), "z": generator.normal(size=50)})
    frame["on"], frame["visits"] = generator.random(50) < 0.5, generator.poisson(3, 50)
    codec = TableCodec.fit(frame, False, 50)
    links = plan_links(codec, np.ones(4, dtype=bool), None, sequence=[0, 1, 2, 3])
    x, z, on, visits = products_of(codec, links)
    assert (x, z, on) == ([], [(0, 0)], [(0, 0), (0, 1), (1, 1)])
    assert visits == [(0, 1), (0, 2), (1, 2)]  # no squares


def test_links_with_many_inputs_have_products_of_the_best() -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(300, 18))
    frame = pd.DataFrame(x).add_prefix("x").assign(y=x[:, 3] * x[:, 17] + 0.3 * generator.normal(size=300))
    codec = TableCodec.fit(frame, False, 0, {})
    table = codec.encode_cells(frame)
    few, many = plan_links(codec, np.ones(19, dtype=bool), None, sequence=range(19))[-5::4]
    found = with_product_inputs(codec, [few, many], table.values)
    assert found[0] == few  # 14 inputs
    assert found[0].product_inputs is None
    assert replace(found[1], product_inputs=None) == many
    best = found[1].product_inputs
    assert best is not None
    assert {3, 17} <= set(best)
    assert len(best) == 15
    pairs = products_of(codec, found)[1]
    assert len(pairs) == 120
    assert {i for pair in pairs for i in pair} == set(best)  # inputs are columns 0 to 17


@pytest.mark.parametrize("spec", [ColumnSpec(predicts=False), ColumnSpec(predictors=("other",))])
def test_a_sequence_respects_which_columns_may_predict_which(spec: ColumnSpec) -> None:
    codec = TableCodec.fit(curved(), False, 0)
    label = "root" if not spec.predicts else "square"
    incomplete = np.array([True, True, False, False])
    links = plan_links(codec, incomplete, None, specs={label: spec}, sequence=[1, 0])
    assert [link.inputs for link in links] == [(2, 3), (2, 3) if not spec.predicts else (2,)]


def test_a_sequential_link_sees_complete_columns_and_earlier_links() -> None:
    codec = TableCodec.fit(curved(), False, 0)
    incomplete = np.array([True, True, False, False])
    specs = plan_links(codec, incomplete, None, sequence=[1, 0])
    assert specs == [LinkSpec("root", 1, (2, 3)), LinkSpec("square", 0, (1, 2, 3))]
    rows = torch.zeros(2, 4).double()
    chain = build_chain(
        specs,
        matern32,
        rows,
        [Gaussian(0.5), Gaussian(0.5)],
        sequential=True,
        train_inducing=False,
        n_rows=60,
    )
    assert isinstance(chain, SequentialChain)


def test_draws_become_counts_that_exist() -> None:
    visits = np.random.default_rng(0).poisson(3, 400).astype(float)
    frame = pd.DataFrame({"visits": visits, "x": -visits})
    codec = TableCodec.fit(frame, True, 50)
    table = codec.encode_cells(frame)
    other, encoded = codec.for_joint_density(frame, table, True, 50, {})
    torch.testing.assert_close(recoded(codec, other, table.values), encoded.values)
    drawn = table.values[:3].clone()
    drawn[:, :1] = torch.as_tensor(codec.columns[0].standardise(np.array([[-0.6], [2.4], [1e6]])))
    counts = recoded(codec, other, drawn)[:, 0].numpy() * other.columns[0].scale[0] + other.columns[0].mean[0]
    np.testing.assert_allclose(np.expm1(counts), [0, 2, 2 * visits.max()], atol=1e-9)


def test_rows_that_train_kernels_have_all_values_of_columns_of_few() -> None:
    frame = pd.DataFrame({"group": np.arange(800) // 2, "y": np.random.default_rng(0).normal(size=800)})
    codec = TableCodec.fit(frame, specs={"group": ColumnSpec(kind="group")})
    table = codec.encode(frame)
    some = rows_of_training(codec, table)
    assert some is not None and len(some) == 500
    # A random part: neither the first groups, nor every second one.
    groups = np.unique(frame["group"][some.numpy()])
    assert 180 < np.median(groups) < 220 and 100 < (groups % 2).sum() < 150
    rare = table.values.clone()
    rare[:, 1] = 1.0 - rows_in_kernels(codec, rare).double()
    assert rows_of_training(codec, replace(table, values=rare)) is None
