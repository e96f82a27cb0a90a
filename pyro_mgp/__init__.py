"""Multiple imputation of tables by a chain of sparse Gaussian processes, in Pyro."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyro_mgp._support.processes import data_parallel as data_parallel
    from pyro_mgp.analysis.bootstrap import bootstrap_then_impute as bootstrap_then_impute
    from pyro_mgp.analysis.bootstrap import bootstrapped as bootstrapped
    from pyro_mgp.analysis.dropout import AfterDropout as AfterDropout
    from pyro_mgp.analysis.dropout import tipping_points as tipping_points
    from pyro_mgp.analysis.joint_tests import likelihood_ratio_test as likelihood_ratio_test
    from pyro_mgp.analysis.joint_tests import pool_chi2 as pool_chi2
    from pyro_mgp.analysis.joint_tests import pool_likelihoods as pool_likelihoods
    from pyro_mgp.analysis.pooling import pool as pool
    from pyro_mgp.analysis.pooling import pool_synthetic as pool_synthetic
    from pyro_mgp.analysis.posterior_mixture import mix as mix
    from pyro_mgp.analysis.sensitivity import tipping_point as tipping_point
    from pyro_mgp.analysis.value_of_measuring import value_of_measuring as value_of_measuring
    from pyro_mgp.data.column_spec import ColumnSpec as ColumnSpec
    from pyro_mgp.data.limits import split_limits as split_limits
    from pyro_mgp.evaluation.diagnostics import calibrate as calibrate
    from pyro_mgp.evaluation.diagnostics import compare as compare
    from pyro_mgp.evaluation.energy_score import energy_scores as energy_scores
    from pyro_mgp.evaluation.missingness import ampute as ampute
    from pyro_mgp.imputer import MGPImputer as MGPImputer
    from pyro_mgp.results.arviz_export import leave_one_out as leave_one_out
    from pyro_mgp.results.arviz_export import to_arviz as to_arviz
    from pyro_mgp.results.imputations import Imputations as Imputations
    from pyro_mgp.scaling.dask_engine import impute_dask as impute_dask
    from pyro_mgp.scaling.partitions import impute_partition as impute_partition
    from pyro_mgp.settings import Engine as Engine

    __version__: str

# Torch and Pyro take seconds to import: each name is imported when it is first used.
_HOME = {
    "AfterDropout": "pyro_mgp.analysis.dropout",
    "ColumnSpec": "pyro_mgp.data.column_spec",
    "Engine": "pyro_mgp.settings",
    "Imputations": "pyro_mgp.results.imputations",
    "MGPImputer": "pyro_mgp.imputer",
    "ampute": "pyro_mgp.evaluation.missingness",
    "bootstrap_then_impute": "pyro_mgp.analysis.bootstrap",
    "bootstrapped": "pyro_mgp.analysis.bootstrap",
    "calibrate": "pyro_mgp.evaluation.diagnostics",
    "compare": "pyro_mgp.evaluation.diagnostics",
    "data_parallel": "pyro_mgp._support.processes",
    "energy_scores": "pyro_mgp.evaluation.energy_score",
    "impute_dask": "pyro_mgp.scaling.dask_engine",
    "impute_partition": "pyro_mgp.scaling.partitions",
    "leave_one_out": "pyro_mgp.results.arviz_export",
    "likelihood_ratio_test": "pyro_mgp.analysis.joint_tests",
    "mix": "pyro_mgp.analysis.posterior_mixture",
    "pool": "pyro_mgp.analysis.pooling",
    "pool_chi2": "pyro_mgp.analysis.joint_tests",
    "pool_likelihoods": "pyro_mgp.analysis.joint_tests",
    "pool_synthetic": "pyro_mgp.analysis.pooling",
    "split_limits": "pyro_mgp.data.limits",
    "tipping_point": "pyro_mgp.analysis.sensitivity",
    "tipping_points": "pyro_mgp.analysis.dropout",
    "to_arviz": "pyro_mgp.results.arviz_export",
    "value_of_measuring": "pyro_mgp.analysis.value_of_measuring",
}

if not TYPE_CHECKING:  # type checkers read the imports above, and find misspelt names
    __all__ = [*_HOME]

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return version("pyro_mgp")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
