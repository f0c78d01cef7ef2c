"""Programs of others, found and run for as long as a measurement takes.

They are looked for on PATH and under ``PEERS_HOME``, where nothing has to be installed in the
system: ``bin``, ``venv/bin`` (what pip put there), ``debs/root/usr/bin`` (unpacked Debian packages,
with their libraries beside them) and ``npm`` (``npm install --prefix``).
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

HOME = Path(os.environ.get("PEERS_HOME") or Path.home() / ".cache/topics-peers").absolute()
FOLDERS = ("bin", "venv/bin", "debs/root/usr/bin", "debs/root/usr/sbin")
LIBRARIES = ("debs/root/usr/lib", "debs/root/lib")
NPM = HOME / "npm"
START_S = 30.0


class NotFound(Exception):
    """A program that is not installed."""


class NotStarted(Exception):
    """A program that did not open its port."""


def find(program: str) -> str:
    """Its path. Raises `NotFound`."""
    folders = [*(str(HOME / folder) for folder in FOLDERS), os.environ.get("PATH", ""), "/usr/sbin"]
    path = shutil.which(program, path=os.pathsep.join(folders))
    if path is None:
        raise NotFound(f"{program} is neither on PATH nor in PEERS_HOME ({HOME})")
    return path


def environment() -> dict[str, str]:
    """Ours, and the libraries of unpacked packages."""
    found = [path for name in LIBRARIES for path in (HOME / name).glob("*-linux-*")]
    known = os.environ.get("LD_LIBRARY_PATH")
    paths = [*map(str, found), *([known] if known else [])]
    return os.environ | ({"LD_LIBRARY_PATH": os.pathsep.join(paths)} if paths else {})


def version_of(program: str, option: str) -> str:
    """The first number with dots that it prints."""
    ran = subprocess.run(
        [find(program), option], capture_output=True, text=True, timeout=20, env=environment()
    )
    found = re.search(r"\d+(\.\d+)+", ran.stdout + ran.stderr)
    return found.group() if found else "?"


def free_port() -> int:
    """A port that nobody listens on now."""
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
                env=environment(),
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
