"""A server under test whose workers are stand-ins, and a replacement for systemd."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.polling import is_readable

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).with_name("stand_ins.py")
WITHIN_S = 30.0  # Timeout for any single event on a busy machine


class Family:
    """One server under test. The tests wait for its log lines."""

    def __init__(self, home: Path, *, through: Sequence[str] = (), **environ: str) -> None:
        """Prepare a server. ``through`` is a command that starts it."""
        self.home = home
        self.command = [*through, sys.executable, str(STAND_INS)]
        (home / "orders").mkdir(exist_ok=True)
        self.environ = {
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ["PATH"],
            "ORDERS": str(home / "orders"),
            "TOPICS_DATA_DIR": str(home / "data"),
            "TOPICS_PORT": "0",
            "TOPICS_SHARDS": "2",
            "TOPICS_MAX_BODY_BYTES": "1048576",
        } | environ
        self.seen: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self.command, env=self.environ, stderr=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_exc: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr
        self.process.stderr.close()

    def order(self, name: str, text: str) -> None:
        """Set the order that a worker follows at its next start. An empty text removes
        the order.
        """
        path = self.home / "orders" / f"{name}.do"
        if text:
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)
        else:
            path.unlink()

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """Read the log up to the next line with this event and these fields, and return it."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.seen.append(json.loads(line))
            if self.seen[-1]["event"] == event and fields.items() <= self.seen[-1].items():
                return self.seen[-1]
        raise AssertionError(f"no {event} {fields} before the end; there was {self.seen}")

    def started(self) -> Self:
        """Wait until the server is ready."""
        self.url = self.wait_for("listening")["url"]
        self.wait_for("ready")
        return self

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Read the rest of the log and return the exit status."""
        assert self.process.stderr
        self.seen += [json.loads(line) for line in self.process.stderr]
        return self.process.wait(WITHIN_S)

    def pids(self) -> dict[str, int]:
        """Return the latest pid of every child."""
        return {
            line["child"]: line["child_pid"]
            for line in self.seen
            if line["event"] == "process started"
        }

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.seen if line["event"] == event]

    def connect(self) -> socket.socket:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return socket.create_connection((host, int(port)), WITHIN_S)

    def front_state(self) -> dict[str, Any]:
        """Return the state that a front reports."""
        with self.connect() as connection, connection.makefile() as answer:
            return dict(json.loads(answer.readline()))

    def wait_for_state(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Request the front's state until the condition holds. Each request takes one tick of the
        front.
        """
        deadline = time.monotonic() + WITHIN_S
        while not holds(answer := self.front_state()):
            assert time.monotonic() < deadline, answer
        return answer


def wait_until_exited(pid: int) -> None:
    """Wait for the end of a process, which need not be a child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert is_readable(descriptor, WITHIN_S), f"process {pid} is still running"
    finally:
        os.close(descriptor)


class Systemd:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.name = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(WITHIN_S)

    def next(self) -> str:
        return self.socket.recv(4096).decode()

    def until(self, line: str) -> list[str]:
        """Return all notifications up to the next one with this text."""
        seen: list[str] = []
        deadline = time.monotonic() + WITHIN_S
        while not seen or seen[-1] != line:
            assert time.monotonic() < deadline, f"{line} expected, received {seen}"
            seen.append(self.next())
        return seen
