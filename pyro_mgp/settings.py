"""What the settings of an imputer and of its calls may be."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from pyro_mgp._support.devices import resolve_device
from pyro_mgp.model.chain import Precision, Propagate
from pyro_mgp.model.kernels import resolve_kernel
from pyro_mgp.sampling.initial_fill import FillName
from pyro_mgp.sampling.local_gp import MAX_NEIGHBOURS

if TYPE_CHECKING:
    from pyro_mgp.imputer import MGPImputer

RandomState = int | np.random.RandomState | np.random.Generator | None
"""A seed, a generator to draw one from, or None for one of the system's."""

Inputs = Literal["auto", "others", "earlier"]
"""What links see."""

# Each draw weighs all of them.
_MOST_FEW_VALUES = 1000


def check_settings(imputer: MGPImputer) -> None:
    """That settings can work, before anything is computed.

    Raises:
        ValueError, TypeError: If one cannot; names it, and what was expected.
    """
    for name in ("n_sweeps", "n_paths", "batch_size", "patience"):
        at_least(name, getattr(imputer, name), 1)
    for name in ("n_inducing", "max_steps"):
        if getattr(imputer, name) is not None:
            at_least(name, getattr(imputer, name), 1)
    at_least("n_neighbors", imputer.n_neighbors, 0)
    at_least("discrete_support", imputer.discrete_support, 0)
    if imputer.discrete_support > _MOST_FEW_VALUES:
        raise ValueError(
            f"discrete_support must be at most {_MOST_FEW_VALUES}, got {imputer.discrete_support}"
        )
    if imputer.n_neighbors > MAX_NEIGHBOURS:
        raise ValueError(f"n_neighbors must be at most {MAX_NEIGHBOURS}, got {imputer.n_neighbors}")
    _one_of("propagate", imputer.propagate, get_args(Propagate))
    _one_of("initial_fill", imputer.initial_fill, get_args(FillName))
    _one_of("precision", imputer.precision, get_args(Precision))
    _one_of("columns", imputer.columns, ("incomplete", "all"))
    _one_of("inputs", imputer.inputs, get_args(Inputs))
    if not 0 < _number("learning_rate", imputer.learning_rate) < math.inf:
        raise ValueError(f"learning_rate must be positive and finite, got {imputer.learning_rate}")
    if not 0 <= _number("weight_decay", imputer.weight_decay) <= 1:
        raise ValueError(f"weight_decay must lie between 0 and 1, got {imputer.weight_decay}")
    if not 0 <= _number("validation_fraction", imputer.validation_fraction) <= 0.5:
        raise ValueError(f"validation_fraction must lie between 0 and 0.5, got {imputer.validation_fraction}")
    if imputer.natural_gradient and imputer.backpropagate:
        raise ValueError(
            "natural_gradient=True needs backpropagate=False: steps of size 1 follow each link's own "
            "cells, and diverge when gradients of later links are mixed in"
        )
    if imputer.kernel != "auto":
        resolve_kernel(imputer.kernel)
    resolve_device(imputer.device)


def at_least(name: str, value: int, least: int) -> int:
    """A setting as an integer.

    Raises:
        TypeError: It is none.
        ValueError: It is below `least`.
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an integer, got {value!r}") from error
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def numbers_of(m: int | Sequence[int]) -> Sequence[int]:
    """The numbers of m imputations, or those that were asked for.

    Raises:
        TypeError, ValueError: They are no numbers of imputations.
    """
    if not isinstance(m, Sequence):
        return range(at_least("m, the number of imputations,", m, 1))
    if not m or len(set(m)) < len(m):
        raise ValueError(f"m must be a number, or different numbers of imputations, got {m!r}")
    return [at_least("numbers of imputations", number, 0) for number in m]


def _number(name: str, value: float) -> float:
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def _one_of(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


def seed_of(random_state: RandomState) -> int:
    """One seed that everything is keyed by; no generator but the user's own moves.

    Raises:
        TypeError, ValueError: It is no seed.
    """
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    seed = at_least("random_state", random_state, 0)
    if seed >= 2**63:
        raise ValueError(f"random_state must be below 2**63, got {seed}")
    return seed
