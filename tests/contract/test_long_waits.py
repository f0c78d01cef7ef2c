"""Waits of 15 to 30 seconds (§3, §7.2, §10.2), on a server with shorter limits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.api import SLACK_S, Api, ok
from tests.support.metrics import scrape
from tests.support.queues import Queue, claiming, jobs_of, until
from tests.support.server import Server, ShortTimeoutServer
from tests.support.short_timeouts import WAIT_MAX_S
from tests.support.sse import RECORD, Stream, session

pytestmark = pytest.mark.slow

BLOCK = "x" * 100_000
BLOCKS = 200  # 20 MB, which exceed the buffers of the sockets


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ShortTimeoutServer(tmp_path_factory.mktemp("waits") / "data", shards=1) as server:
        yield server


def test_the_wait_of_a_diff_is_clamped(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    sent = time.monotonic()
    ok(api.diff(topic, wait_ms=2**32 - 1))
    assert WAIT_MAX_S - 0.1 <= time.monotonic() - sent <= WAIT_MAX_S + SLACK_S


def test_the_wait_of_a_claim_is_clamped(queue: Queue) -> None:
    with claiming(queue) as claims:
        started = time.monotonic()
        assert jobs_of(claims.start("w", wait_ms=2**32 - 1)) == []
        assert WAIT_MAX_S - 0.1 <= time.monotonic() - started <= WAIT_MAX_S + SLACK_S


def test_a_stalled_reader_is_disconnected_and_can_resume(api: Api, topic: str) -> None:
    def streams() -> float:
        return scrape(api).value("topics_sse_connections")

    ok(api.put(topic), 201)
    url = session(api, [topic])["stream_url"]
    seen: list[int] = []
    with Stream(api.address, url, receive_bytes=16 << 10) as stream:
        last_id = stream.read_until_caught_up([topic]).last_id
        assert streams() == 1
        for number in range(BLOCKS):
            ok(api.append(topic, [number, BLOCK]))
        until(streams, lambda count: count == 0)
        # Data in the buffers of the sockets can still be read. The stream may end within an event,
        # because the send buffer was full.
        try:
            while True:
                event = stream.event()
                if event.event == RECORD:
                    seen += [record["data"][0] for record in event.json()["records"]]
                    last_id = event.id or last_id
        except (EOFError, AssertionError, ConnectionError):
            pass
    assert len(seen) < BLOCKS
    with Stream(api.address, url, last_event_id=last_id) as stream:
        seen += [data[0] for data in stream.read_until_caught_up([topic]).data()]
    assert seen == list(range(BLOCKS))
