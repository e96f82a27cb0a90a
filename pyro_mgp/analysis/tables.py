"""Rounded display of tables of pooled results."""

from __future__ import annotations

import pandas as pd

_SMALLEST_P = 0.0005
_FOUR_DIGITS = ("estimate", "se", "mean", "sd", "low", "high", "within", "between", "mcse")
_FORMATS = {**dict.fromkeys(_FOUR_DIGITS, "{:.4g}"), "df": "{:.1f}", "ess": "{:.0f}"}


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Format the columns of a table of pooled results as text.

    Estimates get four significant digits, shares and p-values three decimals.

    Args:
        table: Columns of numbers with the names of `Pooled.table` or `PosteriorMixture.table`.

    Example:
        >>> rounded(pd.DataFrame({"se": [12.3456], "df": [8.25], "p": [0.0001]}))
              se   df      p
        0  12.35  8.2  <.001
    """
    text = {name: column.map(_FORMATS.get(str(name), "{:.3f}").format) for name, column in table.items()}
    if "p" in table:
        text["p"] = text["p"].mask(table["p"] < _SMALLEST_P, "<.001")
    return pd.DataFrame(text, index=table.index)


class ShownAsTable:
    """Mixin that displays a result as its title and its rounded table."""

    table: pd.DataFrame

    @property
    def title(self) -> str:
        """Heading of the displayed table."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{self.title}\n{rounded(self.table).to_string(line_width=None)}"

    def _repr_html_(self) -> str:
        return f"<p>{self.title}</p>{rounded(self.table).to_html()}"
