"""Progress of a job: a bar that redraws itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

BAR_COLUMNS = 30
REDRAW_S = 0.2  # on a terminal
LINE_S = 5.0  # elsewhere: one line each


def line_of(done: int, total: int, seconds: float) -> str:
    """``141,000 of 336,776 records, 41 %, 52,311 records/s``."""
    rate = done / seconds if seconds > 0 else 0.0
    return f"{done:,} of {total:,} records, {_percent(done, total)} %, {rate:,.0f} records/s"


def bar_of(done: int, total: int, seconds: float) -> str:
    """The same behind a bar of ``BAR_COLUMNS``."""
    filled = BAR_COLUMNS * _percent(done, total) // 100
    return f"[{'#' * filled}{'.' * (BAR_COLUMNS - filled)}] {line_of(done, total, seconds)}"


def _percent(done: int, total: int) -> int:
    return min(100, 100 * done // total) if total else 100


class Progress:
    """Shows ``done()`` against ``total`` from a thread of its own while the block runs, and once more at its end.

    ``done`` returns None when it cannot tell now; then the last figure stays. It runs in the thread, never after the block.
    """

    def __init__(self, out: TextIO, total: int, done: Callable[[], int | None]) -> None:
        self._out = out
        self._total = total
        self._ask = done
        self._tty = out.isatty()
        self._done = 0
        self._started = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        if error is None:
            self._done = self._total
        self._show()
        if self._tty:
            self._out.write("\n")
            self._out.flush()

    def _run(self) -> None:
        while not self._over.wait(REDRAW_S if self._tty else LINE_S):
            done = self._ask()
            # Head and finished tasks are two views of the same work; what is shown never goes back.
            self._done = max(self._done, min(done or 0, self._total))
            self._show()

    def _show(self) -> None:
        seconds = time.monotonic() - self._started
        text = bar_of(self._done, self._total, seconds) if self._tty else line_of(self._done, self._total, seconds)
        self._out.write(f"\r\x1b[K{text}" if self._tty else f"{text}\n")
        self._out.flush()
