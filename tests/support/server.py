"""A real server as a child process: started, polled until ready, stopped, killed.

The server leads its own session. All its processes are found by the session id and can be killed
together, and no other process is ever killed.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import urlsplit

from tests.support.api import Api
from tests.support.polling import is_readable
from tests.support.zygote import Forked, Zygote

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0
STOP_S = 20.0  # §8.2: a drain takes at most 10 s, and the machine may be busy


class Log:
    """The lines of the stderr of a process group. The log ends when the last process that holds
    the pipe has ended.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._collect, name="server-log", daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        with self._stream:
            for line in self._stream:
                with self._changed:
                    self._lines.append(line.decode(errors="replace").rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def text(self) -> str:
        with self._changed:
            return "\n".join(self._lines)

    def events(self) -> list[dict[str, Any]]:
        """Return every line that is a JSON object, oldest first."""
        with self._changed:
            found = [_object(line) for line in self._lines]
        return [event for event in found if event is not None]

    def event(self, name: str, timeout_s: float) -> dict[str, Any]:
        """Wait for the first event ``name`` and return it. Raise an AssertionError with the
        complete log on timeout.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._first(name) is not None, timeout_s)
            found = self._first(name)
        assert found is not None, (
            f'no log event "{name}" within {timeout_s} s; the log:\n{self.text}'
        )
        return found

    def _first(self, name: str) -> dict[str, Any] | None:
        return next((event for event in self.events() if event.get("event") == name), None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the pipe."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), (
            f"a process still holds the server's stderr; the log:\n{self.text}"
        )


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class Server:
    """A server on a data directory. ``start`` may be called again after ``stop`` or ``kill``.

    ``env`` contains settings by their short names: ``shards=2`` is ``TOPICS_SHARDS=2``. ``root``
    is the checkout that is run.
    """

    module = "topics"  # The program that is run
    # The process that forks servers; without it they are started as programs
    zygote: Zygote | None = None

    def __init__(self, data_dir: Path, **env: object) -> None:
        self.data_dir, self.root = data_dir, ROOT
        self.env = {f"TOPICS_{name.upper()}": str(value) for name, value in env.items()}
        self.command = [sys.executable, "-m", self.module, "serve"]
        self.host = ""
        self.port = 0
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.log: Log | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self.running:
            self.stop()
        self.kill()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server was never started"
        return self.process.pid

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def spawn(self) -> Log:
        """Start the process without waiting."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")
        }
        base = {
            "TOPICS_HOST": "127.0.0.1",
            "TOPICS_PORT": "0",
            "TOPICS_DATA_DIR": str(self.data_dir),
        }
        env = inherited | base | self.env
        if self.zygote is not None and self.root == ROOT:
            self.process = self.zygote.start(self.module, ROOT, env)
        else:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        assert self.process.stderr is not None
        self.log = Log(self.process.stderr)
        return self.log

    def start(self, timeout_s: float = START_S) -> None:
        """Start the server, read its address from the log, and wait until /v0/ready returns 200."""
        log = self.spawn()
        try:
            url = urlsplit(str(log.event("listening", timeout_s)["url"]))
            self.host, self.port = url.hostname or "", url.port or 0
            self.wait_ready(timeout_s)
        except BaseException:
            self.kill()
            raise

    def restart(self, end: str) -> None:
        """Stop or kill the server and start it again. ``end`` is "stop" or "kill"."""
        self.stop() if end == "stop" else self.kill()
        self.start()

    def again(self, end: str) -> Api:
        """Restart the server and return a client."""
        self.restart(end)
        return Api(self.address)

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Poll /v0/ready until it returns 200, because there is no other signal of readiness."""
        deadline = time.monotonic() + timeout_s
        while self.running and time.monotonic() < deadline:
            if self._ready():
                return
            time.sleep(0.01)
        raise AssertionError(
            f"not ready within {timeout_s} s (exit code"
            f" {self.process and self.process.poll()}):\n{self.log_tail}"
        )

    def _ready(self) -> bool:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
        try:
            connection.request("GET", "/v0/ready")
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return answer.status == 200

    def terminate(self) -> None:
        """Request a stop, as a service manager does: SIGTERM to the parent only."""
        os.kill(self.pid, signal.SIGTERM)

    def stop(self) -> None:
        """Stop the server. It must end within ``STOP_S`` with exit code 0, and all its children
        with it.
        """
        self.terminate()
        self.wait_stopped()

    def wait_stopped(self) -> None:
        """Wait for the end of a stop. Raise an AssertionError on timeout or another exit code than
        0.
        """
        code = self.wait_exit(STOP_S)
        left = self.pids()
        assert not left, f"the server left children behind: {left}"
        assert code == 0, f"exit code {code} after SIGTERM:\n{self.log_tail}"

    def wait_exit(self, timeout_s: float) -> int:
        """Return the exit code. A server that does not exit is killed and reported."""
        assert self.process is not None
        assert self.log is not None
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"still running after {timeout_s} s; the log:\n{self.log_tail}"
            ) from None
        self.log.join(STOP_S)
        return code

    def kill(self) -> None:
        """Kill every process of the server and wait for their ends."""
        if self.process is None or self.log is None:
            return
        while pids := self.pids():
            handles = [handle for pid in pids if (handle := _pidfd(pid)) is not None]
            for pid in pids:
                kill_one(pid)
            for handle in handles:
                _wait_exited(handle)
        self.process.wait(STOP_S)
        self.log.join(STOP_S)

    @property
    def logged(self) -> str:
        return self.log.text if self.log else ""

    @property
    def log_tail(self) -> str:
        """Return the end of the log, for messages."""
        return "\n".join(line[:1000] for line in self.logged.splitlines()[-15:])

    def pids(self) -> list[int]:
        """Return every live process of the server."""
        return [pid for pid in _all_pids() if _session_of(pid) == self.pid]

    def roles(self) -> dict[str, int]:
        """Return the children by role: ``{"front 0": pid, "shard 0": pid, "shard 1": pid}``."""
        titles = {pid: _title(pid) for pid in self.pids()}
        roles = {
            title.removeprefix("topics: "): pid
            for pid, title in titles.items()
            if title.startswith("topics: ")
        }
        return {role: pid for role, pid in roles.items() if role.startswith(("front ", "shard "))}

    def wait_roles(self, count: int, timeout_s: float = START_S) -> dict[str, int]:
        """Wait until there are ``count`` children and return them."""
        deadline = time.monotonic() + timeout_s
        while len(roles := self.roles()) != count:
            assert time.monotonic() < deadline, (
                f"{count} children expected, there are {roles}:\n{self.log_tail}"
            )
            time.sleep(0.01)
        return roles

    @contextmanager
    def stopped(self, role: str) -> Iterator[None]:
        """Suspend one child. It may be replaced in the meantime."""
        pid = self.roles()[role]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            if pid in self.pids():
                os.kill(pid, signal.SIGCONT)

    def replace(self, role: str) -> None:
        """Kill one child. Return when another process has its role and the server is ready."""
        old = self.roles()[role]
        kill_one(old)
        deadline = time.monotonic() + START_S
        while self.roles().get(role, old) == old:
            assert time.monotonic() < deadline, f"{role} is not started again:\n{self.log_tail}"
            time.sleep(0.01)
        self.wait_ready()


class ShortTimeoutServer(Server):
    """A server whose long timeouts take seconds (`tests.support.short_timeouts`)."""

    module = "tests.support.short_timeouts"


def kill_one(pid: int) -> None:
    """Kill a process. It is no error if the process has already ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def rss_bytes(pid: int) -> int:
    """Return the resident memory, including shared memory but not pages of files, which are the
    kernel's cache.
    """
    held = re.findall(
        r"^Rss(?:Anon|Shmem):\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    assert len(held) == 2, "the kernel reports both"
    return 1024 * sum(map(int, held))


def open_files(pid: int) -> int:
    """Return the number of open file descriptors of the process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _wait_exited(handle: int) -> None:
    try:
        assert is_readable(handle, STOP_S), "a killed process does not exit"
    finally:
        os.close(handle)


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session_of(pid: int) -> int | None:
    """Return the session id, or None for a process that has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, _parent, _group, session = stat.rpartition(")")[2].split()[:4]
    return None if state in "ZX" else int(session)


def _title(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .strip(b"\0 ")
            .replace(b"\0", b" ")
            .decode(errors="replace")
        )
    except (FileNotFoundError, ProcessLookupError):
        return ""
