"""A program as a separate process whose run time is bounded, even if a test waits without end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

RUN_MAX_S = 100.0  # Shorter than the timeout of a test
AGAIN_S = 7.0


class Program(subprocess.Popen[Any]):
    """A program that leads its own session.

    After `RUN_MAX_S`, and when its ``with`` block raises, it is killed with all its children. Reads
    of its pipes and waits for its end are therefore bounded.
    """

    def __init__(self, command: list[Any], **options: Any) -> None:
        super().__init__(command, start_new_session=True, **options)
        self._watchdog = threading.Timer(RUN_MAX_S, self.end)
        self._watchdog.daemon = True
        self._watchdog.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.end()
        super().__exit__(kind, error, trace)
        self._watchdog.cancel()

    def ended_by(self, number: int) -> tuple[Any, Any]:
        """Send a signal, and read all output until the end.

        Python may handle a signal that arrives just before a wait only after that wait. The signal
        is therefore sent again every `AGAIN_S` seconds.
        """
        while True:
            self.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.communicate(timeout=AGAIN_S)

    def end(self) -> None:
        """Kill the program and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def in_a_process(work: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a separate process and return its result.

    The process is killed if the wait is interrupted, because the end of the pool would wait for
    it.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        try:
            return pool.submit(work, *arguments).result()
        except BaseException:
            for process in [*(pool._processes or {}).values()]:
                process.kill()
            raise
