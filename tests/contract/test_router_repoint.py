"""A PUT on a router that exists: what goes on, and what starts afresh (§6)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.contract.deleting import TAGS, fill
from tests.support.api import Api, data, ok, refused
from tests.support.copies import arrived, drop, forwarded, kept, lag, passed, reroute, route, shown
from tests.support.routers import names_for, put
from tests.support.sse import seqs

Ends = tuple[str, str]
OTHERS = pytest.mark.parametrize("shard", [0, 1], ids=["to shard 0", "to shard 1"])


@OTHERS
def test_another_dest_gets_what_comes_from_then_on(api: Api, ends: Ends, shard: int) -> None:
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
    assert forwarded(api, name) == 3, "counted since it was created"
    reroute(api, name, source, dest)
    ok(api.append(source, "d"))
    arrived(api, dest, "a", "b", "d")
    arrived(api, other, "c")
    assert forwarded(api, name) == 4


@OTHERS
@pytest.mark.parametrize("longer", [True, False], ids=["a longer source", "a shorter source"])
def test_another_source_is_copied_from_its_head_on(
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


def test_what_waits_for_the_old_dest_goes_nowhere(api: Api, ends: Ends) -> None:
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


def test_an_equal_put_changes_nothing(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    ok(api.append(source, "a"))
    arrived(api, dest, "a")
    before = shown(api, name)
    for _ in range(3):
        reroute(api, name, source, dest)
    ok(api.append(source, "b"))
    arrived(api, dest, "a", "b")
    after = shown(api, name)
    assert after["forwarded_total"] == 2
    changing = ("forwarded_total", "lag_records", "lag_ms", "performance")
    for found in (before, after):
        for field in changing:
            del found[field]
    assert before == after


def test_an_equal_put_does_not_pass_over_what_waits(api: Api, ends: Ends) -> None:
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
def test_a_changed_filter_holds_for_what_follows(
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


def test_what_is_preserved_may_change(api: Api, ends: Ends) -> None:
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


def test_a_refused_change_changes_nothing(api: Api, ends: Ends, topic: str) -> None:
    source, dest = ends
    first, second = names_for(f"{topic}.more", [0, 1])
    name = route(api, source, dest)
    taken = route(api, first, second)
    error = refused(put(api, name, source, second), 409, "topic_exists_incompatible")
    assert error["detail"]["reason"] == "router_dest_fan_in"
    error = refused(put(api, taken, dest, source), 409, "router_cycle")
    assert {*error["detail"]["cycle"]} == {source, dest}
    refused(put(api, name, source, source), 400, "invalid_request")
    ok(api.append(source, "a"))
    ok(api.append(first, "b"))
    arrived(api, dest, "a")
    arrived(api, second, "b")
    assert drop(api, taken)


def test_a_router_made_again_counts_afresh(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    ok(api.append(source, "a"))
    arrived(api, dest, "a")
    assert drop(api, name)
    ok(api.append(source, "b"))
    route(api, source, dest)
    assert forwarded(api, name) == 0
    ok(api.append(source, "c"))
    arrived(api, dest, "a", "c")
    assert forwarded(api, name) == 1


@pytest.mark.slow
def test_dests_that_change_under_load_get_no_record_twice_and_leave_no_hole(
    api: Api, ends: Ends
) -> None:
    """What is acknowledged after the change goes to the new dest, and to no other. What comes
    during the change may go to both.
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
        assert each == [*range(each[0], each[0] + len(each))] if each else True, "no hole"
    begins = [each[0] for each in numbers if each]
    assert begins == sorted(begins), "a dest begins behind where the one before it began"
    assert all(-1 not in each for each in found[:-1])
    assert -1 in found[-1]
    assert data(kept(api, source))[after:] == found[-1][-(api.state(source)["head_seq"] - after) :]
    assert forwarded(api, name) == sum(map(len, found))
