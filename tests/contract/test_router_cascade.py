"""Deletion of routers with their topics (§1.4, §6), and PUT on an existing router."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.contract.deleting import TAGS, fill
from tests.support.api import Api, data, ok, refused
from tests.support.copies import arrived, forwarded, kept, lag, passed, reroute, route, shown
from tests.support.routers import names_for, path_of
from tests.support.sse import seqs

Ends = tuple[str, str]


def removed(api: Api, topic: str, **query: object) -> list[str]:
    """Delete an existing topic and return the routers that were deleted with it."""
    body = ok(api.delete(topic, **query))
    assert (body["topic"], body["deleted"]) == (topic, True)
    found: list[str] = body["routers_removed"]
    return found


def assert_deleted(api: Api, *names: str) -> None:
    for name in names:
        refused(api.call("GET", path_of(name)), 404, "router_not_found")


def listed(api: Api, **query: Any) -> list[str]:
    query_string = "&".join(f"{name}={value}" for name, value in query.items())
    page = ok(api.call("GET", f"/v0/routers?{query_string}"))
    return [each["router"] for each in page["routers"]]


@pytest.mark.parametrize("end", ["source", "dest"])
def test_a_router_is_deleted_with_either_end(api: Api, ends: Ends, end: str) -> None:
    source, dest = ends
    name = route(api, source, dest)
    ok(api.append(source, "a", "b"))
    arrived(api, dest, "a", "b")
    assert removed(api, source if end == "source" else dest) == [name]
    assert_deleted(api, name)
    assert listed(api, prefix=source) == []
    if end == "source":
        assert data(kept(api, dest)) == ["a", "b"], "the copies were deleted"
        ok(api.append(source, "new"), 201)
        ok(api.append(dest, "direct"))
        assert data(kept(api, dest)) == ["a", "b", "direct"]
    else:
        ok(api.append(source, "c"))
        assert api.get(dest).status == 404, "a copy recreated the dest"
        ok(api.append(dest, "new"), 201)
        assert data(kept(api, dest)) == ["new"]


def test_exactly_the_routers_of_a_topic_are_deleted_with_it(api: Api, topic: str) -> None:
    row = names_for(topic, [0, 1, 0, 1, 0])
    first, middle, *lasts = row
    into = route(api, first, middle, f"{topic}-z")
    out = [
        route(api, middle, last, f"{topic}-{letter}")
        for last, letter in zip(lasts, "cab", strict=True)
    ]
    double = route(api, middle, lasts[0], f"{topic}-B")
    remaining = route(api, lasts[0], f"{topic}.remaining")
    assert removed(api, middle) == sorted([into, *out, double])
    assert_deleted(api, into, *out, double)
    assert shown(api, remaining)["source"] == lasts[0]
    ok(api.append(lasts[0], "a"))
    arrived(api, f"{topic}.remaining", "a")
    ok(api.append(first, "b"))
    assert api.get(middle).status == 404
    for name in (first, *lasts):
        ok(api.delete(name))


def test_deleting_a_missing_topic_or_one_without_routers_removes_no_router(
    api: Api, topic: str
) -> None:
    body = ok(api.delete(topic))
    assert (body["deleted"], body["routers_removed"]) == (False, [])
    ok(api.append(topic, "a"), 201)
    assert removed(api, topic) == []


@pytest.mark.parametrize("end", ["source", "dest"])
def test_a_refused_delete_removes_nothing(api: Api, ends: Ends, end: str) -> None:
    source, dest = ends
    name = route(api, source, dest)
    ok(api.append(source, "a"))
    arrived(api, dest, "a")
    target = source if end == "source" else dest
    refused(api.delete(target, if_empty="true"), 409, "topic_not_empty")
    ok(api.append(source, "b"))
    arrived(api, dest, "a", "b")
    assert shown(api, name)["forwarded_total"] == 2


def test_an_empty_topic_is_deleted_with_its_routers(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    assert removed(api, dest, if_empty="true") == [name]
    assert_deleted(api, name)


def test_a_recreated_topic_gets_no_copies(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    ok(api.append(source, "a"))
    arrived(api, dest, "a")
    assert removed(api, dest) == [name]
    ok(api.put(dest), 201)
    ok(api.append(source, "b"))
    again = route(api, source, dest)
    ok(api.append(source, "c"))
    passed(api, again)
    assert data(kept(api, dest)) == ["c"]
    assert removed(api, source) == [again]
    ok(api.append(source, "d"), 201)
    third = route(api, source, dest)
    ok(api.append(source, "e"))
    arrived(api, dest, "c", "e")
    assert shown(api, third)["forwarded_total"] == 1


def test_routers_of_a_cycle_are_deleted_with_their_topics(api: Api, ends: Ends) -> None:
    source, dest = ends
    forward = route(api, source, dest, allow_cycle=True)
    back = route(api, dest, source, allow_cycle=True)
    ok(api.append(source, "a"))
    assert removed(api, source) == sorted([forward, back])
    assert removed(api, dest) == []


OTHERS = pytest.mark.parametrize("shard", [0, 1], ids=["to shard 0", "to shard 1"])


@OTHERS
def test_a_new_dest_gets_only_records_after_the_change(api: Api, ends: Ends, shard: int) -> None:
    source, dest = ends
    (other,) = names_for(f"{source}.other", [shard])
    name = route(api, source, dest)
    ok(api.append(source, "a", "b"))
    before = arrived(api, dest, "a", "b")
    reroute(api, name, source, other)
    assert (shown(api, name)["dest"], lag(api, name)) == (other, 0)
    ok(api.append(source, "c"))
    assert seqs(arrived(api, other, "c")) == [1]
    assert kept(api, dest) == before
    assert forwarded(api, name) == 3, "counted since its creation"
    reroute(api, name, source, dest)
    ok(api.append(source, "d"))
    arrived(api, dest, "a", "b", "d")
    arrived(api, other, "c")
    assert forwarded(api, name) == 4


@OTHERS
@pytest.mark.parametrize("longer", [True, False], ids=["a longer source", "a shorter source"])
def test_a_new_source_is_copied_from_its_head_on(
    api: Api, ends: Ends, shard: int, longer: bool
) -> None:
    source, dest = ends
    (other,) = names_for(f"{source}.other", [shard])
    ok(api.append(other, *range(10 if longer else 1)), 201)
    name = route(api, source, dest)
    ok(api.append(source, "a", "b", "c"))
    arrived(api, dest, "a", "b", "c")
    reroute(api, name, other, dest)
    assert (shown(api, name)["source"], lag(api, name)) == (other, 0)
    ok(api.append(source, "not this"))
    ok(api.append(other, "d"))
    found = arrived(api, dest, "a", "b", "c", "d")
    assert seqs(found) == [1, 2, 3, 4]
    reroute(api, name, source, dest)
    ok(api.append(source, "e"))
    ok(api.append(other, "nor this"))
    arrived(api, dest, "a", "b", "c", "d", "e")
    assert forwarded(api, name) == 5


def test_records_that_wait_for_the_old_dest_are_skipped(api: Api, ends: Ends) -> None:
    source, dest = ends
    (other,) = names_for(f"{source}.other", [1])
    ok(api.put(dest, {"discard": "reject", "cap_records": 1}), 201)
    name = route(api, source, dest)
    ok(api.append(source, *range(5)))
    arrived(api, dest, 0)
    reroute(api, name, source, other)
    assert lag(api, name) == 0
    ok(api.append(source, "after"))
    arrived(api, other, "after")
    ok(api.put(dest, {"cap_records": 10}))
    passed(api, name)
    assert data(kept(api, dest)) == [0]
    assert forwarded(api, name) == 2


def test_a_put_with_the_same_ends_skips_no_waiting_record(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.put(dest, {"discard": "reject", "cap_records": 1}), 201)
    name = route(api, source, dest)
    ok(api.append(source, *range(5)))
    arrived(api, dest, 0)
    reroute(api, name, source, dest)
    assert lag(api, name) == 4
    reroute(api, name, source, dest, guarantee="exactly_once")
    assert lag(api, name) == 4
    ok(api.put(dest, {"cap_records": 10}))
    arrived(api, dest, *range(5))
    assert forwarded(api, name) == 5


CHANGES: list[tuple[dict[str, Any], list[int]]] = [
    ({"filter": "a"}, [1, 5, 10]),
    ({"filter": ["tag", "Glob", "*"]}, [1, 2, 4, 5, 7, 8, 9, 10]),
    ({"filter": None}, [*range(1, 11)]),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES, ids=str)
def test_a_changed_filter_applies_to_later_records(
    api: Api, ends: Ends, change: dict[str, Any], expected: list[int]
) -> None:
    source, dest = ends
    name = route(api, source, dest, filter="b")
    fill(api, source, TAGS)
    arrived(api, dest, 2, 7)
    reroute(api, name, source, dest, **change)
    assert lag(api, name) == 0
    fill(api, source, TAGS)
    arrived(api, dest, 2, 7, *expected)
    assert forwarded(api, name) == 2 + len(expected)


def test_preserve_node_and_preserve_tag_can_be_changed(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    record = {"data": 1, "node": "n", "tag": "t"}
    expected: list[set[str]] = []
    for node, tag in ((True, True), (False, True), (False, False), (True, False)):
        reroute(api, name, source, dest, preserve_node=node, preserve_tag=tag)
        ok(api.append(source, records=[record]))
        expected.append({*(["$node"] if node else []), *(["$tag"] if tag else [])})
        found = arrived(api, dest, *[1] * len(expected))
        assert [{*copy} & {"$node", "$tag"} for copy in found] == expected


@pytest.mark.slow
def test_changing_the_dest_under_load_duplicates_and_skips_no_record(api: Api, ends: Ends) -> None:
    """A record acknowledged after the change is copied only to the new dest. A record written
    during the change may be copied to both.
    """
    source, dest = ends
    others = names_for(f"{source}.other", [0, 1, 0, 1])
    name = route(api, source, dest)
    over = threading.Event()

    def write() -> None:
        with Api(api.address) as own:
            number = 0
            while not over.is_set():
                ok(own.append(source, number, number + 1))
                number += 2

    thread = threading.Thread(target=write)
    thread.start()
    for other in others:
        reroute(api, name, source, other)
    after = api.state(source)["head_seq"]
    ok(api.append(source, -1))
    over.set()
    thread.join()
    passed(api, name)
    found = [data(kept(api, topic)) for topic in (dest, *others)]
    numbers = [[number for number in each if number >= 0] for each in found]
    for each in numbers:
        assert each == [*range(each[0], each[0] + len(each))] if each else True, "skipped"
    begins = [each[0] for each in numbers if each]
    assert begins == sorted(begins), "a later dest begins with an earlier record"
    assert all(-1 not in each for each in found[:-1])
    assert -1 in found[-1]
    assert data(kept(api, source))[after:] == found[-1][-(api.state(source)["head_seq"] - after) :]
    assert forwarded(api, name) == sum(map(len, found))
