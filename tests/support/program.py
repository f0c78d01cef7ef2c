"""A program as a process of its own that ends in time, whatever a test waits for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from types import TracebackType
from typing import Any

LIFE_S = 100.0  # shorter than a test may last


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

    def end(self) -> None:
        """Kill all of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
