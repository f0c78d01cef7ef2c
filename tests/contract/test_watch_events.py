"""Events of a watch stream (§7.2): heartbeats, loss, several topics, and resuming."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.support.api import SLACK_S, Api, create, data, ok
from tests.support.sse import (
    CAUGHT_UP,
    DELETED,
    ERROR,
    RECORD,
    TOMBSTONE,
    Stream,
    encoded,
    gap_ends,
    seqs,
    session,
    watch,
)
from topics.actors.link.tick import TICK_INTERVAL_S


def test_events_have_exactly_these_fields(api: Api, topic: str) -> None:
    """A live record is sent as the same event as an old one."""
    create(api, topic)
    write = {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 2}}
    with watch(api, [topic]) as stream:
        event = stream.event(CAUGHT_UP)
        assert (event.json(), event.cursor) == ({"topic": topic, "head_seq": 0}, {topic: 0})
        stream.quiet(0.1)
        ok(api.append(topic, records=[write, {"data": None}]))
        live = stream.event(RECORD)
    first, second = [record["$ts"] for record in api.read(topic)]
    with watch(api, [topic]) as stream:
        event = stream.event(RECORD)
        assert event.json() == {
            "topic": topic,
            "records": [
                {"$seq": 1, "$ts": first, "$node": "n", "data": {"a": 1}, "meta": {"m": 2}},
                {"$seq": 2, "$ts": second, "data": None},
            ],
            "from_seq": 0,
            "to_seq": 2,
            "head_seq": 2,
        }
        assert (event.cursor, live.data, live.id) == ({topic: 2}, event.data, event.id)
        after = stream.event(CAUGHT_UP)
        assert (after.json(), after.cursor) == ({"topic": topic, "head_seq": 2}, {topic: 2})


@pytest.mark.slow
def test_an_idle_stream_sends_one_heartbeat_in_each_interval(api: Api, topic: str) -> None:
    """The value 0 is clamped to the shortest interval of one second."""
    create(api, topic)
    with watch(api, [topic], heartbeat_ms=0) as stream:
        stream.event(CAUGHT_UP)
        before = time.monotonic()  # the last data is sent after this time
        ok(api.append(topic, "x"))
        stream.records(1)
        for number in (1, 2):
            assert stream.block(timeout_s=1 + SLACK_S).lines == (b": hb",)
            # Each heartbeat is sent at the last tick before its interval ends.
            assert time.monotonic() - before >= number - TICK_INTERVAL_S - 0.1


def test_line_ends_in_a_payload_do_not_end_an_event(api: Api, topic: str) -> None:
    create(api, topic)
    inner = (
        b'{"a":\n\n1,\r\n"event: x":\r[2,\n\n\n3],\n"id":\n'
        b'"\\n\\r\\u2028\xe2\x80\xa8\xe2\x80\xa9\xc2\x85"}'
    )
    body = b'{"records":[{"data":%s,"meta":{\n\n"data:":\r\n\r\n"x"}},{"data":\n"next"\n}]}' % inner
    for _ in range(2):
        ok(api.call("POST", f"/v0/topics/{topic}", body))
    with watch(api, [topic]) as stream:
        backlog = stream.read_until_caught_up([topic]).records
        ok(api.call("POST", f"/v0/topics/{topic}", body))
        live = stream.records(2)
        ok(api.append(topic, "after"))
        assert data(stream.records(1)) == ["after"]
    for pair in (backlog[:2], backlog[2:], live):
        assert data(pair) == [json.loads(inner), "next"]
        assert pair[0]["meta"] == {"data:": "x"}


# --- loss


def test_a_start_below_the_floor_is_reported_at_connect(api: Api, topic: str) -> None:
    create(api, topic, *range(10), cap_records=4)
    with watch(api, [topic]) as stream:
        event = stream.event(TOMBSTONE)
        body = event.json()
        assert gap_ends(body, "from_seq_too_old") == (1, 6)
        assert (body["topic"], body["earliest_seq"], body["head_seq"]) == (topic, 7, 10)
        assert event.cursor == {topic: 6}
        contents = stream.read_until_caught_up([topic])
    assert (seqs(contents.records), contents.tombstones) == ([7, 8, 9, 10], [])
    assert contents.of(RECORD)[0]["from_seq"] == 6


def test_a_write_larger_than_the_cap_is_reported_as_a_gap_in_a_live_stream(
    api: Api, topic: str
) -> None:
    create(api, topic, cap_records=2)
    with watch(api, [topic]) as stream:
        stream.read_until_caught_up([topic])
        ok(api.append(topic, *range(1, 7)))
        assert gap_ends(stream.event(TOMBSTONE).json(), "cap") == (1, 4)
        assert data(stream.records(2)) == [5, 6]


def recreated(stream: Stream, topic: str, head: int) -> None:
    """Check for the tombstone of a recreated topic, followed by all of its records."""
    contents = stream.read_until_caught_up([topic])
    assert [gap_ends(body, "recreated") for body in contents.tombstones] == [(1, head)]
    assert contents.events[0].event == TOMBSTONE
    assert seqs(contents.records) == list(range(1, head + 1))


def test_another_epoch_or_a_start_above_the_head_is_reported_as_a_recreated_topic(
    api: Api, topic: str
) -> None:
    old = create(api, topic, 1, 2, 3)
    ok(api.delete(topic))
    new = create(api, topic, 4, 5, 6, 7)
    for start in ({"from_seq": 2, "epoch": old}, {"from_seq": 50}):
        with watch(api, {topic: start}) as stream:
            recreated(stream, topic, 4)
    with watch(api, {topic: {"from_seq": 2, "epoch": new}}) as stream:
        contents = stream.read_until_caught_up([topic])
        assert (contents.tombstones, contents.data()) == ([], [6, 7])


def test_the_recreation_of_a_topic_is_reported_again_to_a_client_that_missed_it(
    api: Api, topic: str
) -> None:
    """The client did not receive the tombstone and the records after it, so it resumes with an id
    of the old topic.
    """
    create(api, topic, 1, 2, 3)
    url = session(api, [topic])["stream_url"]
    with Stream(api.address, url) as stream:
        last_id = stream.read_until_caught_up([topic]).last_id
        stream.leave()
    ok(api.delete(topic))
    create(api, topic, *range(8))
    for _ in range(2):
        with Stream(api.address, url, last_event_id=last_id) as stream:
            recreated(stream, topic, 8)
            newest = stream.blocks[-1].id or ""
    with Stream(api.address, url, last_event_id=newest) as stream:
        contents = stream.read_until_caught_up([topic])
        assert (contents.tombstones, contents.records) == ([], [])


# --- several topics


@pytest.mark.slow
def test_a_stream_of_256_topics_sends_records_of_each_and_resumes(
    api: Api, new_name: Callable[[], str]
) -> None:
    names = [new_name() for _ in range(256)]
    for name in names:
        create(api, name)
    url = session(api, {name: {"tail": True} for name in names})["stream_url"]
    with Stream(api.address, url) as stream:
        contents = stream.read_until_caught_up(names)
        assert sorted(body["topic"] for body in contents.of(CAUGHT_UP)) == sorted(names)
        last_id, seen = "", 0
        for name in names:
            ok(api.append(name, name))
        while len(contents.records) < len(names):
            contents.take(event := stream.event(RECORD, CAUGHT_UP))
            if len(contents.records) <= len(names) / 2:
                last_id, seen = event.id or "", len(contents.records)
    assert {name: contents.data(name) for name in names} == {name: [name] for name in names}
    assert len(last_id) < 8 * 1024  # a client returns the id in a header
    with Stream(api.address, url, last_event_id=last_id) as stream:
        assert sorted(stream.read_until_caught_up(names).data()) == sorted(contents.data()[seen:])


def test_a_deleted_topic_ends_only_its_part_of_a_stream_and_is_reported_again_on_resume(
    api: Api, new_name: Callable[[], str]
) -> None:
    deleted, remaining = new_name(), new_name()
    create(api, deleted, 1, 2)
    create(api, remaining)
    url = session(api, [deleted, remaining])["stream_url"]
    with Stream(api.address, url) as stream:
        stream.read_until_caught_up([deleted, remaining])
        ok(api.delete(deleted))
        event = stream.event(DELETED)
        assert event.json() == {"topic": deleted, "head_seq": 2, "reason": "deleted"}
        ok(api.append(deleted, "another topic"), 201)
        ok(api.append(remaining, "x"))
        assert data(stream.records(1)) == ["x"]
        stream.quiet(0.05)
    with Stream(api.address, url, last_event_id=stream.blocks[-1].id) as stream:
        event = stream.event(DELETED)
        assert event.json() == {"topic": deleted, "head_seq": 2, "reason": "deleted"}
        assert event.cursor == {deleted: 2, remaining: 1}
        ok(api.append(remaining, "y"))
        assert data(stream.records(1)) == ["y"]


def test_last_event_id_applies_to_each_topic_separately(
    api: Api, new_name: Callable[[], str]
) -> None:
    """It may move a cursor back before the start of the session, never forward. It may name other
    topics, which are ignored.
    """
    left, right, _ = names = [new_name() for _ in range(3)]
    for name in names:
        create(api, name, *range(6))
    url = session(api, {name: {"from_seq": 3} for name in names})["stream_url"]
    last_id = encoded({left: 5, right: 1, "nobody-watches-this": 0})
    with Stream(api.address, url, last_event_id=last_id) as stream:
        contents = stream.read_until_caught_up(names)
    assert [contents.data(name) for name in names] == [[3, 4, 5], [1, 2, 3, 4, 5], [3, 4, 5]]


def test_a_second_get_takes_over_the_session(api: Api, topic: str) -> None:
    create(api, topic, 1)
    url = session(api, [topic])["stream_url"]
    with Stream(api.address, url) as first:
        first.read_until_caught_up([topic])
        with Stream(api.address, url) as second:
            last = first.event(ERROR)
            assert (type(last.json()["code"]), type(last.json()["error"])) == (int, str)
            assert last.id is None
            assert last.retry == "2147483647", "an EventSource must not reconnect immediately"
            with pytest.raises(EOFError):
                first.block()
            ok(api.append(topic, 2))
            assert data(second.records(1)) == [2]
