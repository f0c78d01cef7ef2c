"""Progress: a bar that redraws itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TextIO

BAR_COLUMNS = 30
REDRAW_S = 0.2  # on a terminal
LINE_S = 5.0  # elsewhere: one line each


def line_of(done: int, total: int | None, seconds: float) -> str:
    """``141,000 of 336,776 records, 41 %, 52,311 records/s``; ``141,000 records, 52,311 records/s``
    when the total is unknown.
    """
    rate = f"{done / seconds if seconds > 0 else 0.0:,.0f} records/s"
    if total is None:
        return f"{done:,} records, {rate}"
    return f"{done:,} of {total:,} records, {_percent(done, total)} %, {rate}"


def bar_of(done: int, total: int | None, seconds: float) -> str:
    """The same after a bar of ``BAR_COLUMNS``, where the total is known."""
    if total is None:
        return line_of(done, total, seconds)
    filled = BAR_COLUMNS * _percent(done, total) // 100
    return f"[{'#' * filled}{'.' * (BAR_COLUMNS - filled)}] {line_of(done, total, seconds)}"


def _percent(done: int, total: int) -> int:
    return min(100, 100 * done // total) if total else 100


class Progress:
    """Shows ``done()`` against ``total``, where there is one, from a thread of its own while the
    block runs, and once at its end.

    ``done`` is an estimate; it returns None when it cannot tell now, then the last figure stays. It
    runs in the thread, never after the block. ``finish`` replaces it by what was really done.
    """

    def __init__(self, out: TextIO, total: int | None, done: Callable[[], int | None]) -> None:
        self._out = out
        self._total = total
        self._ask = done
        self._tty = out.isatty()
        self._done = 0
        self._finished: int | None = None
        self._started = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_failure: object) -> None:
        self._over.set()
        self._thread.join()
        if self._finished is not None:
            self._done = self._finished
        self._show()
        if self._tty:
            self._out.write("\n")
            self._out.flush()

    def finish(self, done: int) -> None:
        """Let the last line say this figure; to be called within the block."""
        self._finished = done

    def _run(self) -> None:
        while not self._over.wait(REDRAW_S if self._tty else LINE_S):
            done = self._ask()
            # Head and finished tasks are two views of the same work; what is shown never goes back.
            self._done = max(
                self._done, done or 0 if self._total is None else min(done or 0, self._total)
            )
            self._show()

    def _show(self) -> None:
        seconds = time.monotonic() - self._started
        text = (
            bar_of(self._done, self._total, seconds)
            if self._tty
            else line_of(self._done, self._total, seconds)
        )
        self._out.write(f"\r\x1b[K{text}" if self._tty else f"{text}\n")
        self._out.flush()
