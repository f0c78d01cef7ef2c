"""The dest reports records that the source lost before they were forwarded, as a ``source_trim``
tombstone (§3.3, §6, §7.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.api import Api, data, ok
from tests.support.copies import arrived, forwarded, kept, passed, route, shown
from tests.support.queues import until
from tests.support.routers import names_for
from tests.support.sse import CAUGHT_UP, RECORD, TOMBSTONE, Stream, gap_ends, seqs, session, watch
from tests.support.ws import Socket

Ends = tuple[str, str]
TRIM = "source_trim"
EVICTED = 20  # records that the source has evicted
KEPT = 5


def trimmed(api: Api, source: str, dest: str, **config: Any) -> str:
    """Forward "first" to the dest, then append records. The source keeps only the last 5."""
    ok(api.put(source, {"cap_records": KEPT, **config}), 201)
    ok(api.put(dest, {"discard": "reject", "cap_records": 1, **config}), 201)
    name = route(api, source, dest)
    ok(api.append(source, "first"))
    arrived(api, dest, "first")
    for number in range(EVICTED + KEPT):
        ok(api.append(source, number))
    return name


def gap_of(page: Any) -> tuple[int, int] | None:
    """Return the gap that a page of the dest reports."""
    if page["tombstone"] is None:
        return None
    assert page["tombstone"]["reason"] == TRIM, page["tombstone"]
    return page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]


def wait_until_forwarded(api: Api, dest: str) -> None:
    """Wait until the head of the dest has passed all records of the source."""
    until(lambda: api.state(dest)["head_seq"], lambda head: head == 1 + EVICTED + KEPT)


def open_again(api: Api, dest: str) -> None:
    ok(api.put(dest, {"cap_records": 1000}))


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
def test_records_evicted_from_the_source_are_reported_as_a_gap_in_the_dest(
    api: Api, ends: Ends, durability: str
) -> None:
    source, dest = ends
    name = trimmed(api, source, dest, durability=durability)
    found = shown(api, name)
    assert (found["forwarded_total"], found["lag_records"]) == (1, KEPT)
    open_again(api, dest)
    expected = [*range(EVICTED, EVICTED + KEPT)]
    passed(api, name)
    wait_until_forwarded(api, dest)
    page = ok(api.diff(dest))
    assert (data(page["records"]), gap_of(page)) == (["first"], None)
    assert page["next_from_seq"] == 1, "the page did not end before the gap"
    page = ok(api.diff(dest, from_seq=1))
    assert gap_of(page) == (2, 1 + EVICTED)
    assert data(page["records"]) == expected
    assert seqs(page["records"]) == [*range(2 + EVICTED, 2 + EVICTED + KEPT)]
    inside = ok(api.diff(dest, from_seq=10))
    assert gap_of(inside) == (11, 1 + EVICTED)
    assert gap_of(ok(api.diff(dest, from_seq=1 + EVICTED))) is None
    assert forwarded(api, name) == 1 + KEPT, "lost records were counted"
    assert api.state(dest)["count"] == 1 + KEPT


def test_a_gap_ends_a_long_poll(api: Api, ends: Ends) -> None:
    source, dest = ends
    trimmed(api, source, dest)
    with Api(api.address) as other:
        ok(other.put(dest, {"cap_records": 1000}))
    first, last = gap_of(ok(api.diff(dest, from_seq=1, wait_ms=10_000))) or (0, 0)
    assert 2 == first <= last <= 1 + EVICTED, "the gap may be reported while it grows"


def assert_gap_in_watch(stream: Stream, before: Sequence[Any] = ()) -> None:
    """Check that the stream reports the gap in consecutive parts, then the records after it.

    ``before`` contains the tombstones that were already received.
    """
    gaps, records = [gap_ends(each, TRIM) for each in before], list[Any]()
    while len(records) < KEPT:
        event = stream.event(TOMBSTONE, RECORD, CAUGHT_UP)
        if event.event == TOMBSTONE:
            assert records == [], "a record arrived before its gap"
            gaps.append(gap_ends(event.json(), TRIM))
        elif event.event == RECORD:
            records += event.json()["records"]
    assert [seq for first, last in gaps for seq in range(first, last + 1)] == [
        *range(2, 2 + EVICTED)
    ]
    assert data(records) == [*range(EVICTED, EVICTED + KEPT)]


def test_a_watch_reports_a_gap(api: Api, ends: Ends) -> None:
    source, dest = ends
    trimmed(api, source, dest)
    with watch(api, [dest]) as live:
        contents = live.read_until_caught_up([dest])
        assert contents.data() == ["first"]
        open_again(api, dest)
        assert_gap_in_watch(live, contents.tombstones)
    with watch(api, {dest: {"from_seq": 1}}) as late:
        assert_gap_in_watch(late)
    url = session(api, {dest: {}})["stream_url"]
    with Stream(api.address, url) as first:
        assert data(first.records(1)) == ["first"]
        assert_gap_in_watch(first)


def test_a_web_socket_reports_a_gap(api: Api, ends: Ends, socket: Socket) -> None:
    source, dest = ends
    trimmed(api, source, dest)
    open_again(api, dest)
    until(lambda: len(kept(api, dest)), lambda count: count == 1 + KEPT)
    socket.request("subscribe", "s", topic=dest, from_seq=1)
    gap = socket.message("tombstone")
    assert (gap["reason"], gap["gap_from"], gap["gap_to"]) == (TRIM, 2, 1 + EVICTED)
    assert data(socket.records(KEPT)) == [*range(EVICTED, EVICTED + KEPT)]


def test_a_gap_is_forwarded_along_a_chain(api: Api, topic: str) -> None:
    source, dest, last = names_for(topic, [0, 1, 0])
    route(api, dest, last, create_dest=True)
    name = f"{dest}->{last}"
    trimmed_dest = {"cap_records": KEPT}
    ok(api.put(source, trimmed_dest), 201)
    ok(api.put(dest, {"discard": "reject", "cap_records": 1}))
    first = route(api, source, dest)
    ok(api.append(source, "first"))
    arrived(api, last, "first")
    for number in range(EVICTED + KEPT):
        ok(api.append(source, number))
    open_again(api, dest)
    passed(api, first, name)
    for topic_name in (dest, last):
        wait_until_forwarded(api, topic_name)
        page = ok(api.diff(topic_name, from_seq=1))
        assert gap_of(page) == (2, 1 + EVICTED), topic_name
        assert data(page["records"]) == [*range(EVICTED, EVICTED + KEPT)]
    for each in (source, dest, last):
        ok(api.delete(each))


def test_records_that_expire_while_they_wait_are_skipped(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.put(source), 201)
    ok(api.put(dest, {"discard": "reject", "cap_records": 1}), 201)
    name = route(api, source, dest)
    ok(api.append(source, "first"))
    arrived(api, dest, "first")
    ok(api.put(source, {"ttl_ms": 100}))
    ok(api.append(source, "a", "b"))
    until(lambda: api.state(source)["count"], lambda count: count == 0)
    ok(api.put(source, {"ttl_ms": 0}))
    ok(api.append(source, "c"))
    open_again(api, dest)
    until(lambda: data(kept(api, dest)), lambda found: found == ["first", "c"])
    assert forwarded(api, name) == 2
    assert gap_of(ok(api.diff(dest, from_seq=1))) is None
    assert api.state(dest)["head_seq"] == 2


def test_a_gap_and_a_cap_of_the_dest_are_reported_as_mixed(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = trimmed(api, source, dest)
    open_again(api, dest)
    passed(api, name)
    ok(api.put(dest, {"cap_records": 2}))
    page = ok(api.diff(dest, from_seq=0))
    assert data(page["records"]) == [23, 24]
    assert page["tombstone"]["reason"] == "mixed"
    assert page["tombstone"]["gap_to"] == page["records"][0]["$seq"] - 1


def test_a_cap_of_the_source_removes_no_copy(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.put(source, {"cap_records": 2}), 201)
    name = route(api, source, dest)
    for number in range(20):
        ok(api.append(source, number))
        passed(api, name)
    arrived(api, dest, *range(20))
    assert ok(api.diff(dest))["tombstone"] is None
