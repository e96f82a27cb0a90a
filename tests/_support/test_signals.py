"""Signals: at once, or where work has been kept; and afterwards handled as before."""

from __future__ import annotations

import signal
import threading

import pytest

from pyro_mgp._support.signals import Stopped, stoppable


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_outside_of_a_loop_a_signal_stops_at_once(number: signal.Signals, status: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match=number.name) as stopped, stoppable():
        signal.raise_signal(number)
        pytest.fail("went on")
    assert stopped.value.status == status
    assert signal.getsignal(number) is before


def test_in_a_loop_it_waits_for_the_next_place_to_give_way() -> None:
    done = []
    with pytest.raises(Stopped), stoppable() as interruption, interruption.held_back():
        for step in range(5):
            if step == 2:
                signal.raise_signal(signal.SIGTERM)
            done.append(step)
            interruption.give_way()
    assert done == [0, 1, 2]


def test_it_waits_no_longer_than_the_loop() -> None:
    with pytest.raises(Stopped), stoppable() as interruption:
        with interruption.held_back():
            signal.raise_signal(signal.SIGINT)
        pytest.fail("went on")


def test_the_second_signal_does_not_wait() -> None:
    with pytest.raises(Stopped), stoppable() as interruption, interruption.held_back():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("went on")


def test_other_errors_are_not_hidden_by_a_signal_that_waits() -> None:
    with pytest.raises(ZeroDivisionError), stoppable() as interruption, interruption.held_back():
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError


def test_other_threads_leave_the_handlers_alone() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with stoppable() as interruption:
            seen.append((signal.getsignal(signal.SIGTERM), interruption.asked))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, None)]
