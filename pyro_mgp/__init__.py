"""Multiple imputation of tables by a chain of sparse Gaussian processes, in Pyro."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyro_mgp.column_spec import ColumnSpec
    from pyro_mgp.imputations import Imputations
    from pyro_mgp.imputer import MGPImputer
    from pyro_mgp.pooling import pool
    from pyro_mgp.sensitivity import tipping_point

    __version__: str

__all__ = ["ColumnSpec", "Imputations", "MGPImputer", "pool", "tipping_point"]

# Torch and Pyro take seconds to import: each name is imported when it is first used.
_HOME = {
    "ColumnSpec": "pyro_mgp.column_spec",
    "Imputations": "pyro_mgp.imputations",
    "MGPImputer": "pyro_mgp.imputer",
    "pool": "pyro_mgp.pooling",
    "tipping_point": "pyro_mgp.sensitivity",
}

if not TYPE_CHECKING:  # a type checker shall still find misspelt names

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return version("pyro_mgp")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
