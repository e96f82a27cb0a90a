"""What commands have in common in what they take."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """A type of argument: an integer from `least` up to what fits 63 bits."""

    def integer(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text) or not least <= int(text) < 2**63:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return int(text)

    return integer
