"""Transforms of columns with long tails."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_mgp.data.codecs import codec_from_dict, fit_column
from pyro_mgp.data.table import TableCodec
from pyro_mgp.data.transforms import InverseTransform, Warp
from pyro_mgp.imputer import MGPImputer


def lognormal(n_rows: int = 500, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(size=n_rows))


@pytest.mark.parametrize("n_rows", [30, 300, 3000])
@pytest.mark.parametrize("draw", ["normal", "uniform"])
def test_columns_without_tails_stay_straight(draw: str, n_rows: int) -> None:
    cells = getattr(np.random.default_rng(n_rows), draw)(size=n_rows)
    assert Warp.choose(cells) is None


@pytest.mark.parametrize("cells", [lognormal(), -lognormal(), np.random.default_rng(0).standard_t(2, 500)])
def test_columns_with_tails_are_bent_towards_a_normal(cells: np.ndarray) -> None:
    warp = Warp.choose(cells)
    assert warp is not None
    kurtosis = pd.Series(warp.forward(cells)).kurt()
    assert abs(kurtosis) < 0.3 * pd.Series(cells).kurt()


def test_amounts_of_which_a_few_are_zero_are_bent_about_zero() -> None:
    """About the median arcsinh is nearly linear where most of them are."""
    amounts = np.round(3 * lognormal())
    assert 0 < (amounts == 0).mean() < 0.1
    for bounds in ((), (0.0,)):
        warp = Warp.choose(amounts, *bounds)
        assert warp is not None
        assert (warp.name, warp.centre) == ("arcsinh", 0.0)
        assert abs(pd.Series(warp.forward(amounts)).skew()) < 0.5
    # Many zeros are not the lower tail of the others.
    mostly_zero = np.where(np.arange(500) % 2, amounts, 0.0)
    chosen = Warp.choose(mostly_zero)
    assert chosen is not None
    assert chosen.spread > 5 * warp.spread


def test_two_values_cannot_be_bent() -> None:
    assert Warp.choose(np.r_[np.zeros(997), np.ones(3)]) is None


def test_a_column_of_mostly_one_value_has_a_spread() -> None:
    warp = Warp.choose(np.r_[np.zeros(900), lognormal(100)])
    assert warp is not None
    assert warp.spread > 0


@given(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_backward_undoes_forward(raw: float, centre: float, spread: float) -> None:
    warp = Warp(centre, spread)
    cells = np.array([raw])
    np.testing.assert_allclose(warp.backward(warp.forward(cells)), cells, rtol=1e-9, atol=1e-9 * spread)


def test_a_draw_far_out_is_still_a_number() -> None:
    assert np.isfinite(Warp(0.0, 1.0).backward(np.array([-1e9, 1e9]))).all()


def test_log_slope_is_the_logarithm_of_the_derivative() -> None:
    warp, cells, step = Warp(0.3, 2.0), np.linspace(-20, 30, 11), 1e-5
    slope = (warp.forward(cells + step) - warp.forward(cells - step)) / (2 * step)
    np.testing.assert_allclose(warp.log_slope(cells), np.log(slope), rtol=1e-6)


BENDS = [
    Warp(-1.0, 2.0, "log"),
    Warp(4.0, -2.0, "log"),
    Warp(-1.0, 0.5, "softplus"),
    Warp(4.0, -3.0, "softplus"),
    Warp(-1.0, 5.0, "logit"),
]


@pytest.mark.parametrize("warp", BENDS, ids=str)
def test_bends_of_bounded_columns_come_back_with_the_slope_they_state(warp: Warp) -> None:
    cells, step = np.linspace(-0.9, 3.9, 13), 1e-6
    transformed = warp.forward(cells)
    np.testing.assert_allclose(warp.backward(transformed), cells, rtol=1e-9)
    slope = (warp.forward(cells + step) - warp.forward(cells - step)) / (2 * step)
    np.testing.assert_allclose(warp.log_slope(cells), np.log(np.abs(slope)), rtol=1e-5, atol=1e-6)
    inverse = InverseTransform(0.3, 2.0, -1e9, 1e9, warp.name)
    z = torch.as_tensor((transformed - 0.3) / 2.0)
    np.testing.assert_allclose(inverse(z) * warp.spread + warp.centre, cells, rtol=1e-9)
    torch.testing.assert_close(inverse.standardise(inverse(z)), z)
    far = warp.backward(np.array([-50.0, 50.0]))
    assert np.isfinite(far).all()
    assert (far >= -1).all() if warp.spread > 0 else (far <= 4).all()


@pytest.mark.parametrize(("cells", "zero"), [(lognormal(), 0.0), (lognormal() - 20, 32.0)])
def test_the_choice_and_the_bent_cells_follow_the_units(cells: np.ndarray, zero: float) -> None:
    """Amounts keep their zero, other columns may have another one."""
    warp, other = Warp.choose(cells), Warp.choose(zero + 1.8 * cells)
    assert warp is not None
    assert other is not None
    assert (warp.name == "log") == (zero == 0)
    np.testing.assert_allclose(other.forward(zero + 1.8 * cells), warp.forward(cells), rtol=1e-9, atol=1e-12)


def test_a_bent_column_comes_back_and_stays_in_its_range() -> None:
    column = pd.Series(lognormal() - 1, name="price")
    codec = fit_column(column, warp=True)
    assert codec.warp is not None
    encoded = codec.encode(column)
    assert encoded.mean() == pytest.approx(0, abs=1e-12)
    assert encoded.std() == pytest.approx(1)
    np.testing.assert_allclose(codec.decode(encoded), column, rtol=1e-12)
    assert codec.decode([[50.0]]) == column.max()
    assert codec.decode([[-50.0]]) == column.min()
    assert codec.own_scale[0] == pytest.approx(column.std(ddof=0))


def test_a_bent_column_of_integers_gives_integers() -> None:
    column = pd.Series((10 * lognormal()).astype(int), name="visits")
    codec = fit_column(column, warp=True)
    assert codec.warp is not None
    decoded = codec.decode(codec.encode(column))
    assert decoded.dtype == np.int64
    np.testing.assert_array_equal(decoded, column)


def test_the_bend_survives_being_written_down() -> None:
    frame = pd.DataFrame({"a": lognormal(), "b": np.arange(500.0), "c": ["x", "y"] * 250})
    codec = TableCodec.fit(frame, warp=True)
    assert [column.warp is None for column in codec.columns] == [False, True, True]
    states = json.loads(json.dumps([column.to_dict() for column in codec.columns]))
    assert tuple(map(codec_from_dict, states)) == codec.columns


def test_the_order_of_the_rows_does_not_change_a_bit() -> None:
    cells = np.r_[np.zeros(950), lognormal(50)]
    generator = np.random.default_rng(1)
    assert len({Warp.choose(generator.permutation(cells)) for _ in range(30)}) == 1


def test_inverse_transform_is_linear_in_the_cells_and_standardises_back() -> None:
    column = pd.Series(lognormal(), name="price")
    codec = fit_column(column, warp=True)
    inverse = codec.inverse_transform
    assert inverse is not None
    encoded = torch.as_tensor(codec.encode(column)[:, 0])
    numbers = inverse(encoded)
    assert np.corrcoef(numbers.numpy(), column)[0, 1] == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(inverse.standardise(numbers), encoded)
    far = inverse(torch.tensor([-50.0, 50.0]).double())
    torch.testing.assert_close(far, torch.stack([numbers.min(), numbers.max()]))
    even = fit_column(pd.Series(np.arange(9.0), name="even"), warp=True)
    assert even.inverse_transform is None


def test_a_bent_cell_is_filled_at_the_mean_of_its_draws_not_at_their_median() -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(size=400)
    price = pd.Series(np.exp(0.5 * x + 1.2 * generator.normal(size=400)))
    frame = pd.DataFrame({"x": x, "price": price.where(generator.random(400) < 0.8)})
    fitted = MGPImputer(random_state=0, n_neighbors=0, progress=False).fit(frame)
    assert fitted.codec_.columns[1].warp is not None
    draws = fitted.impute(m=1000).values["price"]
    filled = fitted.transform(frame)["price"][frame["price"].isna()].to_numpy()
    assert filled.mean() == pytest.approx(draws.mean(), rel=0.05)
    assert filled.mean() > 1.15 * np.median(draws, axis=0).mean()
