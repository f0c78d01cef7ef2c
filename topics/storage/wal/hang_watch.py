"""Hang watch: tells of a disk call of the loop that does not return.

A loop that hangs in the kernel cannot say so itself. A thread looks every `LOOK_S` while the loop
makes such calls, and sleeps without end while it makes none: only the first call after that costs a
wake-up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.5


class HangWatch:
    """``on_hang`` is called by the watch's own thread with the number of a call, at each look that
    finds the loop in the same call as the look before.
    """

    def __init__(self) -> None:
        self.on_hang: Callable[[int], None] = lambda _: None
        self._number = 0  # grows with each begin and end of a call: odd during one
        self._is_asleep = False
        self._is_stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wal hang watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin(self) -> None:
        """The loop begins a call that may hang."""
        self._number += 1
        if self._is_asleep:
            self._is_asleep = False
            self._wake.set()

    def end(self) -> None:
        """The call has returned."""
        self._number += 1

    def stop(self) -> None:
        """End the thread."""
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
                self._is_asleep = True
                # Compared again: a call that began before the line above did not wake this thread.
                self._is_asleep = self._number == number
            self._wake.wait(None if self._is_asleep else LOOK_S)
            self._wake.clear()
