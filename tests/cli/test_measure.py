"""ping and bench: their measurements and their clean-up."""

from __future__ import annotations

import http.client
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, started
from tests.client.conftest import url_of
from tests.support.server import Server
from topics.cli import ping
from topics.client import ConnectionLost, Topics


def is_cleaned_up(client: Topics) -> bool:
    return not [*client.topics("ping:"), *client.topics("bench:")]


@pytest.mark.parametrize("via", ["watch", "ws"])
def test_ping_measures_each_record(topics: Run, client: Topics, via: str) -> None:
    done = topics("--json", "ping", "--via", via, "-n", "3", "--interval", "1ms")
    *pings, found = done.objects
    assert done.code == 0
    assert [one["ping"] for one in pings] == [1, 2, 3]
    assert all(one["ms"] > 0 and one["ack_ms"] > 0 and one["why"] is None for one in pings)
    assert (found["sent"], found["arrived"], found["proxy"]) == (3, 3, None)
    assert found["min_ms"] <= found["median_ms"] <= found["p99_ms"]
    assert is_cleaned_up(client)


def test_ping_writes_plain_lines_to_a_pipe(topics: Run) -> None:
    line, found = topics("ping", "-n", "1").out.splitlines()
    assert re.fullmatch(r"1  [\d.]+ ms  acknowledged after [\d.]+ ms", line)
    assert re.fullmatch(r"1 sent, 1 arrived  min [\d.]+ ms  median .* ms  p99 [\d.]+ ms", found)


def test_heartbeats_without_the_record_are_reported_as_a_slow_server(
    client: Topics, name: str
) -> None:
    def listen(*_: object) -> Iterator[Any]:
        yield {"via": "1.1 relay"}
        while True:
            time.sleep(0.01)
            yield None

    with ping.PingRun(client.topic(name), listen, 0.05) as run:  # type: ignore[arg-type]
        found = run.ping(1)
    assert (found["ms"], found["why"], run.proxy) == (None, ping.SLOW, "via: 1.1 relay")
    assert found["ack_ms"] > 0


@pytest.mark.parametrize("failure", [ConnectionLost("gone"), TimeoutError()])
def test_a_failed_stream_is_closed_immediately(
    client: Topics, name: str, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the garbage collector closes it in any thread, which can deadlock with itself."""
    closed: list[int] = []

    def listen(*_: object) -> Iterator[Any]:
        try:
            yield {}
            yield from ("1", 1)
            yield 2
        finally:
            closed.append(1)

    def fail(*_: object) -> None:
        raise failure

    topic = client.topic(name)
    with ping.PingRun(topic, listen, 10.0) as run:  # type: ignore[arg-type]
        assert run.ping(1)["ms"]
        monkeypatch.setattr(type(topic), "append", fail)
        kept = run._stream  # as a traceback keeps it
        assert run.ping(2)["ms"] is None
        assert kept
        assert closed == [1]


@contextmanager
def buffering_proxy(server: Server, *, sends_head: bool) -> Iterator[str]:
    """A proxy that forwards complete responses only, and therefore no stream."""
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def handle_one_request(self) -> None:
            if not self.raw_request():
                self.close_connection = True
                return
            if self.path.startswith("/v0/watch"):
                if sends_head:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.flush()
                is_over.wait(60)
                self.close_connection = True
                return
            far = http.client.HTTPConnection(*server.address)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {"Content-Type": "application/json"} if body else {}
            far.request(self.command, self.path, body, headers)
            answer = far.getresponse()
            content = answer.read()
            far.close()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def raw_request(self) -> bool:
            self.raw_requestline = self.rfile.readline(65536)
            return bool(self.raw_requestline) and self.parse_request()

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        is_over.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("sends_head", [True, False])
def test_ping_names_a_proxy_that_buffers(topics: Run, server: Server, sends_head: bool) -> None:
    with buffering_proxy(server, sends_head=sends_head) as url:
        done = topics("--json", "ping", "-n", "1", "--wait", "3s", "--url", url)
    one, found = done.objects
    assert done.code == 1
    assert (one["ms"], one["why"]) == (None, ping.BUFFERS)
    if sends_head:
        assert one["ack_ms"] > 0
        assert found["proxy"].startswith("server: BaseHTTP")
    assert found["arrived"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("via", "end"), [("watch", "stop"), ("ws", "kill")])
def test_ping_continues_after_a_restart_of_the_server(tmp_path: Path, via: str, end: str) -> None:
    with Server(tmp_path / "data", shards=1) as server:
        arguments = ("ping", "--json", "--interval", "50ms", "--via", via)
        with started(*arguments, "--url", url_of(server)) as process:
            assert process.stdout is not None
            lines = map(json.loads, process.stdout)
            assert next(lines)["ms"]
            server.env["TOPICS_PORT"] = str(server.port)
            server.restart(end)
            assert next(one for one in lines if one["ms"] is None)["why"]
            assert next(one for one in lines if one["ms"])
            process.send_signal(signal.SIGINT)
            *_, found = lines
            assert found["arrived"] < found["sent"]
            assert process.wait(30) == 1
        with Topics(url_of(server)) as client:
            assert is_cleaned_up(client)


@pytest.mark.slow
def test_ctrl_c_ends_ping_normally_and_interrupts_bench(url: str, client: Topics) -> None:
    with started("ping", "--interval", "10ms", "--url", url) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("1 ")
        process.send_signal(signal.SIGINT)
        assert " sent, " in process.communicate(timeout=30)[0]
        assert process.returncode == 0
    with started("bench", "live", "--seconds", "60", "--url", url) as process:
        deadline = time.monotonic() + 30
        while not any(topic.count for topic in client.topics("bench:")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "topics: interrupted\n")
        assert process.returncode == 130
    assert is_cleaned_up(client)


@pytest.mark.parametrize("kind", ["append", "read", "live", "queue"])
def test_bench_measures_a_load(topics: Run, client: Topics, kind: str) -> None:
    arguments = ("--seconds", "0.1", "--clients", "2", "--batch", "10", "--size", "1k")
    done = topics("bench", kind, *arguments, "--durability", "memory", "--json", "-q")
    assert (done.code, done.err) == (0, "")
    (found,) = done.objects
    assert found["records_per_s"] >= 10 * found["operations_per_s"] * 0.99 > 0
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert found["client_cpu_s"] > 0
    assert is_cleaned_up(client)


def test_bench_writes_plain_lines_to_a_pipe(topics: Run) -> None:
    load, figures = topics("bench", "append", "--seconds", "0.1", "-q").out.splitlines()
    assert load == "append: 4 clients, batches of 1, 100 B, disk"
    assert re.match(r"[\d,]+ records/s  [\d,]+ operations/s  p50 ", figures)
