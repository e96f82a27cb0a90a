"""Tables of these tests have few rows and iterations: their chains do not mix, which `test_mixing` tests."""

import pytest

from pyro_mgp.results.mixing import Mixing


@pytest.fixture(autouse=True)
def no_warnings_of_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mixing, "warn", lambda self: None)
