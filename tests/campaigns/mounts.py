"""File systems that fail on purpose, for tests that run as root.

`Lossy` is the program that the environment variable CRASHSTATES names: a FUSE file system that
records every operation, injects faults, and creates possible states after a power loss. Tests that
need it are skipped without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

CRASHSTATES = os.environ.get("CRASHSTATES", "")
START_S = 20.0


def why_not() -> str:
    """Return the reason why `Lossy` cannot be used, or an empty text."""
    if not CRASHSTATES:
        return "CRASHSTATES is not set to the program that simulates a lossy disk"
    if not Path(CRASHSTATES).is_file():
        return "CRASHSTATES is not the path of a file"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse does not exist or is not accessible"
    return "" if os.geteuid() == 0 else "only root may mount"


needs_lossy = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


class Lossy:
    """The directory ``path``, mounted. ``ctl`` is the control socket of the file system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = path.with_name(f"{path.name}.ctl")
        path.mkdir()
        where = "--dir", str(path), "--ctl", str(self._socket)
        command = [sys.executable, CRASHSTATES, "mount", *where]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith(b"mounted"), (
            "the file system was not mounted"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.ctl("stop")
            self._process.wait(START_S)
        finally:
            if self._process.poll() is None:
                subprocess.run(["umount", "-l", str(self.path)], check=False)
                self._process.kill()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process.wait()

    def ctl(self, command: str, **fields: Any) -> Any:
        """Send one command and return its reply."""
        deadline = time.monotonic() + START_S
        while not self._socket.exists():
            assert time.monotonic() < deadline, "the file system does not accept connections"
            time.sleep(0.01)
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(START_S)
            channel.connect(str(self._socket))
            channel.sendall(json.dumps({"cmd": command, **fields}).encode() + b"\n")
            with channel.makefile() as lines:
                answer = json.loads(lines.readline())
        assert answer["ok"], answer
        return answer


@contextlib.contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a file system of this size in bytes."""
    path.mkdir()
    options = "-t", "tmpfs", "-o", f"size={size_bytes}"
    subprocess.run(["mount", *options, "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def remount(path: Path, options: str) -> None:
    """Remount a mounted file system with ``ro``, ``rw`` or ``size=N``."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


@contextlib.contextmanager
def freezable_disk(path: Path) -> Iterator[Callable[[bool], None]]:
    """Mount a separate file system at ``path``. Call the result with True to block every write to
    it, and with False to unblock them.
    """
    image = path.with_name(f"{path.name}.image")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    path.mkdir()
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(path)], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no loop device: {mounted.stderr.strip()}")
    frozen = False

    def freeze(now: bool) -> None:
        nonlocal frozen
        if now != frozen:
            subprocess.run(["fsfreeze", "-f" if now else "-u", str(path)], check=True)
            frozen = now

    try:
        yield freeze
    finally:
        freeze(False)
        subprocess.run(["umount", str(path)], check=True)
