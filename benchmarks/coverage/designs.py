"""All designs of the coverage study by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from benchmarks.coverage import (
    curves,
    eleven,
    factors,
    gaussian,
    limits,
    mixed,
    multilevel,
    real,
    regions,
    reported,
    serial,
    shah,
    slade,
    two_part,
    weighted,
    wide,
)
from benchmarks.coverage.design import Design

DESIGNS: dict[str, Design] = {
    **curves.DESIGNS,
    **gaussian.DESIGNS,
    **slade.DESIGNS,
    **mixed.DESIGNS,
    **eleven.DESIGNS,
    **factors.DESIGNS,
    **regions.DESIGNS,
    **limits.DESIGNS,
    **two_part.DESIGNS,
    **weighted.DESIGNS,
    **shah.DESIGNS,
    **multilevel.DESIGNS,
    **serial.DESIGNS,
    **reported.DESIGNS,
    **wide.DESIGNS,
    **real.DESIGNS,
}
"""Designs by name; each module says what its designs are."""


def matching(patterns: Sequence[str]) -> list[str]:
    """Return the names of designs that match shell patterns, in the order of the patterns.

    Raises:
        ValueError: If a pattern matches none; the message lists the names.

    Example:
        >>> matching(["fimd_3*", "slade"])
        ['fimd_3.2.3_y', 'fimd_3.2.3_x', 'slade']
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        names = fnmatch.filter(DESIGNS, pattern)
        if not names:
            raise ValueError(f"designs are {list(DESIGNS)}, got {pattern!r}")
        found |= dict.fromkeys(names)
    return list(found)
