"""Many readers, slow readers, idle readers and readers that come and go (§7.2)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.api import SLACK_S, Api, data, ok
from tests.support.server import Server
from tests.support.sse import CAUGHT_UP, RECORD, Stream, session, watch
from topics.actors.link.beat import BEAT_S

KIB = 1024


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


# --- heartbeats: the shortest interval is 1 s, so these are slow


@pytest.mark.slow
@pytest.mark.parametrize("heartbeat_ms", [0, 1000])
def test_an_idle_stream_sends_one_heartbeat_in_each_interval(
    api: Api, topic: str, heartbeat_ms: int
) -> None:
    ok(api.put(topic), 201)
    with watch(api, [topic], heartbeat_ms=heartbeat_ms) as stream:
        stream.event(CAUGHT_UP)
        before = time.monotonic()  # the last data goes out after this
        ok(api.append(topic, "x"))
        stream.records(1)
        for number in (1, 2):
            assert stream.block(timeout_s=1 + SLACK_S).lines == (b": hb",)
            # Each is sent at the last tick before the interval ends.
            assert time.monotonic() - before >= number - BEAT_S - 0.1
        ok(api.append(topic, "y"))
        assert data(stream.records(1)) == ["y"]


@pytest.mark.slow
def test_a_stream_that_carries_records_sends_no_heartbeat(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    with watch(api, [topic], heartbeat_ms=1000) as stream:
        stream.event(CAUGHT_UP)
        sent, close = time.monotonic(), 0
        for number in itertools.count():
            time.sleep(0.05)
            before, sent, seen = sent, time.monotonic(), len(stream.blocks)
            ok(api.append(topic, number))
            assert data(stream.records(1)) == [number]
            # The last two left the server within this time, before a heartbeat was due.
            if time.monotonic() - before < 1 - BEAT_S - 0.1:
                close += 1
                assert not [event.lines for event in stream.blocks[seen:] if event.comments]
            if close == 10:
                break


# --- many readers of one topic

VIEWS: list[dict[str, Any]] = [
    {},
    {},
    {"include_tags": True},
    {"include_meta": False},
    {"include_data": False},
    {"limit": 1},
    {"max_batch_bytes": 1},
    {"node": "a"},
    {"node": ["a", "b"]},
    {"consistency": "strong"},
    {"node": "a", "include_data": False, "limit": 3},
]


def test_readers_with_different_options_see_one_topic_each_in_their_way(
    api: Api, topic: str
) -> None:
    ok(api.put(topic), 201)
    streams = [watch(api, [topic], **view) for view in VIEWS]
    try:
        for stream in streams:
            stream.told([topic])
        for number in range(0, 40, 4):
            writes = [
                {"data": number + at, "node": "abcd"[at], "tag": "t", "meta": {"m": 1}}
                for at in range(4)
            ]
            ok(api.append(topic, records=writes))
        for view, stream in zip(VIEWS, streams, strict=True):
            hidden = {"abcd".index(node) for node in view.get("node", [])}
            expected = [seq for seq in range(1, 41) if (seq - 1) % 4 not in hidden]
            records = stream.records(len(expected))
            assert [record["$seq"] for record in records] == expected, view
            shown = {name for record in records for name in record}
            assert ("data" in shown, "$tag" in shown) == (
                view.get("include_data", True),
                view.get("include_tags", False),
            ), view
            assert ("meta" in shown) == (
                view.get("include_meta", True) and view.get("include_data", True)
            ), view
    finally:
        for stream in streams:
            stream.close()


def test_readers_at_different_places_meet_at_the_head(api: Api, topic: str) -> None:
    ok(api.append(topic, *range(50)), 201)
    streams = {
        start: watch(api, {topic: {"from_seq": start}}, limit=7) for start in (0, 1, 10, 49, 50)
    }
    try:
        for start, stream in streams.items():
            assert stream.told([topic]).data() == list(range(start, 50))
        ok(api.append(topic, "x", "y"))
        for stream in streams.values():
            assert data(stream.records(2)) == ["x", "y"]
    finally:
        for stream in streams.values():
            stream.close()


@pytest.mark.slow
def test_readers_that_join_while_records_flow_see_each_record_once(
    server: Server, api: Api, topic: str, pool: ThreadPoolExecutor
) -> None:
    ok(api.put(topic), 201)
    count = 400

    def write() -> None:
        with Api(server.address) as own:
            for number in range(count):
                ok(own.append(topic, number))

    def read(delay_s: float) -> list[Any]:
        time.sleep(delay_s)
        with Api(server.address) as own, watch(own, [topic]) as stream:
            return data(stream.records(count))

    readers = [pool.submit(read, number * 0.03) for number in range(10)]
    pool.submit(write).result(60)
    for reader in readers:
        assert reader.result(60) == list(range(count))


# --- readers that stall

BLOCK = "x" * 100 * KIB
BLOCKS = 200  # 20 MB: more than what sockets hold


@pytest.mark.slow
def test_a_stalled_reader_reads_everything_later(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    url = session(api, [topic])["stream_url"]
    with Stream(api.address, url, receive_bytes=16 * KIB) as stream:
        stream.told([topic])
        for number in range(BLOCKS):
            ok(api.append(topic, [number, BLOCK]))
        records = stream.records(BLOCKS, timeout_s=30)
        assert [record["data"][0] for record in records] == list(range(BLOCKS))
        ok(api.append(topic, "live again"))
        assert data(stream.records(1)) == ["live again"]


@pytest.mark.slow
def test_a_stalled_reader_is_given_larger_events(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    with watch(api, [topic]) as reference:
        reference.told([topic])
        with Stream(
            api.address, session(api, [topic])["stream_url"], receive_bytes=16 * KIB
        ) as stream:
            stream.told([topic])
            for number in range(40):
                ok(api.append(topic, [number, BLOCK]))
                reference.records(1)
            for number in range(600):
                ok(api.append(topic, number))
            events: list[Any] = []
            while sum(len(event["records"]) for event in events) < 640:
                event = stream.event(RECORD, CAUGHT_UP)
                events += [event.json()] if event.event == RECORD else []
    assert [record["$seq"] for event in events for record in event["records"]] == list(
        range(1, 641)
    )
    assert len(events) < 160


@pytest.mark.slow
@pytest.mark.parametrize("same_view", [True, False], ids=["7.2 same options", "7.2 other options"])
def test_a_stalled_reader_delays_nobody(
    server: Server, api: Api, topic: str, same_view: bool
) -> None:
    ok(api.put(topic), 201)
    url = session(api, [topic])["stream_url"]
    with (
        Stream(server.address, url, receive_bytes=16 * KIB) as stalled,
        watch(api, [topic], include_tags=not same_view) as quick,
    ):
        stalled.told([topic])
        quick.told([topic])
        slowest = 0.0
        for number in range(BLOCKS):
            sent = time.monotonic()
            ok(api.append(topic, [number, BLOCK]))
            (record,) = quick.records(1)
            slowest = max(slowest, time.monotonic() - sent)
            assert record["data"][0] == number
    assert slowest < SLACK_S


@pytest.mark.slow
def test_a_cap_bounds_what_a_stalled_reader_is_owed(api: Api, topic: str) -> None:
    ok(api.put(topic, {"cap_records": 20}), 201)
    with Stream(api.address, session(api, [topic])["stream_url"], receive_bytes=16 * KIB) as stream:
        stream.told([topic])
        for number in range(BLOCKS):
            ok(api.append(topic, [number, BLOCK]))
        seen: set[int] = set()
        at = 0
        while at < BLOCKS:
            body = (event := stream.event()).json()
            if event.event == RECORD:
                found = [record["$seq"] for record in body["records"]]
                assert found == list(range(at + 1, at + 1 + len(found)))
                at = found[-1]
                seen.update(found)
            elif event.event != CAUGHT_UP:
                assert body["gap_from"] == at + 1
                at = body["gap_to"]
    assert seen >= set(range(BLOCKS - 19, BLOCKS + 1))
