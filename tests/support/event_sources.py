"""Requirements for third-party clients of event streams: read a backlog and live records,
reconnect on their own, work on a queue.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from tests.support.api import Api, ok
from tests.support.queues import JOB, Job, Queue, tokens
from tests.support.relay import Relay
from tests.support.sse import CAUGHT_UP, ERROR, RECORD

TIMEOUT_S = 60.0  # A program may take long to start on a loaded machine
KEY = "live-key"
Event = dict[str, str]  # event, id, data
Address = tuple[str, int]


def records(events: list[Event]) -> list[Any]:
    """Return the data of all records in these events."""
    return [
        record["data"]
        for event in events
        if event["event"] == RECORD
        for record in json.loads(event["data"])["records"]
    ]


CANNED = (
    b"retry: 2000\n\n: hb\n\n"
    b'id: eyJ0IjoyfQ\nevent: record\ndata: {"topic":"t","records":[{"$seq":1,"data":"\xc3\xa9"},\n'
    b'data: {"$seq":2,"data":2}]}\n\n'
    b': hb\n\nid: eyJ0IjozfQ\nevent: caught-up\ndata: {"topic":"t","head_seq":2}\n\n'
)


class Source(Protocol):
    """A client with an open stream. ``wait`` returns all events since the start as soon as
    ``enough`` returns true for them.
    """

    def wait(self, enough: Callable[[list[Event]], bool]) -> list[Event]: ...


def reads_a_backlog_and_live_records(source: Source, api: Api, topic: str) -> None:
    """Check a source that was opened from the start of a topic that contains "old"."""
    source.wait(lambda events: any(event["event"] == CAUGHT_UP for event in events))
    ok(api.append(topic, {"line": "one\ntwo\u2028three"}, "new"))
    events = source.wait(lambda events: len(records(events)) == 3)
    assert records(events) == ["old", {"line": "one\ntwo\u2028three"}, "new"]
    assert [event["event"] for event in events][:2] == [RECORD, CAUGHT_UP]
    assert [event["id"] for event in events if event["event"] == RECORD][-1].rstrip("=")


def reconnects_by_itself(source: Source, api: Api, topic: str, relay: Relay) -> None:
    """Check that a cut loses and repeats no event, because the client sends its last event id when
    it reconnects.
    """
    source.wait(lambda events: any(event["event"] == CAUGHT_UP for event in events))
    expected: list[Any] = ["old"]
    for number in range(2):
        ok(api.append(topic, f"before cut {number}"))
        expected.append(f"before cut {number}")
        source.wait(lambda events: len(records(events)) >= len(expected))
        relay.cut()
        ok(api.append(topic, f"after cut {number}"))
        expected.append(f"after cut {number}")
        assert (
            records(source.wait(lambda events: len(records(events)) >= len(expected))) == expected
        )


def jobs(events: list[Event]) -> list[Job]:
    """Return the jobs of all events. Each event must have the seq of its job as its id."""
    found = [json.loads(event["data"]) for event in events if event["event"] == JOB]
    ids = [event["id"] for event in events if event["event"] == JOB]
    assert ids == [str(job["$seq"]) for job in found]
    return found


def works_on_a_queue(source: Source, queue: Queue) -> None:
    """Check a stream that was opened on an empty queue with a ``max`` of 2."""
    text = {"line": "one\ntwo\u2028three"}
    queue.push(text, 2, 3, 4)
    first = jobs(source.wait(lambda events: len(jobs(events)) == 2))
    assert [job["data"] for job in first] == [text, 2]
    assert queue.ack(first[:1], lease_ids=tokens(first[:1]))["acked"] == 1
    third = jobs(source.wait(lambda events: len(jobs(events)) == 3))[2]
    assert third["data"] == 3
    assert queue.ack([first[1], third])["acked"] == 2
    last = jobs(source.wait(lambda events: len(jobs(events)) == 4))[3]
    assert (last["data"], last["topic"], last["deliveries"]) == (4, queue.name, 1)
    assert queue.ack([last], lease_ids=tokens([last]))["acked"] == 1


def works_again_after_a_cut(source: Source, queue: Queue, relay: Relay) -> None:
    """Check that jobs pushed before a cut are pushed again after it, except acked jobs."""
    queue.push("a", "b")
    first = jobs(source.wait(lambda events: len(jobs(events)) == 2))
    assert queue.ack(first[:1])["acked"] == 1
    relay.cut()
    again = jobs(source.wait(lambda events: len(jobs(events)) == 3))[2]
    assert (again["data"], again["deliveries"]) == ("b", 2)
    assert queue.ack([again])["acked"] == 1


def at(address: Address, path: str, scheme: str = "http") -> str:
    return f"{scheme}://{address[0]}:{address[1]}{path}"


TABS_S = 2.5  # Above `retry` of an open stream: a reconnecting client has reconnected by then


def is_replaced(events: list[Event]) -> bool:
    return any(event["event"] == ERROR for event in events)


def leaves_the_session_to_another(first: Source, second: Source, api: Api, topic: str) -> None:
    """``second`` was opened on the session of ``first``. The first client is notified and must not
    reconnect.
    """
    first.wait(is_replaced)
    ok(api.append(topic, "for the second"))
    second.wait(lambda events: "for the second" in records(events))
    time.sleep(TABS_S)
    ok(api.append(topic, "also"))
    received = second.wait(lambda events: "also" in records(events))
    assert not is_replaced(received)
    events = first.wait(lambda _: True)
    assert [json.loads(one["data"])["code"] for one in events if one["event"] == ERROR] == [409]
    assert "also" not in records(events)
