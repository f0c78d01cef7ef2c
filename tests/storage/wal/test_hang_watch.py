"""The hang watch reports exactly the calls that do not return."""

from __future__ import annotations

import queue
import threading

import pytest

from topics.storage.wal import hang_watch
from topics.storage.wal.hang_watch import HangWatch

WAIT_S = 10.0


def test_calls_that_return_are_never_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check of the watch finds the loop in another call."""
    checks = 0
    watch, hangs = HangWatch(), list[int]()
    watch.on_hang = hangs.append

    def check(_timeout: float | None) -> bool:
        nonlocal checks
        checks += 1
        watch.begin()
        if checks < 50:
            watch.end()
            watch.begin()
        else:
            watch._is_stopped = True
        return True

    monkeypatch.setattr(watch._wake, "wait", check)
    watch._run()
    assert (checks, hangs) == (50, [])


def test_the_watch_sleeps_while_there_are_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, waits = HangWatch(), queue.SimpleQueue[float | None]()
    real = watch._wake.wait

    def wait(timeout: float | None) -> bool:
        waits.put(timeout)
        return real(timeout)

    monkeypatch.setattr(hang_watch, "CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr(watch._wake, "wait", wait)
    watch.start()
    for _ in range(3):
        while waits.get(timeout=WAIT_S) is not None:
            pass
        assert waits.empty()
        watch.begin()
        watch.end()
    watch.stop()


def test_a_call_that_begins_while_the_watch_becomes_idle_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Early(HangWatch):
        began = False

        def __setattr__(self, name: str, value: object) -> None:
            if (name, value, self.began) == ("_is_idle", True, False):
                self.__dict__["began"] = True
                self.begin()  # The call does not see that the thread is about to sleep
            super().__setattr__(name, value)

    monkeypatch.setattr(hang_watch, "CHECK_INTERVAL_S", 0.01)
    is_reported = threading.Event()
    watch = Early()
    watch.on_hang = lambda _: is_reported.set()
    watch.start()
    assert is_reported.wait(WAIT_S)
    assert watch.began
    watch.end()
    watch.stop()
