"""Stop on Ctrl-C or SIGTERM only after a loop has saved its work.

Inside `stoppable`, a signal stops the program at once. In a block of `Interruption.held_back` the first one
takes effect at the next call of `Interruption.give_way`, where the loop has saved its work.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """Exception raised when a signal, given by its number, asks the process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number

    @property
    def status(self) -> int:
        """Exit status by the convention of shells: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.number


class Interruption:
    """Record of a signal that asks the process to stop, created by `stoppable`."""

    def __init__(self) -> None:
        self.asked: int | None = None  # number of the signal that was held back
        self._holds_back = False

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Hold back the first signal in this block until `give_way` or the end of the block."""
        self._holds_back = True
        try:
            yield
        finally:
            self._holds_back = False
        self.give_way()

    def give_way(self) -> None:
        """Raise `Stopped` if a signal has been held back."""
        if self.asked is not None:
            raise Stopped(self.asked)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record a signal while signals are held back; raise `Stopped` otherwise or the second time."""
        if self.asked is not None or not self._holds_back:
            raise Stopped(number)
        self.asked = number


@contextmanager
def stoppable() -> Iterator[Interruption]:
    """Handle SIGINT and SIGTERM in this block, unless it runs in a thread that cannot set handlers."""
    interruption, in_main = Interruption(), threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    before = {number: signal.signal(number, interruption.handle) for number in numbers}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
