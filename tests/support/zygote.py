"""Servers without import time: forks of a process that has imported all modules once.

    tests ── Zygote ──socket pair──> program: imports, then forks a server for each request
                                         └── server: its own session, as if it was just started

A server needs four fifths of its first CPU second for imports, and the tests start thousands of
servers. A fork differs from a started program only by the missing start of the interpreter. It has
the given environment, folder and standard files, and runs the same module as ``python -m``.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from setproctitle import setproctitle

MESSAGE_MAX_BYTES = 1 << 20
WITHIN_S = 60.0  # It has imported all modules
LOADED = (
    *(
        "topics.cli",
        "topics.process.serve",
        "topics.process.front",
        "topics.front.admin.application",
    ),
    "topics.process.shard_writer",
)


class Forked:
    """A server that a zygote has forked, with the required part of the interface of
    ``subprocess.Popen``.
    """

    def __init__(self, zygote: Zygote, pid: int, stderr: IO[bytes]) -> None:
        self.pid, self.stderr = pid, stderr
        self._zygote, self._handle = zygote, os.pidfd_open(pid)
        self.returncode: int | None = None

    def __del__(self) -> None:
        os.close(self._handle)

    def poll(self) -> int | None:
        """Return the exit code, or None while the server runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        """Return the exit code, which is negative for a signal. Raise
        ``subprocess.TimeoutExpired`` on timeout.
        """
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            if not poll.poll(timeout_s * 1000):
                raise subprocess.TimeoutExpired("topics", timeout_s)
            self.returncode = self._zygote.reap(self.pid)
        return self.returncode


class Zygote:
    """The process that forks, from the first server until it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def _begin(self) -> socket.socket:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(WITHIN_S)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(other.fileno())],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            try:
                self._process.wait(WITHIN_S)
            finally:
                self._process.kill()

    def start(self, module: str, cwd: Path, env: dict[str, str]) -> Forked:
        """Run ``python -m MODULE serve`` with a pipe as its stderr."""
        ours, theirs = os.pipe()
        stderr = os.fdopen(ours, "rb")
        try:
            pid = self._request({"module": module, "cwd": str(cwd), "env": env}, theirs)
        finally:
            os.close(theirs)
        return Forked(self, pid, stderr)

    def reap(self, pid: int) -> int:
        """Return the exit code of a server that has ended."""
        return self._request({"reap": pid})

    def _request(self, request: dict[str, Any], *descriptors: int) -> int:
        with self._lock:
            sock = self._socket or self._begin()
            socket.send_fds(sock, [json.dumps(request).encode()], descriptors)
            answer = sock.recv(MESSAGE_MAX_BYTES)
        assert answer, "the zygote has ended"
        return int(answer)


def main(sock: socket.socket) -> None:
    """Fork and reap on request, until the socket is closed."""
    for name in LOADED:
        __import__(name)
    # setproctitle finds the space for titles by the environment that the process was started with.
    setproctitle("tests: zygote")
    while True:
        message, descriptors, _, _ = socket.recv_fds(sock, MESSAGE_MAX_BYTES, 1)
        if not message:
            return
        request = json.loads(message)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            sock.send(b"%d" % os.waitstatus_to_exitcode(status))
        elif os.fork() == 0:
            become(request, descriptors[0], sock)
        else:
            os.close(descriptors[0])


def become(request: dict[str, Any], stderr: int, sock: socket.socket) -> None:
    """Become the server, and send the pid when the process leads its session."""
    os.setsid()
    os.dup2(stderr, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sock.send(b"%d" % os.getpid())
    sock.close()
    os.closerange(3, max(stderr, 64))
    sys.argv = ["topics", "serve"]
    code = 1
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The tests end this process with SIGKILL
    main(socket.socket(fileno=int(sys.argv[1])))
