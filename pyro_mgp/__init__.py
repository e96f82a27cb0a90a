"""Multiple imputation of tables by a chain of sparse Gaussian processes, in Pyro."""

from pyro_mgp.imputations import Imputations
from pyro_mgp.imputer import MGPImputer

__all__ = ["Imputations", "MGPImputer"]
