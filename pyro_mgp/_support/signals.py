"""Ctrl-C and SIGTERM that wait until what was done is kept.

Without it, both end a program wherever it happens to be. Inside `stoppable`, they end it at once outside of
`Interruption.held_back`, and inside at the next `Interruption.give_way`, where a loop has kept its work. Who
cannot wait sends the signal again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The process was asked to stop.

    Args:
        number: The signal that asked.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number

    @property
    def status(self) -> int:
        """What shells expect as the exit status: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.number


class Interruption:
    """Whether somebody wants the program to stop; see `stoppable`."""

    def __init__(self) -> None:
        self.asked: int | None = None
        """The signal that was held back, if any."""
        self._holds_back = False

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let the first signal in this block wait for `give_way`, or for the end of the block."""
        self._holds_back = True
        try:
            yield
        finally:
            self._holds_back = False
        self.give_way()

    def give_way(self) -> None:
        """Stop here, if that is wanted.

        Raises:
            Stopped: If a signal came.
        """
        if self.asked is not None:
            raise Stopped(self.asked)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take note of a signal, or stop at once: the handler that `stoppable` installs.

        Raises:
            Stopped: Where signals are not held back, and at the second one.
        """
        if self.asked is not None or not self._holds_back:
            raise Stopped(number)
        self.asked = number


@contextmanager
def stoppable() -> Iterator[Interruption]:
    """Handle SIGINT and SIGTERM in this block; afterwards they are handled as before.

    Only the main thread may do so; elsewhere signals stay as they are.

    Example:
        >>> try:
        ...     with stoppable() as interruption, interruption.held_back():
        ...         signal.raise_signal(signal.SIGTERM)  # noted
        ...         done = "kept"
        ... except Stopped as stop:
        ...     print(done, stop.status)
        kept 143
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.handle) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
