"""Codec of semicontinuous columns: round trips, what counts as a bound, and errors."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyro_mgp.data.codecs import ColumnCodec, codec_from_dict, fit_column
from pyro_mgp.data.codecs.kinds import ContinuousCodec, IntegerCodec
from pyro_mgp.data.codecs.semicontinuous import SemicontinuousCodec, has_common_bound
from pyro_mgp.data.column_spec import ColumnSpec, Kind


def incomes(n: int = 200, share: float = 0.3, *, whole: bool = False, sign: float = 1.0) -> pd.Series:
    """Return log-normal amounts, of which a share is zero, and some are missing."""
    g = np.random.default_rng(1)
    amounts = np.exp(1 + 0.8 * g.normal(size=n))
    amounts = sign * (np.ceil(10 * amounts) if whole else amounts)
    amounts[g.random(n) < share] = 0.0
    amounts[::17] = np.nan
    return pd.Series(amounts, name="income")


def joint(column: pd.Series, kind: str | None = None) -> ColumnCodec:
    return fit_column(column, True, 50, ColumnSpec(kind=kind), joint_density=True)


def test_many_cells_at_a_bound_are_an_indicator_and_amounts() -> None:
    column = incomes()
    codec = joint(column)
    assert isinstance(codec, SemicontinuousCodec) and isinstance(codec.amount, ContinuousCodec)
    assert codec.names == ("income=0", "income>0") and codec.width == 2 and codec.bound == 0
    encoded = codec.encode(column)
    assert np.isnan(encoded[::17]).all()
    at_bound, known = (column == 0).to_numpy(), column.notna().to_numpy()
    assert ((encoded[known, 0] > 0) == at_bound[known]).all()
    assert (encoded[at_bound, 1] == 0).all()
    np.testing.assert_allclose(encoded[known].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(encoded[known, 0].std(), 1)
    np.testing.assert_allclose(encoded[known & ~at_bound, 1].std(), 1)
    assert codec.amount.warp is not None and codec.amount.warp.name == "log"
    np.testing.assert_allclose(codec.decode(encoded[known]), column[known])
    np.testing.assert_allclose(codec.in_own_units(encoded[known]), column[known])
    assert codec_from_dict(json.loads(json.dumps(codec.to_dict()))) == codec


def test_only_joint_densities_have_two_parts() -> None:
    assert fit_column(incomes(), True).kind is Kind.CONTINUOUS
    assert fit_column(incomes(), True, spec=ColumnSpec(kind="semicontinuous")).kind is Kind.CONTINUOUS
    assert joint(incomes(), "continuous").kind is Kind.CONTINUOUS


def test_parts_have_the_kinds_of_a_boolean_and_of_numbers() -> None:
    codec = joint(incomes(whole=True))
    assert isinstance(codec, SemicontinuousCodec) and isinstance(codec.amount, IntegerCodec)
    indicator, amount = codec.parts
    assert (indicator.kind, amount.kind) == (Kind.BOOLEAN, Kind.INTEGER)
    assert indicator.is_binary and not amount.is_binary
    values, shares = indicator.ordinal() or ((), ())
    np.testing.assert_allclose(values, codec.indicator_values)
    np.testing.assert_allclose(shares, [1 - codec.mean[0], codec.mean[0]])


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=20), st.booleans())
def test_whole_amounts_are_drawn_whole_and_beyond_the_bound(numbers: list[float], negative: bool) -> None:
    codec = joint(incomes(whole=True, sign=-1.0 if negative else 1.0))
    assert isinstance(codec, SemicontinuousCodec)
    off, on = codec.indicator_values
    amounts = codec.decode(np.array([[off, number] for number in numbers]))
    assert amounts.dtype == np.int64
    assert (np.abs(amounts) >= 1).all() and (np.sign(amounts) == (-1 if negative else 1)).all()
    assert (codec.decode(np.array([[on, number] for number in numbers])) == 0).all()


def test_the_bound_may_be_the_largest_number() -> None:
    column = 100 - incomes()
    codec = joint(column)
    assert isinstance(codec, SemicontinuousCodec) and codec.bound == 100 == codec.high
    known = column.notna()
    np.testing.assert_allclose(codec.decode(codec.encode(column[known])), column[known])
    beyond = codec.encode(pd.Series([3.0, 100.0, 101.0], name="income"))
    assert beyond[0, 0] < 0 and beyond[1].tolist() == beyond[2].tolist() == [codec.indicator_values[1], 0.0]


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_numbers_in_their_own_units_are_the_bound_where_the_indicator_is_on(share: float) -> None:
    column = incomes(share=share).dropna()
    codec = joint(column)
    np.testing.assert_allclose(codec.in_own_units(codec.encode(column)), column)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("whole", [False, True])
def test_a_mean_stands_for_the_bound_if_it_is_nearer_to_it_than_to_an_amount(
    sign: float, whole: bool
) -> None:
    codec = joint(7 + incomes(whole=whole, sign=sign))
    assert isinstance(codec, SemicontinuousCodec) and codec.amount is not None and codec.bound == 7
    bound, reach = codec.of_means
    warp = codec.amount.warp
    if warp is None:
        centre, spread = codec.amount.mean[0], codec.amount.scale[0]
    else:  # amounts are averaged in the units of the inverse transform
        centre, spread = warp.centre, warp.spread
    assert bound * spread + centre == pytest.approx(7)
    assert reach * abs(spread) == pytest.approx(0.5 if whole else 0.0, abs=1e-12)


def test_a_fit_without_transform_averages_amounts_in_standardised_units() -> None:
    codec = fit_column(incomes(whole=True), False, 50, joint_density=True)
    assert isinstance(codec, SemicontinuousCodec) and codec.amount is not None and codec.amount.warp is None
    amounts = incomes(whole=True)[lambda cells: cells > 0]
    assert codec.of_means == pytest.approx((-amounts.mean() / amounts.std(ddof=0), 0.5 / amounts.std(ddof=0)))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_numbers_of_another_model_move_to_the_bound_or_among_the_amounts(sign: float) -> None:
    codec = joint(incomes(sign=sign))
    assert isinstance(codec, SemicontinuousCodec) and codec.amount is not None
    least, most = sorted([codec.amount.low, codec.amount.high], key=abs)
    numbers = sign * np.array([-0.4, 0.0, 1e-6, 2.5, 1e6])
    numbers = np.append(numbers, [0.7 * least, 0.4 * least])
    moved = codec.in_either_part(numbers)
    np.testing.assert_allclose(moved, [0.0, 0.0, 0.0, sign * 2.5, most, least, 0.0])
    assert np.abs(codec.standardise(moved[:, None])).max() < 5


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([0.0] * 30 + [*np.linspace(1, 5, 70)], True),
        ([0.0] * 9 + [*np.linspace(1, 5, 70)], False),  # few cells
        ([0.0] * 12 + [*np.linspace(1, 5, 400)], False),  # a small share
        ([0.0] * 30 + [1.0] * 16 + [*np.linspace(2, 5, 70)], False),  # another number is common
        ([0.0] * 30 + [1.0, 2.0, 3.0] * 5, False),  # few others
        ([3.0] * 30 + [*np.linspace(1, 5, 70)], False),  # in the middle
        ([5.0] * 30 + [*np.linspace(1, 4, 70)], True),
        # Of counts, those next to zero are compared.
        ([0.0] * 30 + [1.0] * 5 + [2.0] * 9 + [3.0] * 20 + [*np.arange(4.0, 12.0)], True),
        ([0.0] * 30 + [1.0] * 18 + [2.0] * 9 + [3.0] * 10 + [*np.arange(4.0, 12.0)], False),
    ],
)
def test_what_counts_as_a_common_bound(numbers: list[float], expected: bool) -> None:
    assert has_common_bound(np.array(numbers), ColumnSpec()) is expected


def test_counts_have_two_parts_if_zeros_are_too_many() -> None:
    g = np.random.default_rng(0)
    counts = g.negative_binomial(3, 0.3, size=600).astype(float)
    assert joint(pd.Series(counts, name="n")).kind is Kind.COUNT
    counts[g.random(600) < 0.5] = 0
    codec = joint(pd.Series(counts, name="n"))
    assert codec.kind is Kind.SEMICONTINUOUS and codec.names == ("n=0", "n>0")
    assert joint(pd.Series(counts, name="n"), "continuous").kind is Kind.CONTINUOUS


def test_other_numbers_with_a_discrete_support_have_one_part_unless_asked() -> None:
    halves = np.repeat(np.arange(0, 10, 0.5), 10)
    ratings = pd.Series(np.append(halves, np.zeros(60)), name="n")
    assert joint(ratings).kind is Kind.CONTINUOUS
    assert joint(ratings, "semicontinuous").kind is Kind.SEMICONTINUOUS


def test_means_of_whole_amounts_are_not_whole_in_columns_of_floating_point() -> None:
    column = incomes(whole=True)
    for dtype, step in [("float64", 0.25), ("Int64", 1.0)]:
        codec = joint(column.astype(dtype))
        means = np.array([0.0, 3.25, 8.5, 20.0])
        decoded = codec.unrounded.decode(codec.standardise(means[:, None]))
        np.testing.assert_allclose(decoded, (means / step).round() * step, rtol=1e-9)


@pytest.mark.parametrize(("lower", "kind"), [(0.0, Kind.SEMICONTINUOUS), (-1.0, Kind.CONTINUOUS)])
def test_bounds_of_the_spec_say_whether_numbers_may_lie_beyond(lower: float, kind: Kind) -> None:
    spec = ColumnSpec(lower=lower)
    codec = fit_column(incomes(), True, 50, spec, joint_density=True)
    assert codec.kind is kind
    with pytest.raises(ValueError, match=f"numbers of at least {lower:g}"):
        codec.encode(pd.Series([3.0, -2.0], name="income"))
    if lower < 0:
        asked = ColumnSpec(kind="semicontinuous", lower=lower)
        with pytest.raises(ValueError, match="but its spec lets them be -1 as well"):
            fit_column(incomes(), True, 50, asked, joint_density=True)


def test_a_bound_on_the_other_side_is_one_of_the_amounts() -> None:
    spec = ColumnSpec(kind="semicontinuous", lower=0.0, upper=100.0)
    codec = fit_column(100 - incomes(), True, 50, spec, joint_density=True)
    assert isinstance(codec, SemicontinuousCodec) and codec.amount is not None
    assert codec.bound == 100 and codec.amount.limits == (0.0, 100.0)


def test_amounts_like_counts_below_a_common_largest_number_are_integers() -> None:
    counts = np.random.default_rng(0).negative_binomial(3, 0.3, size=400).astype(float)
    codec = joint(pd.Series([*counts, *np.full(150, 60.0)], name="n"))
    assert isinstance(codec, SemicontinuousCodec) and codec.bound == 60
    assert isinstance(codec.amount, IntegerCodec) and codec.amount.support is None


def test_two_cells_at_the_bound_and_two_other_numbers_are_enough() -> None:
    codec = joint(pd.Series([0.0, 0.0, 1.5, 2.5], name="x"), "semicontinuous")
    assert isinstance(codec, SemicontinuousCodec) and codec.mean[0] == 0.5


def test_whole_amounts_take_numbers_between_them_and_the_bound() -> None:
    codec = joint(incomes(whole=True))
    encoded = codec.encode(pd.Series([0.3, 0.7, 1.0, 2.4], name="income"))
    assert ((encoded[:, 0] > 0) == [True, False, False, False]).all()
    assert np.isfinite(encoded).all()


def test_a_column_without_other_numbers_is_an_error() -> None:
    for cells, others in (([0.0, 0.0, 0.0, 2.0, 2.0], "2.0"), ([0.5, 1.0, 2.0, 3.0], "1.0, 2.0, 3.0")):
        needs = (
            rf"'x': kind='semicontinuous' needs several cells that equal .* others are \[{others}\]\. Leave"
        )
        with pytest.raises(ValueError, match=needs):
            joint(pd.Series(cells, name="x"), "semicontinuous")
    with pytest.raises(ValueError, match="labels can be"):
        joint(pd.Series(["a", "b"], name="x"), "semicontinuous")


@pytest.mark.parametrize("field", ["bound", "mean", "scale", "amount"])
def test_saved_fields_that_do_not_fit_together_are_refused(field: str) -> None:
    codec = joint(incomes())
    wrong = {"bound": 3.3, "mean": [1.0, 0.0], "scale": [0.4, 2.0], "amount": None}
    with pytest.raises(ValueError, match=r"'income' does not fit together"):
        codec_from_dict(json.loads(json.dumps(codec.to_dict())) | {field: wrong[field]})
