"""Programs of others, found and run for as long as a measurement takes.

They are looked for on PATH. Durable Streams is a package for Node: ``DURABLE_STREAMS`` names the
folder in which ``npm install @durable-streams/server`` ran.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

NPM = Path(os.environ.get("DURABLE_STREAMS", ".")).absolute()
START_S = 30.0


class NotFound(Exception):
    """A program that is not installed."""


class NotStarted(Exception):
    """A program that did not open its port."""


def find(program: str) -> str:
    """Its path. Raises `NotFound`."""
    path = shutil.which(program)
    if path is None:
        raise NotFound(f"{program} is not on PATH")
    return path


def version_of(program: str, option: str) -> str:
    """The first number with dots that it prints."""
    ran = subprocess.run([find(program), option], capture_output=True, text=True, timeout=20)
    found = re.search(r"\d+(\.\d+)+", ran.stdout + ran.stderr)
    return found.group() if found else "?"


def free_port() -> int:
    """A free port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Programs:
    """The programs of one server, by name. Each leads a session of its own."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, port: int, cwd: Path) -> None:
        """Start one and wait until it listens. Raises `NotStarted`."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running[name] = process
        deadline = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.01)
        raise NotStarted(f"{name}: {self._log.read_text(errors='replace')[-300:]}")

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._running.items()}

    def kill(self) -> None:
        """End all of them."""
        for process in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._running.clear()
