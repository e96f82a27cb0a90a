"""Folders that older versions of the package wrote."""

from __future__ import annotations

from pathlib import Path

from pyro_mgp import Imputations, MGPImputer

OLD = Path(__file__).parent / "saved" / "version_7"


def test_what_version_7_wrote_is_read_and_draws_the_same() -> None:
    draws = Imputations.load(OLD / "draws")
    again = MGPImputer.load(OLD / "imputer").impute(draws.frame, m=draws.m)
    assert again == draws
