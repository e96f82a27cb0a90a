from __future__ import annotations

import pickle
import warnings

import pytest

from pyro_mgp._support.messages import FitWarning, Hinted, dropping, warn_user
from pyro_mgp.cli.messages import sentence


def test_errors_carry_a_hint_per_audience() -> None:
    error = ValueError(dropping("Column 'a b' is entirely missing.", "a b"))
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert str(same) == "Column 'a b' is entirely missing. Drop it: frame.drop(columns=['a b'])."
        assert sentence(same) == "Column 'a b' is entirely missing. Drop it: --drop 'a b'."
    assert sentence(ValueError("without a\nhint")) == "without a hint"
    assert sentence(ValueError()) == ""


def test_warnings_carry_a_hint_per_audience() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_user(Hinted("Too few steps: ", "raise max_steps", shell="raise --steps"), FitWarning)
    (shown,) = caught
    assert isinstance(shown.message, FitWarning)
    assert str(shown.message) == "Too few steps: raise max_steps"
    assert sentence(shown.message) == "Too few steps: raise --steps"


@pytest.mark.parametrize("name", ["x", 3])
def test_the_shell_hint_names_the_column_as_the_shell_takes_it(name: object) -> None:
    assert dropping("Useless.", str(name)).in_shell == f"Useless. Drop it: --drop {name}."
