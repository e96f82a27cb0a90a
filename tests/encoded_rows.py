"""Encoded rows of a table, on the device of the imputer that they are for."""

from __future__ import annotations

import pandas as pd

from pyro_mgp import MGPImputer
from pyro_mgp.data.encoded_table import EncodedTable


def encoded(imputer: MGPImputer, frame: pd.DataFrame) -> EncodedTable:
    """Return the encoded rows of a table where the chain of a fitted imputer is."""
    return imputer.codec_.encode(frame).to(next(imputer.chain_.parameters()).device)
