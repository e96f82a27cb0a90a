"""Cache of what samplers of a chain share: factorising 24 links takes longer than drawing one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyro_mgp.model.chain import Chain
from pyro_mgp.model.conditional import Conditional

T = TypeVar("T")


class SamplerCache:
    """Cache of conditionals, chains of Gibbs sampling and their draws, until the chain's parameters change.

    It holds the most recent request of each kind. Copies start empty. Changes of a parameter through its
    `.data` are not noticed: after such a change, fit, load or copy the imputer again.
    """

    def __init__(self) -> None:
        self._state: object = None
        self._cached: dict[str, tuple[object, Any]] = {}

    def marginals(self, chain: Chain) -> Sequence[Conditional]:
        """Return the conditionals at the means of q(u)."""
        return self.get(chain, "marginals", None, chain.conditionals)

    def get(self, chain: Chain, kind: str, request: object, make: Callable[[], T]) -> T:
        """Return the result of `make()`, or the cached result of the same request."""
        state = (
            chain.precision,
            chain.n_sweeps,
            tuple(link.jitter for link in chain.links),
            tuple((parameter.data_ptr(), parameter._version) for parameter in chain.parameters()),
        )
        if state != self._state:
            self._state, self._cached = state, {}
        cached = self._cached.get(kind)
        if cached is None or cached[0] != request:
            cached = self._cached[kind] = request, make()
        found: T = cached[1]  # not read from the cache again: another thread may have replaced it
        return found

    def __reduce__(self) -> tuple[type[SamplerCache], tuple[()]]:
        return SamplerCache, ()
