"""A complete server with an unwritable stderr: it serves, restarts dead processes and stops in
order.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import ROOT, Log, Server

pytestmark = pytest.mark.slow


class UnreadableLogServer(Server):
    """A server whose stderr belongs to the test, so that its log cannot be read."""

    def launch(self, stderr: int | None) -> None:
        """Start the server. If ``stderr`` is None, its stderr is closed."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.host, self.port = taken.getsockname()
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")
        } | self.env
        environ |= {"TOPICS_PORT": str(self.port), "TOPICS_DATA_DIR": str(self.data_dir)}
        closing = ["sh", "-c", 'exec "$@" 2>&-', "sh"] if stderr is None else []
        self.process = subprocess.Popen(
            [*closing, sys.executable, "-m", "topics", "serve"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        nothing, end = os.pipe()
        os.close(end)
        self.log = Log(os.fdopen(nothing, "rb"))
        self.wait_ready()

    def request(self, method: str, path: str, body: object = None) -> int:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(
                method,
                path,
                json.dumps(body) if body else None,
                {"Content-Type": "application/json"},
            )
            return connection.getresponse().status


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """Return both ends of a full pipe that no process reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n")
    os.set_blocking(writer, True)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def run_once_and_stop(server: UnreadableLogServer) -> None:
    """Serve, replace each process, and serve again."""
    before = server.wait_roles(2)
    assert server.request("POST", "/v0/topics/a", {"records": [{"data": 1}]}) == 201
    for role in before:
        server.replace(role)
    assert server.request("POST", "/v0/topics/a", {"records": [{"data": 2}]}) == 200


@pytest.mark.parametrize("stderr", ["full disk", "closed"])
def test_a_server_with_an_unwritable_log_serves_restarts_and_stops(
    stderr: str, tmp_path: Path
) -> None:
    server = UnreadableLogServer(tmp_path / "data", shards=1, log_level="debug")
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        server.launch(full if stderr == "full disk" else None)
        run_once_and_stop(server)
        server.stop()
    finally:
        os.close(full)
        server.kill()


def test_a_server_whose_log_is_not_read_serves_and_reports_the_lost_lines_later(
    tmp_path: Path, full_pipe: tuple[int, int]
) -> None:
    reader, writer = full_pipe
    server = UnreadableLogServer(tmp_path / "data", shards=1, log_level="debug")
    try:
        server.launch(writer)
        run_once_and_stop(server)
        log = Log(os.fdopen(os.dup(reader), "rb"))
        assert log.event("log lines dropped", 60)["count"] >= 1
        server.stop()
    finally:
        server.kill()
