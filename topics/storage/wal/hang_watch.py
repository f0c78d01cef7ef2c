"""Hang watch: reports a disk call of the shard loop that does not return.

A loop that hangs in the kernel cannot report this itself. While the loop makes disk calls, a thread
checks every `CHECK_INTERVAL_S` seconds. It sleeps without a timeout while the loop makes no disk
calls, so only the first call after a quiet period costs a wake-up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

CHECK_INTERVAL_S: Final = 0.5


class HangWatch:
    """Calls ``on_hang`` with the number of a disk call that is in progress at two consecutive
    checks.

    It is called by the watch's own thread, at the second check and at each further check.
    """

    def __init__(self) -> None:
        self.on_hang: Callable[[int], None] = lambda _: None
        self._number = 0  # incremented when a call begins and when it ends: odd during a call
        self._is_idle = False
        self._is_stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wal hang watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin(self) -> None:
        """Record that the loop begins a call that may hang."""
        self._number += 1
        if self._is_idle:
            self._is_idle = False
            self._wake.set()

    def end(self) -> None:
        """Record that the call has returned."""
        self._number += 1

    def stop(self) -> None:
        """Stop the thread."""
        self._is_stopped = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        seen = -1
        while not self._is_stopped:
            number = self._number
            if number != seen:
                seen = number
            elif number & 1:
                self.on_hang(number)
            else:
                self._is_idle = True
                # Compare again: a call that began before the line above did not wake this thread.
                self._is_idle = self._number == number
            self._wake.wait(None if self._is_idle else CHECK_INTERVAL_S)
            self._wake.clear()
