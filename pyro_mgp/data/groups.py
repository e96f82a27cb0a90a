"""Columns that are constant within groups: found in a table, and completed where a group has their value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import cells_of, complete, holes_of, label_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.parquet_table import ParquetTable

# Probability, by chance, of a column that is constant within all groups, up to which it is taken for one.
_BY_CHANCE = 0.01


@dataclass(frozen=True)
class WithinGroups:
    """Columns of a table that are constant within groups.

    Example:
        >>> school, size = [1, 1, 2, 2, 3, 3], [90.0, None, 40.0, 40.0, 70.0, 70.0]
        >>> frame = pd.DataFrame({"school": school, "size": size, "score": [1, 2, 3, 4, 5, 6]})
        >>> WithinGroups({"school": ["size"]}).complete(frame)["size"].tolist()
        [90.0, 90.0, 40.0, 40.0, 70.0, 70.0]
    """

    constant: Mapping[Label, Sequence[Label]] = field(default_factory=dict)
    """For each column of groups, the labels of the columns that are constant within its groups.

    Other columns of groups may be among them: schools, if the groups are classes.
    """
    known: Mapping[Label, Mapping[Any, Any]] = field(default_factory=dict, compare=False)
    """For each column that is constant within groups, its cells in the table of the fit by group."""

    @classmethod
    def find(cls, frame: pd.DataFrame, groups: Sequence[Label]) -> Self:
        """Return the columns of a table that are constant within the groups of some columns.

        These are columns of which cells of one group never differ, and clearly would if they were shuffled.
        """
        found: dict[Label, tuple[Label, ...]] = {}
        for group in groups:
            others = [label_of(label) for label in frame.columns if label != group]
            found[group] = tuple(label for label in others if _is_constant(frame[label], frame[group]))
        within, labels = cls(found), dict.fromkeys(label for own in found.values() for label in own)
        return cls(found, {label: _by_group(frame, label, within.group_of(label)) for label in labels})

    def group_of(self, label: Label) -> Label | None:
        """Return the column of groups within which a column is constant; None without one.

        If there are several, it is the one that is constant within the others.
        """
        found = [group for group, labels in self.constant.items() if label in labels]
        outer = [each for each in found if all(each == o or each in self.constant[o] for o in found)]
        return next(iter(outer or found), None)

    def cells(self, frame: pd.DataFrame | ParquetTable, label: Label) -> pd.Series[Any]:
        """Return the cells of a column: one for each group if it is constant within groups, else all."""
        group = self.group_of(label)
        return frame[label] if group is None else frame[label][~frame[group].duplicated()]

    def complete(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table with missing cells of constant columns filled by the one value that their group has.

        It is the value in other rows of the table, or else in the table of the fit. The result is the same
        object if there is none to fill. Different cells of one group are a ValueError.
        """
        for group, labels in self.constant.items():
            for label in labels:
                holes = holes_of(frame[label])
                own = frame[label][~holes].groupby(frame[group][~holes], observed=True)
                for each in own.nunique().loc[lambda counts: counts > 1].index[:1]:
                    raise ValueError(
                        f"Column {label!r} is constant within each {group!r}, but {each!r} has "
                        f"{listing(own.get_group(each).unique())}. Correct the cells."
                    )
                values = _by_group(frame, label, group)
                if self.group_of(label) == group:
                    values = {**self.known.get(label, {}), **values}
                told = holes & frame[group].isin(list(values)).to_numpy()
                if told.any():
                    frame = complete(frame, {label: _cells(frame[group], holes, told, values)})
        return frame


def _by_group(frame: pd.DataFrame, label: Label, group: Label | None) -> dict[Any, Any]:
    """Return the cell of a column, as draws are stored, in each group that has one."""
    here = ~(holes_of(frame[label]) | holes_of(frame[group]))
    return dict(zip(frame[group][here], cells_of(frame[label])[here], strict=True))


def _cells(
    groups: pd.Series[Any], holes: NDArray[np.bool_], told: NDArray[np.bool_], values: Mapping[Any, Any]
) -> NDArray[Any]:
    """Return the values of the groups in rows with a hole, `[n]`, None where there is none."""
    pairs = zip(groups[holes], told[holes], strict=True)
    return pd.Series([values[group] if is_told else None for group, is_told in pairs]).to_numpy()


def _is_constant(column: pd.Series[Any], groups: pd.Series[Any]) -> bool:
    observed = ~(holes_of(column) | holes_of(groups))
    cells, own = pd.factorize(column[observed])[0], pd.factorize(groups[observed])[0]
    sizes, shares = np.bincount(own), np.bincount(cells) / max(len(cells), 1)
    if len(shares) < 2 or len(np.unique(np.stack([cells, own]), axis=1).T) > len(sizes):
        return False
    # All cells of a group are equal with the probability that independent draws are.
    log_chance = sum(np.log((shares**size).sum()) for size in sizes[sizes > 1])
    return bool(log_chance < np.log(_BY_CHANCE))
