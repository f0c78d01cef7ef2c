"""A program as a process of its own that ends in time, whatever a test waits for."""

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

LIFE_S = 100.0  # shorter than a test may last
AGAIN_S = 7.0


class Program(subprocess.Popen[Any]):
    """It leads a session. After `LIFE_S`, and when its ``with`` is left by an exception, it is
    killed with all that it has started: a read of its pipes and a wait for its end are bounded.
    """

    def __init__(self, command: list[Any], **options: Any) -> None:
        super().__init__(command, start_new_session=True, **options)
        self._watchdog = threading.Timer(LIFE_S, self.end)
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
        """Send a signal, and read all that comes until the end. Python notices one that comes just
        before a wait behind that wait: after `AGAIN_S` another one is sent.
        """
        while True:
            self.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.communicate(timeout=AGAIN_S)

    def end(self) -> None:
        """Kill all of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def in_a_process(work: Callable[..., T], *arguments: Any) -> T:
    """What a function returns that runs in a process of its own. The process is killed when the
    wait is interrupted: the end of the pool would wait for it.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        try:
            return pool.submit(work, *arguments).result()
        except BaseException:
            for process in [*(pool._processes or {}).values()]:
                process.kill()
            raise
