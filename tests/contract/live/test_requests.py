"""Event streams with requests and sseclient-py. Both read with urllib3, which returns each chunk of
a chunked body immediately. A body that ends with its connection is returned in fixed-size blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from tests.support.api import Api, ok
from tests.support.event_sources import (
    TIMEOUT_S,
    Event,
    at,
    reads_a_backlog_and_live_records,
    records,
    works_on_a_queue,
)
from tests.support.queues import Queue, work_path
from tests.support.server import Server
from tests.support.sse import RECORD

NEEDED = "{} is not installed (the dev extra has it)"


class RequestsSource:
    """sseclient-py over a response of requests; `lines` reads the response without it."""

    def __init__(self, url: str, **headers: str) -> None:
        requests = pytest.importorskip("requests", reason=NEEDED.format("requests"))
        self._session = requests.Session()
        self._session.trust_env = False
        headers["Accept"] = "text/event-stream"
        self.response = self._session.get(url, headers=headers, stream=True, timeout=TIMEOUT_S)
        self.events: list[Event] = []
        self._source: Iterator[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.response.close()
        self._session.close()

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the stream as `requests` returns them with its default block size."""
        lines: Iterator[bytes] = self.response.iter_lines()
        return lines

    def wait(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        if self._source is None:
            sseclient = pytest.importorskip("sseclient", reason=NEEDED.format("sseclient-py"))
            self._source = iter(sseclient.SSEClient(self.response).events())
        while not enough(self.events):
            event = next(self._source)
            self.events.append({"event": event.event, "id": event.id or "", "data": event.data})
        return self.events


def test_sseclient_watches_topics_in_one_request(server: Server, api: Api, topic: str) -> None:
    ok(api.append(topic, "old"), 201)
    with RequestsSource(at(server.address, f"/v0/watch?topic={topic}")) as source:
        reads_a_backlog_and_live_records(source, api, topic)


def test_sseclient_receives_the_jobs_of_a_queue(queue: Queue) -> None:
    """The last job arrives although no other event follows it."""
    path = work_path(queue.name, node="w", max=2)
    with RequestsSource(at(queue.api.address, path)) as source:
        works_on_a_queue(source, queue)
    queue.becomes()


def test_requests_returns_the_line_of_each_record_as_soon_as_it_is_written(
    server: Server, api: Api, topic: str
) -> None:
    ok(api.append(topic, 0), 201)
    with RequestsSource(at(server.address, f"/v0/watch?topic={topic}")) as source:
        lines = source.lines()
        for number in range(3):
            data = next(line for line in lines if line.startswith(b'data: {"topic"'))
            while b'"records"' not in data:
                data = next(line for line in lines if line.startswith(b'data: {"topic"'))
            event = {"event": RECORD, "data": data.removeprefix(b"data: ").decode()}
            assert records([event]) == [number]
            assert json.loads(event["data"])["to_seq"] == number + 1
            ok(api.append(topic, number + 1))


@pytest.mark.parametrize(("bound", "most"), [("", 300_000), ("&max_batch_bytes=60000", 65_535)])
def test_max_batch_bytes_bounds_the_lines_of_a_backlog(
    server: Server, api: Api, topic: str, bound: str, most: int
) -> None:
    """Go's `bufio.Scanner` reads lines of less than 64 KiB."""
    record = {"data": "x" * 900, "tag": "t" * 200, "node": "n" * 100, "meta": {"m": "m" * 900}}
    ok(api.append(topic, records=[record] * 1000), 201)
    path = f"/v0/watch?topic={topic}&include_tags=true{bound}"
    with RequestsSource(at(server.address, path)) as source:
        lengths = []
        for line in source.lines():
            lengths.append(len(line))
            if line == b"event: caught-up":
                break
    assert most * 3 // 4 < max(lengths) < most
