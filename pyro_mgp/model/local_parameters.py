"""Pyro modules whose parameters stay in the module, outside Pyro's global parameter store.

The store is one per process: two chains would share parameters of the same names there, and the second would
silently train nothing. Modules of this package are `LocalModule`s; methods of theirs that Pyro or a caller
enters are `local_method`s.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyro
import torch
from pyro.distributions import TorchDistribution
from pyro.nn import PyroModule, PyroParam, pyro_method
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn
from torch.distributions import transform_to

# Draws whose median is that of a prior.
_DRAWS = 1001

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound=PyroModule)


@contextmanager
def local_parameters() -> Iterator[None]:
    """Enter a context in which Pyro modules are built and run without the global parameter store."""
    # Pyro empties the store while such a module runs. When it puts the parameters back, such as those of an
    # automatic guide, they have lost the reference by which `SVI` finds the tensors to train.
    kept = [(parameter, vars(parameter).copy()) for _, parameter in pyro.get_param_store().named_parameters()]
    try:
        with pyro.settings.context(module_local_params=True):
            yield
    finally:
        for parameter, attributes in kept:
            vars(parameter).update(attributes)


class LocalModule(PyroModule):
    """Pyro module that uses its own parameters and never the global store."""

    def __init__(self) -> None:
        # The setting at construction decides where the parameters of a tree of modules are stored.
        with local_parameters():
            super().__init__()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` on the module's own parameters, inside `local_parameters()`."""
        with local_parameters():
            return super().__call__(*args, **kwargs)


def local_method(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Decorate a method as a `pyro_method` that runs inside `local_parameters()`."""
    in_pyro_context = pyro_method(method)

    @functools.wraps(method)
    def inner(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with local_parameters():
            return in_pyro_context(self, *args, **kwargs)

    return inner


def priors_of(module: nn.Module) -> list[str]:
    """Return the names of all attributes of a module, and of modules in it, that have a prior."""
    return [
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        if isinstance(part, PyroModule)
        for name in part._pyro_samples
    ]


def estimate(module: nn.Module) -> list[Callable[[], Tensor]]:
    """Turn attributes with a prior into parameters, which start at its median.

    Returns functions that compute their log prior densities.
    """
    found = list[Callable[[], Tensor]]()
    for path in priors_of(module):
        owner, _, name = path.rpartition(".")
        part: Any = module.get_submodule(owner)
        given = part._pyro_samples[name]
        prior = given if hasattr(given, "sample") else given(part)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            median = prior.sample((_DRAWS,)).median(0).values
        setattr(part, name, PyroParam(median.to(next(module.parameters())), prior.support))
        found.append(functools.partial(_log_density, prior, part, name, median.device))
    return found


def _log_density(prior: TorchDistribution, module: PyroModule, name: str, device: torch.device) -> Tensor:
    value = getattr(module, name)
    # A prior stays on the device where the user made it.
    return prior.log_prob(value.to(device)).sum().to(value.device)


def read(modules: Sequence[PyroModule], name: str, together: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """Return a parameter of several modules, joined by `torch.stack` or the like, inside `local_parameters`.

    Reading a constrained parameter costs as much as the arithmetic on it: its constraint is applied once.
    """
    kinds = [module._pyro_params.get(name) for module in modules]
    # Pyro's handlers must see each parameter: `pyro.infer.SVI` trains those that it has seen.
    if am_i_wrapped() or any(kind is None or kind[0] is not kinds[0][0] for kind in kinds):
        return together([getattr(module, name) for module in modules])
    leaves = [module._parameters[f"{name}_unconstrained"] for module in modules]
    return transform_to(kinds[0][0])(together(leaves))
