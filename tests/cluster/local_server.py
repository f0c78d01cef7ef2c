"""A topics server in its own process group on this machine, which can be started, killed and
restarted.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from topics.client import Topics, TopicsError, calls
from topics.errors import ExitCode

START_S = 60.0
STOP_S = 15.0
POLL_S = 0.05
LOG_LINES = 10
NAMES = ("amber", "birch", "cedar")


def print_line(line: str) -> None:
    """Print and flush one line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def interruptible(run: Callable[[], int]) -> int:
    """Run a program that starts servers. Ctrl-C and SIGTERM end it after its clean-up."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


class LocalServer:
    """A server with its data and its log in ``folder``. It keeps its port when it is restarted."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return its process group."""
        assert self._process is not None, "the server was never started"
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "TOPICS_HOST": "127.0.0.1",
            "TOPICS_PORT": str(self.port),
            "TOPICS_DATA_DIR": str(self.folder / "data"),
        }
        others = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "topics", "serve"],
                env=others | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that one signal can kill all of its processes
            )
        deadline = time.monotonic() + START_S
        with Topics(self.url, key="", timeout=5.0) as client:
            while True:
                with suppress(TopicsError):
                    client.once(calls.ready())
                    return
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise SystemExit(
                        f"error: the server {self.name} did not start:\n{self.last_lines()}"
                    )
                time.sleep(POLL_S)

    def last_lines(self) -> str:
        """Return the end of its log, for an error message."""
        return "\n".join((self.folder / "log").read_text().splitlines()[-LOG_LINES:])

    def kill(self) -> None:
        """Send SIGKILL to all of its processes."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server after it has completed its requests."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        self._process.wait()
        self._process = None


@contextmanager
def started(folder: Path) -> Iterator[list[LocalServer]]:
    """Start three servers, and stop them at the end."""
    fleet = [LocalServer(name, folder / name) for name in NAMES]
    try:
        for server in fleet:
            server.start()
            print_line(f"server {server.name} runs on {server.url}")
        yield fleet
    finally:
        for server in fleet:
            server.stop()
