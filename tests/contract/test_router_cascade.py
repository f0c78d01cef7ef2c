"""Deleting a topic removes the routers that name it (§1.4, §6)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import Api, data, ok, refused
from tests.support.copies import arrived, kept, passed, route, shown
from tests.support.routers import names_for, path_of

Ends = tuple[str, str]


def removed(api: Api, topic: str, **query: object) -> list[str]:
    """Delete a topic that exists; the routers that went with it."""
    body = ok(api.delete(topic, **query))
    assert (body["topic"], body["deleted"]) == (topic, True)
    found: list[str] = body["routers_removed"]
    return found


def gone(api: Api, *names: str) -> None:
    for name in names:
        refused(api.call("GET", path_of(name)), 404, "router_not_found")


def listed(api: Api, **query: Any) -> list[str]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    page = ok(api.call("GET", f"/v0/routers?{asked}"))
    return [each["router"] for each in page["routers"]]


@pytest.mark.parametrize("end", ["source", "dest"])
def test_a_router_goes_with_either_end(api: Api, ends: Ends, end: str) -> None:
    source, dest = ends
    name = route(api, source, dest)
    ok(api.append(source, "a", "b"))
    arrived(api, dest, "a", "b")
    assert removed(api, source if end == "source" else dest) == [name]
    gone(api, name)
    assert listed(api, prefix=source) == []
    if end == "source":
        assert data(kept(api, dest)) == ["a", "b"], "a copy is not a link"
        ok(api.append(source, "new"), 201)
        ok(api.append(dest, "direct"))
        assert data(kept(api, dest)) == ["a", "b", "direct"]
    else:
        ok(api.append(source, "c"))
        assert api.get(dest).status == 404, "nothing is forwarded that would make it again"
        ok(api.append(dest, "new"), 201)
        assert data(kept(api, dest)) == ["new"]


def test_all_routers_of_a_topic_go_and_no_others(api: Api, topic: str) -> None:
    row = names_for(topic, [0, 1, 0, 1, 0])
    first, middle, *lasts = row
    into = route(api, first, middle, f"{topic}-z")
    out = [
        route(api, middle, last, f"{topic}-{letter}")
        for last, letter in zip(lasts, "cab", strict=True)
    ]
    double = route(api, middle, lasts[0], f"{topic}-B")
    beside = route(api, lasts[0], f"{topic}.beside")
    assert removed(api, middle) == sorted([into, *out, double])
    gone(api, into, *out, double)
    assert shown(api, beside)["source"] == lasts[0]
    ok(api.append(lasts[0], "a"))
    arrived(api, f"{topic}.beside", "a")
    ok(api.append(first, "b"))
    assert api.get(middle).status == 404
    for name in (first, *lasts):
        ok(api.delete(name))


def test_names_come_sorted_by_their_bytes(api: Api, topic: str) -> None:
    names = [f"{topic}{end}" for end in ("Z", "a", ">", "-", ".", "10", "9", ":", "_")]
    for number, name in enumerate(names):
        route(api, topic, f"{topic}.dest-{number}", name)
    assert removed(api, topic) == sorted(names)


def test_an_absent_topic_and_one_without_routers_remove_none(api: Api, topic: str) -> None:
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


def test_an_empty_topic_goes_with_its_routers(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    assert removed(api, dest, if_empty="true") == [name]
    gone(api, name)


def test_a_topic_is_not_empty_when_copies_are_on_their_way(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    ok(api.append(source, "a"))
    answer = api.delete(dest, if_empty="true")
    if answer.status == 200:
        gone(api, name)
    else:
        refused(answer, 409, "topic_not_empty")
        arrived(api, dest, "a")


def test_a_topic_made_again_is_not_fed(api: Api, ends: Ends) -> None:
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


def test_a_held_router_goes_too(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.put(dest, {"discard": "reject", "cap_records": 1}), 201)
    name = route(api, source, dest)
    ok(api.append(source, *range(5)))
    arrived(api, dest, 0)
    assert removed(api, source) == [name]
    ok(api.put(dest, {"cap_records": 100}))
    ok(api.append(dest, "direct"))
    assert data(kept(api, dest)) == [0, "direct"]


def test_circles_go_with_their_topics(api: Api, ends: Ends) -> None:
    source, dest = ends
    there = route(api, source, dest, allow_cycle=True)
    back = route(api, dest, source, allow_cycle=True)
    ok(api.append(source, "a"))
    assert removed(api, source) == sorted([there, back])
    assert removed(api, dest) == []
