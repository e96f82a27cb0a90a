"""Peak memory of fits and imputations beside its estimate."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks import memory


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what a process takes")
def test_estimates_stand_beside_what_was_taken() -> None:
    fitted, imputed = memory.measure([(400, 3, 2, {"n_inducing": 20})])
    assert (fitted.what, imputed.what) == ("fit: 400 × 3", "impute: 400 × 3, m = 2")
    for row in (fitted, imputed):
        found = re.fullmatch(r"(\d+) MB estimated, (-?\d+) MB peak n_inducing=20", row.detail)
        assert found is not None
        estimated, peak = map(int, found.groups())
        assert 50 < estimated < 100 and peak < estimated
        assert row.measured > 1
