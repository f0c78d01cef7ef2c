"""Event streams with httpx-sse."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import pytest

from tests.support.api import Api, ok
from tests.support.event_sources import (
    TIMEOUT_S,
    Event,
    at,
    reads_a_backlog_and_live_records,
    records,
)
from tests.support.queues import Queue, work_path
from tests.support.server import Server
from tests.support.sse import session


class HttpxSource:
    """An httpx-sse client that reads events on request."""

    def __init__(self, url: str, **headers: str) -> None:
        httpx = pytest.importorskip("httpx", reason="httpx is not installed (the dev extra has it)")
        httpx_sse = pytest.importorskip(
            "httpx_sse", reason="httpx-sse is not installed (the dev extra has it)"
        )
        self._client = httpx.Client(trust_env=False, timeout=TIMEOUT_S, headers=headers)
        self._opening = httpx_sse.connect_sse(self._client, "GET", url)
        self.events: list[Event] = []
        self.retries: list[int] = []

    def __enter__(self) -> Self:
        self.source = self._opening.__enter__()
        self._stream = self.source.iter_sse()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opening.__exit__(kind, error, trace)
        self._client.close()

    def wait(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        while not enough(self.events):
            event = next(self._stream)
            self.retries += [] if event.retry is None else [event.retry]
            if event.data:
                self.events.append({"event": event.event, "id": event.id, "data": event.data})
        return self.events


def test_httpx_receives_the_events_of_a_watch(
    server: Server, api: Api, topic: str, url: str
) -> None:
    with HttpxSource(at(server.address, url)) as source:
        reads_a_backlog_and_live_records(source, api, topic)
        assert source.source.response.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_httpx_resumes_from_the_last_id_of_64_topics_with_long_names(
    server: Server, api: Api, topic: str
) -> None:
    names = [f"{topic}.{number}.".ljust(255, "n") for number in range(64)]
    for name in names:
        ok(api.append(name, 0), 201)
    path = session(api, names)["stream_url"]
    with HttpxSource(at(server.address, path)) as source:
        events = source.wait(lambda events: len(records(events)) == 64)
        last = events[-1]["id"]
        ok(api.append(names[7], "a", "b"))
        ok(api.append(names[9], "c"))
        source.wait(lambda events: len(records(events)) == 67)
        assert max(len(event["id"]) for event in events) <= 4096
    with HttpxSource(at(server.address, path), **{"Last-Event-ID": last}) as source:
        assert {"a", "b", "c"} <= {
            *records(source.wait(lambda events: {"a", "b", "c"} <= {*records(events)}))
        }


def test_closing_the_httpx_client_releases_its_jobs(queue: Queue) -> None:
    queue.push("a")
    path = work_path(queue.name, node="w", lease_ms=3_600_000)
    with HttpxSource(at(queue.api.address, path)) as source:
        source.wait(lambda events: len(events) == 1)
        assert queue.claim("other") == []
    (job,) = queue.claim_all(1, "other")
    assert job["deliveries"] == 2
