"""One column and its numbers: the kinds and bounds that a spec asks for, times, levels and constants."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from pyro_mgp._support.messages import Hinted
from pyro_mgp.data.codecs import ColumnCodec, codec_from_dict, fit_column
from pyro_mgp.data.codecs.kinds import ContinuousCodec, as_continuous, standardised_errors
from pyro_mgp.data.column_spec import ColumnSpec, Kind
from pyro_mgp.data.limits import Limits
from pyro_mgp.data.transforms import Warp

INF = np.inf


def series(cells: Any, dtype: Any = None, index: Any = None) -> pd.Series[Any]:
    return pd.Series(cells, dtype=dtype, index=index, name="x")


def fit(cells: Any, warp: bool = False, dtype: Any = None, **given: Any) -> ColumnCodec:
    return fit_column(series(cells, dtype), warp, spec=ColumnSpec(**given))


def there_and_back(codec: ColumnCodec, cells: Any) -> list[Any]:
    return list(codec.decode(codec.encode(series(cells))).tolist())


def lognormal(n_rows: int = 300) -> np.ndarray:
    return np.exp(np.random.default_rng(0).normal(size=n_rows))


# ----------------------------------------------------------------------------------------------------- kinds

LEVELS = pd.Categorical(["b", "a", "c", "a"], categories=["c", "a", "b", "never"])
ASKED: list[tuple[Any, str, list[Any]]] = [
    ([0, 3, 1, 7], "count", [0, 7]),
    ([0.0, 3.0, 1.0, 7.0], "count", [0, 7]),
    ([0, 3, 1, 7], "heavy-tailed", [0.0, 7.0]),
    ([0.5, 3.0, 1.0, -7.0], "heavy-tailed", [0.5, -7.0]),
    ([0, 3, 1, 7], "continuous", [0.0, 7.0]),
    ([0.0, 3.0, 1.0, 7.0], "integer", [0, 7]),
    ([0.0, 1.0, 1.0, 0.0], "boolean", [0, 1]),
    ([0, 1, 1, 0], "boolean", [0, 1]),
    ([2, 5, 5, 2], "boolean", [2, 5]),
    ([0.5, 1.5, 1.5, 0.5], "boolean", [0.5, 1.5]),
    ([3, 10, 2, 10], "categorical", [3, 10]),
    ([0.5, 10.0, 2.0, 10.0], "categorical", [0.5, 10.0]),
    ([3, 10, 2, 10], "ordered", [3, 10]),
    (LEVELS, "ordered", ["b", "c"]),
    (LEVELS, "categorical", ["b", "c"]),
]


@pytest.mark.parametrize(("cells", "kind", "some"), ASKED)
def test_a_column_is_of_the_kind_asked_for(cells: Any, kind: str, some: list[Any]) -> None:
    codec = fit(cells, kind=kind)
    assert codec.kind == Kind(kind)
    decoded = there_and_back(codec, some)
    assert decoded == pytest.approx(some)
    assert list(map(type, decoded)) == list(map(type, some))


def test_counts_are_standardised_after_their_logarithm() -> None:
    codec = fit([0, 3, 1, 7], kind="count")
    transformed = np.log1p([0, 3, 1, 7])
    expected = (transformed - transformed.mean()) / transformed.std()
    np.testing.assert_allclose(codec.encode(series([0, 3, 1, 7]))[:, 0], expected, atol=1e-14)
    assert codec.average == 2.75
    assert codec.own_scale[0] == pytest.approx(np.std([0, 3, 1, 7]))
    # Beyond the observed ones, as a distribution of counts goes; its least is zero.
    assert codec.decode([[-9.0], [3.0]]).tolist() == [
        0,
        round(np.expm1(transformed.mean() + 3 * transformed.std())),
    ]


def test_counts_asked_for_end_with_the_largest_exact_one() -> None:
    assert fit([0, 3, 1, 7], kind="count").decode([[1e3]]).tolist() == [2**53]


def test_levels_that_are_numbers_are_decoded_to_numbers() -> None:
    for kind in ("categorical", "ordered"):
        for cells in ([3, 10, 2, 10], [0.5, 10.0, 2.0, 10.0]):
            codec = fit(cells, kind=kind)
            assert codec.decode(codec.encode(series(cells))).dtype == np.array(cells).dtype
    assert fit(LEVELS, kind="ordered").decode([[0.0]]).dtype == object


def test_an_indicator_has_its_frequency_among_cells_without_the_earlier_levels() -> None:
    codec = fit(LEVELS, kind="categorical")  # of c, a and b: one, two and one of four cells
    encoded = codec.encode(series(["c", "a", "b"]))
    for position, unless, share in ((0, (), 1 / 4), (1, (0,), 2 / 3), (1, (), 1 / 2), (2, (0, 1), 1.0)):
        values, shares = codec.ordinal(position, unless) or ((), ())
        np.testing.assert_allclose(shares, [1 - share, share], atol=1e-15)
        np.testing.assert_allclose(values, np.unique(encoded[:, position]))


def test_a_support_is_discrete_if_nine_in_ten_cells_hold_values_that_occur_five_times() -> None:
    repeated = np.repeat([1.5, 2.5, 4.0], 15).tolist()
    others = [5.5, 6.5, 7.5, 8.5, 9.5]
    column = series(repeated + others)
    assert fit_column(column, discrete_support=8).support == (1.5, 2.5, 4.0, *others)
    assert fit_column(column, discrete_support=7).support is None
    assert fit_column(series([*repeated, *others, 9.6]), discrete_support=50).support is None
    ratings = fit_column(series(repeated), discrete_support=3)
    nearest = ratings.decode(ratings.encode(series([1.9, 2.1, 3.4])), to_support=True)
    assert nearest.tolist() == [1.5, 2.5, 4.0]


@pytest.mark.parametrize("values", [(0.0, 1.0), (-1.5, 2.25)])
def test_numbers_of_two_values_that_recur_are_boolean_in_a_joint_density(values: tuple[float, float]) -> None:
    cells = series(np.repeat([*values, np.nan], [7, 13, 5]))
    codec = fit_column(cells, discrete_support=50, joint_density=True)
    assert codec.kind is Kind.BOOLEAN and codec.is_binary
    np.testing.assert_allclose(codec.shares, [0.35, 0.65])
    assert set(codec.decode(np.linspace(-3, 3, 50)[:, None])) == set(values)
    bounds = ColumnSpec(lower=values[0], upper=values[1])
    within = fit_column(cells, discrete_support=50, spec=bounds, joint_density=True)
    assert within.kind is Kind.BOOLEAN


@pytest.mark.parametrize(
    ("cells", "given", "spec"),
    [
        ([0.0, 1.0] * 10, {"discrete_support": 0}, {}),
        ([0.0, 1.0] * 10, {"joint_density": False}, {}),
        ([0.0, 1.0, 1.0], {}, {}),  # too few to tell
        ([0.0, 1.0, 2.0] * 10, {}, {}),
        ([0.0, 1.0] * 10, {}, {"kind": "continuous"}),
        ([0.0, 1.0] * 10, {}, {"upper": 2}),
        ([0.0, 1.0] * 10, {}, {"lower": -1}),
        ([0.0, 1.0] * 10, {}, {"standard_error": "se"}),
    ],
)
def test_numbers_that_may_be_others_are_not_boolean(
    cells: Any, given: dict[str, Any], spec: dict[str, Any]
) -> None:
    given = {"discrete_support": 50, "joint_density": True} | given
    assert fit_column(series(cells), spec=ColumnSpec(**spec), **given).kind is Kind.CONTINUOUS


def test_levels_are_ordered_as_numbers_or_as_their_categories() -> None:
    assert fit([3, 10, 2, 10], kind="ordered").levels == (2, 3, 10)
    codec = fit(LEVELS, kind="ordered")
    assert (codec.levels, codec.shares) == (("c", "a", "b"), (0.25, 0.5, 0.25))
    np.testing.assert_allclose(codec.encode(series(["c", "a", "b"]))[:, 0], codec.ordinal()[0])
    assert codec.decode([[-9.0], [0.0], [9.0]]).tolist() == ["c", "a", "b"]


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ([0, 3, -2], {"kind": "count"}, r"row 2 \(position 2\) holds -2; expected a count"),
    ([0, 2.5, 3], {"kind": "count"}, r"row 1 \(position 1\) holds 2.5; expected a count"),
    ([0, 2.5, 3], {"kind": "integer"}, "holds 2.5; expected whole numbers"),
    ([0, 1, 2, 1], {"kind": "boolean"}, r"row 2 .* holds 2; expected one of two values, \[0.0, 1.0\]"),
    (
        ["low", "high"],
        {"kind": "ordered"},
        r"needs the order of its levels.*pandas.Categorical\(frame\['x'\], .*ordered=True\)",
    ),
    (["a", "b"], {"kind": "count"}, r"labels can be \['categorical', 'ordered', 'group'\], got kind='count'"),
    ([True, False], {"kind": "ordered"}, r"booleans can be \['boolean'\], got kind='ordered'"),
    ([1.0, 2.0], {"kind": "constant"}, "got kind='constant'. Convert the column, or choose another kind"),
    ([1, 2, 3], {"kind": "count", "lower": 0}, "bounds are for .*'integer'.* columns, this is count"),
    (["a", "b"], {"upper": 1}, "this is categorical. Convert the column, or leave out the bounds"),
    ([0.5, -0.1], {"lower": 0}, r"row 1 \(position 1\) holds -0.1; expected numbers of at least 0"),
    ([0.5, 1.0, 1.1], {"upper": 1}, r"row 2 \(position 2\) holds 1.1; expected numbers of at most 1"),
    ([4.0, 4.0], {"upper": 1}, "holds 4.0; expected numbers of at most 1"),
    ([-2, -2], {"kind": "count"}, "holds -2; expected a count"),
    ([1.0, INF], {"kind": "categorical"}, "holds inf; expected finite numbers"),
]


@pytest.mark.parametrize(("cells", "given", "match"), REFUSED, ids=[match[:40] for *_, match in REFUSED])
def test_a_column_that_is_not_what_was_said_is_refused(cells: Any, given: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=rf"Column 'x': .*{match}"):
        fit(cells, **given)


# ---------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("given", "cells", "match"),
    [
        ({"lower": 0, "upper": 9}, [1.0, 9.5], r"row 'q' \(position 1\) holds 9.5; .* at most 9"),
        ({"lower": 0, "upper": 9}, [-1e-9, 1.0], r"row 'p' \(position 0\) holds -1e-09; .* at least 0"),
        ({"kind": "count"}, [1, -1], r"row 'q' \(position 1\) holds -1; expected a count"),
        ({"kind": "count"}, [1, 1.5], r"row 'q' \(position 1\) holds 1.5; expected a count"),
    ],
)
def test_cells_of_new_tables_are_checked_too(given: dict[str, Any], cells: list[float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        fit([1, 2, 4], **given).encode(series(cells, index=["p", "q"]))


@pytest.mark.parametrize(
    ("cells", "given", "transform"),
    [
        (lognormal(), {"lower": 0}, "log"),
        (-lognormal(), {"upper": 0}, "log"),
        (1 / (1 + lognormal() ** 2), {"lower": 0, "upper": 1}, "logit"),
        (np.abs(np.random.default_rng(0).normal(size=300)), {"lower": 0}, "softplus"),
        (5 - np.abs(np.random.default_rng(0).normal(size=300)), {"upper": 5}, "softplus"),
        (lognormal(), {}, "log"),
        (lognormal() - 1, {}, "arcsinh"),
        (lognormal() ** 0.4, {}, "arcsinh"),  # a log gains less than a tenth of a nat per cell
        (np.r_[0.0, lognormal()], {"lower": 0}, "arcsinh"),
    ],
)
def test_a_bend_ends_at_the_bounds_unless_cells_are_there(
    cells: np.ndarray, given: dict[str, Any], transform: str
) -> None:
    codec = fit(cells, warp=True, **given)
    assert codec.warp is not None
    assert codec.warp.name == transform
    np.testing.assert_allclose(there_and_back(codec, cells), cells, rtol=1e-9, atol=1e-12)
    # What the transform keeps, draws need not be told; those of a log end not far from the cells.
    assert (codec.bounds is None) == (transform in ("softplus", "logit") or not given)
    open_ends = {"softplus": np.inf, "log": 3 * np.ptp(cells) + abs(cells).min()}
    open_end = open_ends.get(transform) if given else None
    lower, upper = (
        given.get("lower", -(open_end or -cells.min())),
        given.get("upper", open_end or cells.max()),
    )
    far = codec.decode([[-1e6], [-9.0], [9.0], [1e6]])
    assert ((lower <= far) & (far <= upper)).all()
    if transform == "log" and given:
        end = np.asarray(codec.bounds)[None, 1:]
        farthest = cells.max() + 2 * np.ptp(cells) if "lower" in given else cells.min() - 2 * np.ptp(cells)
        assert codec.decode(end)[0] == pytest.approx(farthest)


def test_ratings_are_no_counts_and_counts_found_do_not_run_away() -> None:
    generator = np.random.default_rng(0)
    health = generator.normal(size=500)
    likert = np.digitize(health + generator.normal(size=500), [0.3, 1.3, 2.0, 2.6])
    rating = np.clip(np.rint(5 + 2 * health + generator.normal(size=500)), 0, 10)
    visits = generator.poisson(np.exp(0.5 + 0.8 * health))
    kinds = [
        fit_column(series(cells.astype(np.int64)), discrete_support=50).kind
        for cells in (likert, rating, visits)
    ]
    assert kinds == [Kind.INTEGER, Kind.INTEGER, Kind.COUNT]
    assert fit_column(series(visits), discrete_support=50).dtype == str(visits.dtype)
    given = ({"predicts": False}, {"lower": 0}, {"kind": "integer"})
    chosen = [fit_column(series(visits), discrete_support=50, spec=ColumnSpec(**each)).kind for each in given]
    assert chosen == [Kind.COUNT, Kind.INTEGER, Kind.INTEGER]
    # Integers of a column with missing cells are floating-point numbers in a file that pandas has read.
    with_holes = series(np.where(generator.random(500) < 0.2, np.nan, visits))
    assert fit_column(with_holes, discrete_support=50).kind is Kind.CONTINUOUS
    assert fit_column(with_holes, discrete_support=50, joint_density=True).kind is Kind.COUNT
    assert fit_column(with_holes + 0.5, discrete_support=50, joint_density=True).kind is Kind.CONTINUOUS
    found, asked = fit_column(series(visits), discrete_support=50), fit(visits, kind="count")
    assert found.decode([[50.0]])[0] == 2 * visits.max()
    assert asked.decode([[50.0]])[0] > 10 * visits.max()


def test_bounds_of_draws_are_in_standardised_units() -> None:
    codec = fit([1.0, 2.0, 3.0, 6.0], lower=0, upper=8)
    low, high = codec.bounds or (INF, INF)
    assert (low, high) == pytest.approx(((0 - 3) / 3.5**0.5, (8 - 3) / 3.5**0.5))
    assert codec.decode([[low], [high], [low - 1], [high + 1]]).tolist() == pytest.approx([0, 8, 0, 8])
    assert fit([1.0, 2.0, 3.0, 6.0], lower=0).bounds == (low, INF)
    assert fit([1.0, 2.0, 3.0, 6.0]).bounds is None
    transformed = fit(np.r_[0.0, lognormal()], warp=True, lower=0)
    assert transformed.bounds is not None
    assert transformed.bounds[0] == pytest.approx(transformed.encode(series([0.0]))[0, 0])


def test_integers_may_be_drawn_up_to_what_rounds_to_a_bound() -> None:
    codec = fit([1, 2, 3, 4, 5], lower=0, upper=7)
    assert codec.bounds == pytest.approx(((-0.5 - 3) / 2**0.5, (7.5 - 3) / 2**0.5))
    assert codec.decode([[-9.0], [9.0]]).tolist() == [0, 7]


def test_integers_stay_within_bounds_that_are_none_themselves() -> None:
    codec = fit([1, 2, 3, 4, 5], lower=0.5, upper=5.5)
    assert codec.decode([[-9.0], [9.0]]).tolist() == [1, 5]


def test_draws_of_a_log_end_on_its_open_side_only() -> None:
    for codec in (fit(lognormal(), warp=True, lower=0), fit(-lognormal(), warp=True, upper=0)):
        low, high = codec.bounds or (0.0, 0.0)
        assert low == -INF and 3 < high < INF


@pytest.mark.parametrize("cells", [[1.0, 2.0, 3.0, 6.0], lognormal()])
def test_a_codec_without_bounds_decodes_any_number(cells: Any) -> None:
    codec = fit(cells, lower=0, upper=1e4)
    free = as_continuous(codec)
    assert isinstance(free, ContinuousCodec) and free.bounds is None
    assert (free.name, free.family, free.dtype) == ("x", "numbers", codec.dtype)
    values = np.array([[-50.0], [0.5], [1e6]])
    np.testing.assert_allclose(free.decode(values), np.mean(cells) + np.std(cells) * values[:, 0])
    np.testing.assert_array_equal(free.encode(series(cells)), codec.encode(series(cells)))


# ------------------------------------------------------------------------------- standard errors and limits


def test_standard_errors_are_those_of_transformed_cells_to_first_order() -> None:
    column, errors = series([*lognormal(), np.nan]), np.full(301, 0.01)
    plain, warped = fit_column(column), fit_column(column, warp=True, spec=ColumnSpec(lower=0))
    np.testing.assert_allclose(standardised_errors(plain, column, errors), 0.01 / np.std(lognormal()))
    assert warped.warp is not None and warped.warp.name == "log"
    found = standardised_errors(warped, column, errors)
    assert found[-1] == pytest.approx(0.01 / warped.scale[0])
    # The standard deviation of the logarithm of a number is that of the number over the number.
    np.testing.assert_allclose(found[:-1], 0.01 / lognormal() / np.std(np.log(lognormal())))
    with pytest.raises(ValueError, match="'x': standard errors are for continuous columns, but this is int"):
        standardised_errors(fit([1, 2, 3]), series([1, 2, 3]), np.ones(3))


@pytest.mark.parametrize("warped", [False, True])
def test_moments_are_the_most_likely_ones_given_limits_of_missing_cells(warped: bool) -> None:
    cells = lognormal(200)
    below = cells < 0.7
    limits = Limits(np.full(200, -INF), np.where(below, 0.7, INF))
    column, spec = series(np.where(below, np.nan, cells)), ColumnSpec(lower=0 if warped else None)
    codec = fit_column(column, warped, spec=spec, limits=limits)
    assert (codec.warp is not None) is warped
    numbers, (end,) = (
        codec.warp.forward(each) if codec.warp is not None else each
        for each in (cells[~below], np.array([0.7]))
    )

    def loss(p: np.ndarray) -> float:
        normal = stats.norm(p[0], np.exp(p[1]))
        return -float(normal.logpdf(numbers).sum() + below.sum() * normal.logcdf(end))

    best = optimize.minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-9})
    assert (codec.mean[0], codec.scale[0]) == pytest.approx((best.x[0], np.exp(best.x[1])), abs=1e-5)
    ends = codec.standardised_limits(limits)
    assert (ends.lower == -INF).all() and (ends.upper[~below] == INF).all()
    np.testing.assert_allclose(ends.upper[below], codec.standardise(np.array([[0.7]]))[0, 0])
    # Draws within limits may lie beyond the observed cells.
    assert codec.has_limits and codec.drawn_range[0] < 0.1 * cells[~below].min()
    assert not codec.has_optional_warp


def test_limits_beyond_the_bound_of_a_log_leave_no_cell() -> None:
    codec = fit(lognormal(), warp=True, lower=0)
    limits = Limits(np.full(3, -INF), np.array([1.0, INF, -2.0]))
    with pytest.raises(
        ValueError, match="one side of 0, as at fit; position 2 is at least -inf and at most -2"
    ):
        codec.standardised_limits(limits)


def test_equal_cells_say_nothing_about_cells_within_limits() -> None:
    limits = Limits(np.full(3, -INF), np.array([INF, INF, 1.0]))
    with pytest.raises(ValueError, match=r"'x': expected observed cells that differ, .* all are 4.5. Drop"):
        fit_column(series([4.5, 4.5, np.nan]), limits=limits)


# --------------------------------------------------------------------------------------- constants and times


@pytest.mark.parametrize(
    ("cells", "given"),
    [
        ([4.5, 4.5], {}),
        ([4, 4], {"kind": "count"}),
        ([4.0, 4.0], {"kind": "heavy-tailed"}),
        ([4, 4], {"kind": "ordered"}),
        ([4, 4], {"kind": "categorical"}),
        ([4.0, 4.0], {"lower": 0}),
        ([True, True], {}),
        ([False, False], {}),
        (["a", "a"], {}),
        (pd.Categorical(["a", "a"], ["b", "a"], ordered=True), {}),
        ([pd.Timestamp("2024-02-28 12:30:00.000001")] * 2, {}),
        ([pd.Timestamp("2024-02-28", tz="Asia/Tokyo")] * 2, {}),
        ([pd.Timedelta(hours=-1.5)] * 2, {}),
    ],
)
def test_a_constant_has_no_numbers_and_comes_back(cells: Any, given: dict[str, Any]) -> None:
    codec = fit(cells, **given)
    assert (codec.kind, codec.width, codec.names) == (Kind.CONSTANT, 0, ())
    assert codec.low == codec.high
    assert codec.encode(series(cells)).shape == (2, 0)
    decoded = pd.Series(codec.decode(np.zeros((3, 0))))
    if isinstance(cells[0], pd.Timestamp) and cells[0].tz is not None:
        decoded = decoded.dt.tz_localize("UTC")
    assert decoded.tolist() == [cells[0]] * 3


@pytest.mark.parametrize(
    ("cells", "unit"),
    [
        (["2024-01-01", "2024-03-05", "1969-07-20"], "D"),
        (["2024-01-01 05:00", "2024-03-05 07:00", "1969-07-20"], "h"),
        (["2024-01-01 05:00", "2024-03-05 07:01", "1969-07-20"], "min"),
        (["2024-01-01 05:00:00", "2024-03-05 07:00:59", "1969-07-20"], "s"),
    ],
)
def test_times_are_multiples_of_the_largest_step_of_the_observed_ones(cells: list[str], unit: str) -> None:
    times = pd.to_datetime(series(cells), format="ISO8601")
    lengths = times - pd.Timestamp("2000-01-01")
    for column in (times, times.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"), lengths):
        codec = fit_column(column)
        assert codec.step == pd.Timedelta(1, unit=unit).total_seconds()
        drawn = codec.decode(np.linspace(-3, 3, 40)[:, None]).astype(np.int64)
        assert (drawn % round(codec.step * 1e6) == 0).all()
        assert len(np.unique(drawn)) == 40


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_durations_take_the_transform_of_numbers_that_are_not_negative(shift: float) -> None:
    halves = np.abs(np.random.default_rng(0).normal(size=300))
    seconds = np.round(3600 * (halves - shift * 2 * halves.min()), 3)
    column = series(pd.to_timedelta(seconds, unit="s"))
    codec, expected = fit_column(column, warp=True), Warp.choose(seconds, None if shift else 0.0)
    assert (codec.warp and codec.warp.name) == (expected and expected.name)
    if not shift:
        assert codec.warp is not None and codec.warp.name == "softplus" and codec.warp.centre == 0
    assert fit_column(column).warp is None


def test_dates_are_drawn_within_the_years_of_four_digits() -> None:
    codec = fit(pd.to_datetime(["2024-01-01", "2024-03-05", "1969-07-20"]))
    drawn = codec.decode([[-1e9], [1e9]]).astype("datetime64[D]").astype(str)
    assert drawn.tolist() == ["0001-01-01", "9999-12-31"]


def test_times_of_parts_of_a_second_are_left_as_they_are() -> None:
    column = series(pd.to_datetime(["2024-01-01", "2024-01-02 00:00:00.000001"], format="ISO8601"))
    codec = fit_column(column)
    assert codec.step == 0
    assert codec.decode(codec.encode(column)).tolist() == column.dt.to_pydatetime().tolist()


def test_days_of_a_place_are_hours_of_the_world() -> None:
    days = series(pd.to_datetime(["2024-01-01", "2024-07-01"]).tz_localize("Europe/Berlin"))
    codec = fit_column(days)
    assert codec.step == 3600
    back = pd.Series(codec.decode(codec.encode(days))).dt.tz_localize("UTC")
    assert back.tolist() == days.tolist()


# ---------------------------------------------------------------------------------------------------- levels


@pytest.mark.parametrize(
    ("cells", "given", "new", "known"),
    [
        (["a", "b", "b"], {}, ["b", "q", None], "b"),
        (LEVELS, {"kind": "ordered"}, ["a", "never", None], "a"),
        ([3, 10, 2], {"kind": "ordered"}, [3.0, 4.0, None], 3),
        ([3, 10, 2], {"kind": "categorical"}, [3.0, 4.0, None], 3),
    ],
)
def test_levels_unseen_at_fit_are_encoded_as_missing(
    cells: Any, given: dict[str, Any], new: list[Any], known: Any
) -> None:
    codec, column = fit(cells, **given), series(new)
    encoded = codec.encode(column)
    assert np.isnan(encoded).all(axis=1).tolist() == [False, True, True]
    assert codec.decode(encoded[:1]).tolist() == [known]


@pytest.mark.parametrize("labels", [["a", "b"], [1, 2], [1.0, 2.0]])
def test_groups_that_are_new_are_numbered_beyond_the_others_by_their_labels(labels: list[Any]) -> None:
    codec = fit([*labels, labels[0]], kind="group")
    new = [f"{label}x" for label in labels] if labels[0] == "a" else [7, 8]
    (first, second), known = codec.encode(series(new))[:, 0], codec.encode(series(labels))[:, 0]
    assert first != second and min(first, second) > known.max()
    np.testing.assert_array_equal(codec.encode(series(new[::-1]))[:, 0], [second, first])
    if labels[0] != "a":
        assert codec.encode(series([7.0]))[0, 0] == codec.encode(series([7]))[0, 0]


# ---------------------------------------------------------------------------------------- for any such column

CODECS = {
    "count": fit([0, 3, 1, 7], kind="count"),
    "heavy-tailed": fit([0.5, 3.0, 1.0, -7.0], kind="heavy-tailed"),
    "integer": fit([1, 2, 3, 4, 5], lower=0, upper=7),
    "between": fit([1.0, 2.0, 3.0, 6.0], lower=0.5, upper=8),
    "above": fit([1.0, 2.0, 3.0, 6.0], lower=0.5),
    "log": fit(lognormal(), warp=True, lower=0),
    "logit": fit(1 / (1 + lognormal() ** 2), warp=True, lower=0, upper=1),
    "arcsinh": fit(np.r_[0.0, lognormal()], warp=True, lower=0),
    "boolean": fit([0.0, 1.0, 1.0], kind="boolean"),
    "ordered": fit(LEVELS, kind="ordered"),
    "ordered integers": fit([3, 10, 2, 10], kind="ordered"),
    "categorical integers": fit([3, 10, 2, 10], kind="categorical"),
    "microseconds": fit(pd.to_datetime(["2024-01-01", "2024-01-02 00:00:00.000001"], format="ISO8601")),
    "days": fit(pd.to_datetime(["2024-01-01", "2024-03-05"])),
    "constant": fit([4, 4], kind="count"),
}


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_survives_json(name: str) -> None:
    codec = CODECS[name]
    again = codec_from_dict(json.loads(json.dumps(codec.to_dict())))
    assert again == codec
    assert again.bounds == codec.bounds
    draws = np.linspace(-2, 2, 5)[:, None].repeat(codec.width, axis=1)
    np.testing.assert_array_equal(again.decode(draws), codec.decode(draws))


@pytest.mark.parametrize(("field", "value"), [("mean", [1e300]), ("scale", [1e-300]), ("high", 1e300)])
def test_a_codec_with_extremes_far_from_its_mean_is_refused(field: str, value: Any) -> None:
    state = json.loads(json.dumps(CODECS["integer"].to_dict())) | {field: value}
    with pytest.raises(ValueError, match="mean and scale"):
        codec_from_dict(state)


@pytest.mark.parametrize("name", ["heavy-tailed", "between", "log", "logit", "count"])
def test_numbers_in_their_own_units_invert_the_standardisation(name: str) -> None:
    codec = CODECS[name]
    numbers = np.linspace(codec.low, codec.high, 9)[1:-1, None]
    np.testing.assert_allclose(codec.in_own_units(codec.standardise(numbers)), numbers[:, 0])


def test_a_codec_without_its_transform_is_that_of_a_fit_without() -> None:
    column = series([*lognormal(), np.nan])
    warped, plain = (fit_column(column, warp, spec=ColumnSpec(lower=0)) for warp in (True, False))
    assert warped.warp is not None and warped.untransformed(column) == plain


@pytest.mark.parametrize(
    ("name", "changes", "wrong"),
    [
        ("boolean", {"shares": [1.0, 0.0]}, "shares"),
        ("boolean", {"shares": [0.2, 0.3, 0.5]}, "shares"),
        ("ordered", {"levels": ["a"], "shares": [1.0], "high": 0.0}, "shares"),
        ("categorical integers", {"mean": [1.5, 0.25, 0.5]}, "mean"),
        ("constant", {"family": "labels"}, "labels"),
        ("days", {"step": -1.0}, "step"),
        ("count", {"most": -1.0}, "most"),
    ],
)
def test_saved_fields_that_do_not_fit_together_are_refused(name: str, changes: Any, wrong: str) -> None:
    state = json.loads(json.dumps(CODECS[name].to_dict()))
    with pytest.raises(ValueError, match=rf"'x' does not fit together: \['{wrong}'"):
        codec_from_dict(state | changes)


def test_a_hundred_levels_survive_json_and_a_codec_without_moments_is_refused() -> None:
    state = json.loads(json.dumps(fit([f"{k:02}" for k in range(100)]).to_dict()))
    assert len(codec_from_dict(state).levels or ()) == 100
    with pytest.raises(ValueError, match="expected at most 100 categories, got 101"):
        fit([f"{k:03}" for k in range(101)])
    empty = {"mean": [], "scale": [], "own_scale": []}
    for codec in (fit([f"{k:02}" for k in range(100)]), CODECS["integer"]):
        with pytest.raises(ValueError, match=r"'x' does not fit together.*width"):
            codec_from_dict(json.loads(json.dumps(codec.to_dict())) | empty)


def test_levels_that_no_file_can_hold_are_refused_with_their_type() -> None:
    with pytest.raises(TypeError, match=r"got \(1, 2\) \(tuple\). Rename them: frame\['x'\].cat.rename"):
        fit(pd.Categorical([(1, 2), "b"], categories=pd.Index([(1, 2), "b"], tupleize_cols=False)))


def test_messages_about_infinite_cells_advise_in_python_and_in_the_shell() -> None:
    with pytest.raises(ValueError, match=r"frame.replace\(\[np.inf, -np.inf\], np.nan\)") as caught:
        fit([1.0, INF])
    message = caught.value.args[0]
    assert isinstance(message, Hinted) and message.in_shell.endswith("Correct the cell, or leave it empty.")


BOUNDED = ("integer", "between", "above", "log", "logit", "arcsinh")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6) | st.floats(-4, 4), min_size=3, max_size=3))
def test_whatever_is_drawn_is_a_cell_that_may_be(draws: list[float]) -> None:
    numbers = np.array(draws)
    cells = {name: codec.decode(numbers[:, None]) for name, codec in CODECS.items() if codec.width == 1}
    for name in BOUNDED:
        lower, upper = CODECS[name].lower, CODECS[name].upper
        assert (cells[name] >= lower).all()
        assert (cells[name] <= (INF if upper is None else upper)).all()
    assert (cells["count"] >= 0).all()
    assert cells["count"].dtype == cells["integer"].dtype == np.int64
    assert np.isin(cells["boolean"], [0, 1]).all()
    assert set(cells["ordered"]) <= {"c", "a", "b"}
    assert np.isin(cells["ordered integers"], [2, 3, 10]).all()
    assert CODECS["categorical integers"].decode(numbers) in (2, 3, 10)
    # And so each may be read again.
    for name in (*BOUNDED, "count"):
        assert np.isfinite(CODECS[name].encode(series(cells[name]))).all()


def test_lengths_of_time_are_drawn_negative_only_if_some_were() -> None:
    hours = pd.Series(pd.to_timedelta(np.round(lognormal(), 3), unit="h"), name="x")
    for cells, negative in ((hours, False), (hours - pd.Timedelta(hours=1), True)):
        for warp in (False, True):
            codec = fit_column(cells, warp=warp)
            drawn = codec.decode(np.linspace(-4, 4, 50)[:, None])
            assert (drawn.min() < np.timedelta64(0, "us")) == negative
            np.testing.assert_allclose(
                codec.decode(codec.encode(cells)).astype("int64"),
                cells.astype("timedelta64[us]").astype("int64"),
                atol=1,
            )


def test_numbers_of_floating_point_are_drawn_whole_if_all_that_were_observed_are() -> None:
    weights = pd.Series(np.random.default_rng(0).normal(3000, 500, 80).round(), name="x")
    scores = np.linspace(-3, 3, 30)[:, None]
    drawn = fit_column(weights, discrete_support=50).decode(scores)
    assert drawn.dtype == np.float64
    np.testing.assert_array_equal(drawn, drawn.round())
    np.testing.assert_allclose(drawn, weights.mean() + scores[:, 0] * weights.std(ddof=0), atol=0.5)
    for cells in (weights[:49], weights.where(weights.index > 0, 2999.5)):
        assert (fit_column(cells, discrete_support=50).decode(scores) % 1 > 0).any()
    assert (
        fit_column(weights, discrete_support=0).decode(scores) % 1 > 0
    ).any()  # continuous draws on request
    bounded = fit_column(weights, discrete_support=50, spec=ColumnSpec(lower=1000.5, upper=4999.5))
    assert set(bounded.decode(np.array([[-99.0], [99.0]])).tolist()) == {1001, 4999}


def test_means_of_whole_numbers_are_not_whole_in_columns_of_floating_point() -> None:
    whole = pd.Series(np.random.default_rng(0).normal(0, 5, 80).round(), name="x")
    codec = fit_column(whole, discrete_support=50)
    scores = np.linspace(-2, 2, 30)[:, None]
    means = whole.mean() + scores[:, 0] * whole.std(ddof=0)
    np.testing.assert_allclose(codec.unrounded.decode(scores), means)
    integers = fit_column(whole.astype("Int64"), discrete_support=50)
    assert integers.unrounded.decode(scores).dtype == np.int64


@pytest.mark.parametrize(("dtype", "is_drawn"), [("float64", False), ("Int64", True), ("boolean", True)])
def test_means_of_two_values_lie_between_them_in_columns_of_floating_point(
    dtype: str, is_drawn: bool
) -> None:
    codec = fit([0, 1, 1, 1, None], kind="boolean", dtype=dtype)
    means = np.array([[0.3], [0.8], [0.0], [1.0]])
    decoded = codec.unrounded.decode(codec.standardise(means))
    np.testing.assert_allclose(decoded.astype(float), means.round()[:, 0] if is_drawn else means[:, 0])
    assert codec.decode(codec.standardise(means)).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("dtype", "is_whole"), [("float64", False), ("Int64", True), ("object", True)])
def test_means_of_counts_are_not_whole_in_columns_of_floating_point(dtype: str, is_whole: bool) -> None:
    means = np.array([[0.3], [1.6], [99.0]])
    codec = fit([0, 3, 1, 7], kind="count", dtype=dtype)
    decoded = codec.unrounded.decode(codec.standardise(means))
    np.testing.assert_allclose(decoded, means.round()[:, 0] if is_whole else means[:, 0])
    assert codec.decode(codec.standardise(means)).tolist() == [0, 2, 99]


def test_draws_of_whole_numbers_have_no_negative_zero() -> None:
    codec = fit_column(series(np.arange(-40.0, 40.0)), discrete_support=50)
    drawn = codec.decode(codec.standardise(np.array([[-0.3], [0.3]])))
    assert drawn.tolist() == [0, 0] and not np.signbit(drawn).any()
