"""A small table whose links and chain are known, with an incomplete category and an integer as label."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pyro_mgp.data.table import TableCodec
from pyro_mgp.model.link_specs import LinkSpec

# Encoded: height 0 (sd large), species=a 1, species=b 2, species=c 3, width 4, 7 5 (an integer as label).
FRAME = pd.DataFrame(
    {
        "height": [100.0, 500.0, 300.0, np.nan, 900.0, 200.0],
        "species": ["a", "b", "c", None, "b", "b"],
        "width": [0.01, 0.02, np.nan, 0.03, 0.01, 0.02],
        7: [1.0, 5.0, 2.0, 7.0, 3.0, 9.0],
    }
)
CODEC = TableCodec.fit(FRAME)
INCOMPLETE = np.array([True, True, True, True, True, False])


def names(specs: list[LinkSpec]) -> list[str]:
    """Return the names of the links, in order."""
    return [spec.name for spec in specs]
