"""What is told before a JVM starts. None of these tests starts one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from tests.support.server import Server
from topics.spark.client.errors import RequestError
from topics.spark.client.http import Target, TopicsClient
from topics.spark.errors import JobError
from topics.spark.preflight import check_server, check_spark

ROOT = Path(__file__).resolve().parents[2]
TOLD_S = 1.0  # a mistake is told within this, on an idle machine; a busy one gets more


def run(tmp_path: Path, *arguments: str, **environ: str) -> tuple[int, str, float]:
    """The command line in a process of its own: exit status, what it says, seconds."""
    (tmp_path / "rows.csv").write_text("a\n1\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    line = [sys.executable, "-m", "workers.spark", "backfill", str(tmp_path / "rows.csv")]
    began = time.monotonic()
    done = subprocess.run(
        [*line, *arguments],
        env=env | {"PYTHONPATH": str(ROOT)} | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr, time.monotonic() - began


def in_one_line(said: str) -> bool:
    return said.startswith("error: ") and said.count("\n") == 1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    keys = "all,reader:r,writer:rw,other:r+w+d+a:x."
    with Server(tmp_path / "data", shards=1, api_keys=keys) as server:
        yield server


@pytest.mark.slow
def test_a_server_that_is_not_there_is_told_in_one_line_without_a_jvm(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    status, said, seconds = run(tmp_path, "t", "--url", url, JAVA_HOME="/nowhere")
    assert (status, in_one_line(said)) == (1, True), said
    assert "unreachable" in said
    assert seconds < 30 * TOLD_S


@pytest.mark.slow
def test_an_address_where_nobody_answers_is_not_waited_for() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        full = [socket.create_connection(silent.getsockname()) for _ in range(1)]
        began = time.monotonic()
        with pytest.raises(RequestError, match="unreachable"):
            check_server(
                Target(url=f"http://127.0.0.1:{silent.getsockname()[1]}", read_s=0.5), "t", None
            )
        assert time.monotonic() - began < 20
        for connection in full:
            connection.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:4000",
        "ftp://x",
        "http://",
        "http://x:port",
        "http://[::1",
        "http://x y",
        "http://x/?a",
        "http://x:0",
    ],
)
def test_what_is_no_address_is_told_as_such(url: str) -> None:
    with pytest.raises(JobError, match="is no address of a server; it looks like http://127"):
        check_server(Target(url=url), "t", None)


@pytest.mark.slow
def test_key_scope_prefix_and_name_are_refused_before_anything_is_made(server: Server) -> None:
    target = Target(url=f"http://{server.host}:{server.port}")
    for key, topic, code in [
        (None, "t", "unauthorized"),
        ("wrong", "t", "unauthorized"),
        ("reader", "t", "forbidden"),
        ("writer", "t", "forbidden"),  # it may append, and the topic is not there
        ("other", "t", "forbidden"),
        ("all", "no name", "invalid_request"),
        ("all", "-", "invalid_request"),
    ]:
        with pytest.raises(RequestError) as refused:
            check_server(replace(target, api_key=key), topic, None)
        assert refused.value.code == code, (key, topic)
    check_server(replace(target, api_key="all"), "t", None)
    check_server(replace(target, api_key="other"), "x.t", None)
    with TopicsClient(replace(target, api_key="all")) as client:
        assert client.state("t") is None, "asking makes no topic"
        client.put_topic("t", {})
    check_server(replace(target, api_key="writer"), "t", None)
    check_server(replace(target, api_key="writer"), "t", "disk")
    with pytest.raises(RequestError, match="forbidden"):
        check_server(replace(target, api_key="writer"), "t", "fsync")
    with pytest.raises(RequestError, match="forbidden"):
        check_server(replace(target, api_key="reader"), "t", None)


def test_a_queue_is_refused() -> None:
    with StubServer() as stub:
        stub.make("q", type="queue")
        with pytest.raises(JobError, match='topic "q" is a queue'):
            check_server(Target(url=stub.url), "q", None)


def test_a_server_that_is_recovering_is_waited_for() -> None:
    with StubServer() as stub:
        stub.make("t")
        stub.faults.append(Fault(status=503, code="not_ready"))
        check_server(Target(url=stub.url, backoff_s=0.0), "t", None)
        assert stub.statuses("POST") == [503, 400]


class Stranger(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def test_something_that_is_no_topics_server_is_told() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        thread = threading.Thread(target=stranger.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with pytest.raises(RequestError, match="is this address a topics server"):
            check_server(Target(url=f"http://127.0.0.1:{stranger.server_address[1]}"), "t", None)
        stranger.shutdown()
        thread.join()


def fake_java(path: Path, says: str, status: int = 0) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (None, "does not run"),
        ("no runtime here", "does not run"),
        ('openjdk version "11.0.2" 2019', "is of version 11"),
        ('java version "1.8.0_392"', "is of version 8"),
        ('openjdk version "17.0.15" 2025', ""),
        ('openjdk version "25" 2025', ""),
    ],
)
def test_a_java_that_is_missing_or_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None, told: str
) -> None:
    pytest.importorskip("pyspark")
    if says is not None:
        fake_java(tmp_path / "bin" / "java", says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if told:
        with pytest.raises(
            JobError, match=f"Java 17 or newer, and {tmp_path}/bin/java \\(from JAVA_HOME\\) {told}"
        ):
            check_spark()
    else:
        check_spark()


def test_no_java_at_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match="there is no java on PATH"):
        check_spark()
