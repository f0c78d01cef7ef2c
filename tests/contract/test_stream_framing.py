"""The framing of event streams: chunks in HTTP/1.1, the end of the connection in HTTP/1.0."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import TIMEOUT_S, Api, Wire, create, ok, refused, request
from tests.support.queues import Queue, work_path
from tests.support.server import Server
from tests.support.sse import ERROR, Decoder, SseEvent, refused_stream, session
from tests.support.ws import Socket

LAST = b""


class ChunkWire(Wire):
    """A connection that returns single chunks."""

    def chunk(self) -> bytes:
        """Return the data of the next chunk, which is empty at the end of the body."""
        size = int(self._until(b"\r\n"), 16)
        data = self._take(size)
        assert self._take(2) == b"\r\n"
        return data

    def chunk_with(self, text: bytes) -> bytes:
        """Return the next chunk that contains this text. Each earlier chunk is a complete event."""
        while text not in (data := self.chunk()):
            assert data.endswith(b"\n\n"), data
        return data


def opened(api: Api, path: str, version: str = "1.1") -> tuple[ChunkWire, dict[str, str]]:
    """Open a stream and return it with its header fields."""
    wire = ChunkWire(api.address)
    head = request("GET", path, None, "Accept: text/event-stream")
    wire.send(head.replace(b" HTTP/1.1\r\n", f" HTTP/{version}\r\n".encode()))
    status, headers = wire.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    return wire, headers


def events_in(data: bytes) -> list[SseEvent]:
    decoder = Decoder()
    found = decoder.feed(data)
    assert not decoder.unfinished, data
    return found


def of_a_session(api: Api, topic: str) -> str:
    return str(session(api, [topic])["stream_url"])


def of_a_topic(_api: Api, topic: str) -> str:
    return f"/v0/watch?topic={topic}"


WAYS = [of_a_session, of_a_topic]
EACH_WAY = pytest.mark.parametrize("way", WAYS, ids=["session", "one request"])


@EACH_WAY
@pytest.mark.parametrize("size", [1, 40_000, 600_000])
def test_each_event_of_a_watch_is_one_chunk(
    api: Api, topic: str, way: Callable[[Api, str], str], size: int
) -> None:
    create(api, topic, "old")
    wire, headers = opened(api, way(api, topic))
    with wire:
        assert headers["transfer-encoding"] == "chunked"
        assert "content-length" not in headers
        wire.chunk_with(b"caught-up")
        for number in range(2):
            ok(api.append(topic, f"{number}".ljust(size, "x")))
            (event,) = events_in(wire.chunk_with(b"event: record"))
            (record,) = event.json()["records"]
            assert record["data"] == f"{number}".ljust(size, "x")


def test_each_job_is_pushed_in_one_chunk(queue: Queue) -> None:
    wire, headers = opened(queue.api, work_path(queue.name, node="w", max=2))
    with wire:
        assert headers["transfer-encoding"] == "chunked"
        assert b": hb\n\n" in wire.chunk()
        for data in ("a", "b" * 50_000):
            queue.push(data)
            (event,) = events_in(wire.chunk_with(b"event: job"))
            assert event.json()["data"] == data


@EACH_WAY
def test_http_1_0_gets_no_chunks(api: Api, topic: str, way: Callable[[Api, str], str]) -> None:
    create(api, topic, "old")
    wire, headers = opened(api, way(api, topic), "1.0")
    with wire:
        assert "transfer-encoding" not in headers
        assert headers["connection"] == "close"
        body = wire._until(b"event: caught-up")
        assert b"retry: 2000\n\n" in body
        assert b'"data":"old"' in body
        assert b"\r\n" not in body


def ended(wire: ChunkWire) -> list[SseEvent]:
    """Return the events up to the last chunk, after which the server must close without a reset."""
    body = b""
    while data := wire.chunk():
        body += data
    assert wire.socket.recv(1) == b""
    return events_in(body)


@EACH_WAY
def test_a_client_that_closes_its_sending_side_gets_the_last_chunk(
    api: Api, topic: str, way: Callable[[Api, str], str]
) -> None:
    create(api, topic, 1)
    wire, _ = opened(api, way(api, topic))
    with wire:
        wire.chunk_with(b"caught-up")
        wire.socket.shutdown(1)
        assert ended(wire) == []


def test_a_stop_ends_all_streams_with_the_last_chunk(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        with Api(server.address) as api:
            create(api, "t", 1)
            queue = Queue.create(api, "q", "job", leases_durable=True)
            watched, socket = of_a_session(api, "t"), Socket(server.address)
            paths = (watched, of_a_topic(api, "t"), work_path(queue.name, node="w"))
            wires = [opened(api, path)[0] for path in paths]
            wires[-1].chunk_with(b"event: job")
            server.terminate()
            for wire in wires:
                with wire:
                    last = ended(wire)[-1]
                    assert (last.event, last.json()["code"]) == (ERROR, 503)
            with socket:
                assert socket.message("error")["code"] == "shutting_down"
                assert socket.closed() == 1001
        server.wait_stopped()
        server.start()
        refused(refused_stream(server.address, watched, "Accept: */*"), 404, "not_found")
        with Api(server.address) as api:
            (job,) = Queue(api, "q").claim("other")
            assert (job["data"], job["deliveries"]) == ("job", 2)


@pytest.mark.parametrize("options", [[], ["--http1.0"]], ids=["1.1", "1.0"])
def test_curl_prints_events_and_exits_without_an_error(tmp_path: Path, options: list[str]) -> None:
    """Exit status 18 would report a truncated body."""
    curl: Any = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    with Server(tmp_path / "data") as server, Api(server.address) as api:
        create(api, "t", "old")
        url = f"http://{server.address[0]}:{server.address[1]}/v0/watch?topic=t"
        with subprocess.Popen(
            [curl, "-sN", "--noproxy", "*", *options, url], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            while b"caught-up" not in process.stdout.readline():
                pass
            ok(api.append("t", "new"))
            while b'"data":"new"' not in process.stdout.readline():
                pass
            server.terminate()
            rest = process.stdout.read()
            assert b'"code":503' in rest
            assert process.wait(TIMEOUT_S) == 0
        server.wait_stopped()
