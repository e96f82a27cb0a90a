"""Multiple imputation of tables by a chain of sparse Gaussian processes, in Pyro."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyro_mgp.imputations import Imputations
    from pyro_mgp.imputer import MGPImputer

    __version__: str

__all__ = ["Imputations", "MGPImputer"]

# Torch and Pyro take seconds to import: each name is imported when it is first used.
_HOME = {"Imputations": "pyro_mgp.imputations", "MGPImputer": "pyro_mgp.imputer"}

if not TYPE_CHECKING:  # a type checker shall still find misspelt names

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return version("pyro_mgp")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
