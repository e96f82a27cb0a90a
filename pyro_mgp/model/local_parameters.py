"""Keep a module's parameters in the module.

Pyro's parameter store is one per process: two chains would meet there under the same names, and the second
would silently train nothing. Our modules are `LocalModule`s, and every entry into them that is not a call is
a `local_method`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyro
from pyro.nn import PyroModule, pyro_method
from torch import Tensor
from torch.distributions import transform_to

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound=PyroModule)


def local_parameters() -> AbstractContextManager[Any]:
    """A context in which Pyro modules are built, or run, without the global parameter store."""
    return pyro.settings.context(module_local_params=True)


class LocalModule(PyroModule):
    """A `PyroModule` that, called, uses its own parameters and never the global store."""

    def __init__(self) -> None:
        # The setting decides once, here, where the parameters of a tree of modules live.
        with local_parameters():
            super().__init__()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `forward`."""
        with local_parameters():
            return super().__call__(*args, **kwargs)


def local_method(
    method: Callable[Concatenate[Self, P], R],
) -> Callable[Concatenate[Self, P], R]:
    """A `pyro_method` that runs inside `local_parameters()`."""
    in_pyro_context = pyro_method(method)

    @functools.wraps(method)
    def inner(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with local_parameters():
            return in_pyro_context(self, *args, **kwargs)

    return inner


def read(modules: Sequence[PyroModule], name: str, together: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """A parameter of several modules as one tensor, where parameters are local.

    Reading a constrained parameter costs as much as the arithmetic on it, so the constraint is applied once,
    to all of them together.

    Args:
        modules: The modules.
        name: The parameter's name.
        together: Makes one tensor of the modules' own, entry by entry the same (`torch.stack`, say).
    """
    kinds = [module._pyro_params.get(name) for module in modules]
    if kinds[0] is None or any(kind is None or kind[0] is not kinds[0][0] for kind in kinds):
        return together([getattr(module, name) for module in modules])
    leaves = [module._parameters[f"{name}_unconstrained"] for module in modules]
    return transform_to(kinds[0][0])(together(leaves))
