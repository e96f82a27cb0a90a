"""Tables of results as people read them: as many digits as mean something."""

from __future__ import annotations

import pandas as pd

_SMALLEST_P = 0.0005
_FOUR_DIGITS, _ONE_DECIMAL, _THREE_DECIMALS, _WHOLE = "{:.4g}", "{:.1f}", "{:.3f}", "{:.0f}"
_FORMATS = {
    **dict.fromkeys(
        ("estimate", "se", "mean", "sd", "low", "high", "within", "between", "mcse"), _FOUR_DIGITS
    ),
    "df": _ONE_DECIMAL,
    "ess": _WHOLE,
}


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """The table's numbers as text: lengths with four digits, shares and probabilities with three decimals.

    Args:
        table: Columns of numbers, by the names that pooled tables have.

    Example:
        >>> rounded(pd.DataFrame({"se": [12.3456], "df": [8.25], "p": [0.0001]}))
              se   df      p
        0  12.35  8.2  <.001
    """
    text = {
        name: column.map(_FORMATS.get(str(name), _THREE_DECIMALS).format) for name, column in table.items()
    }
    if "p" in table:
        text["p"] = text["p"].mask(table["p"] < _SMALLEST_P, "<.001")
    return pd.DataFrame(text, index=table.index)
