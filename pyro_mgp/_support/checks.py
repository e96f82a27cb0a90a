"""Checks of arguments that several modules share: integers, numbers of imputations, seeds."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

RandomState = int | np.random.RandomState | np.random.Generator | None
"""A seed, a generator from which a seed is drawn, or None for a seed of the operating system."""


def at_least(name: str, value: int, least: int) -> int:
    """Return a setting as an integer; raise a TypeError for other values, a ValueError below `least`."""
    try:
        integer = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an integer, got {value!r}") from error
    if integer < least:
        raise ValueError(f"{name} must be at least {least}, got {integer}")
    return integer


def numbers_of(m: int | Sequence[int]) -> Sequence[int]:
    """Return the numbers of the imputations to draw: 0 to m - 1, or those given, which must differ."""
    if not isinstance(m, Sequence):
        return range(at_least("m, the number of imputations,", m, 1))
    if not m or len(set(m)) < len(m):
        raise ValueError(f"m must be a number, or different numbers of imputations, got {m!r}")
    return [at_least("numbers of imputations", each, 0) for each in m]


def seed_of(random_state: RandomState) -> int:
    """Return an integer seed, drawn unless it is given; raise a TypeError or ValueError for other values."""
    if random_state is None:
        random_state = np.random.default_rng()
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    seed = at_least("random_state", random_state, 0)
    if seed >= 2**63:
        raise ValueError(f"random_state must be below 2**63, got {seed}")
    return seed


def number(name: str, value: float) -> float:
    """Return a setting as a float; raise a TypeError if it is not a number."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def truth(name: str, value: object) -> None:
    """Raise a TypeError unless a setting is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def within(name: str, value: float, low: float, high: float) -> None:
    """Raise a ValueError unless a number lies between `low` and `high`."""
    if not low <= number(name, value) <= high:
        raise ValueError(f"{name} must lie between {low} and {high}, got {value}")


def one_of(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise a ValueError unless a setting is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


def result_of(what: str, name: str, given: Any, kind: type, columns: Sequence[str] = ()) -> None:
    """Raise a TypeError unless an argument has a type, a ValueError unless it has columns."""
    if not isinstance(given, kind):
        raise TypeError(f"{name} must be {what}, of type {kind.__name__}; got {type(given).__name__}")
    if missing := [each for each in columns if each not in getattr(given, "columns", ())]:
        raise ValueError(f"{name} must be {what}, with the columns {missing}")
