"""Peak memory of fits and imputations beside its lower bound."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks import memory


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/clear_refs")
@pytest.mark.slow
def test_lower_bounds_stand_beside_the_peak() -> None:
    fitted, imputed = memory.measure([(400, 3, 2, {"n_inducing": 20})])
    assert (fitted.what, imputed.what) == ("fit: 400 × 3", "impute: 400 × 3, m = 2")
    for row in (fitted, imputed):
        found = re.fullmatch(r"at least ([\d.]+) MB, (-?\d+) MB peak n_inducing=20", row.detail)
        assert found is not None
        assert float(found[1]) < 1
        assert 0 < row.measured < 1
