"""Routers behind each other, beside each other, and in circles (§6)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.api import Api, data, ok
from tests.support.copies import arrived, drop, forwarded, kept, lag, passed, route, untouched
from tests.support.queues import until
from tests.support.routers import names_for
from tests.support.sse import seqs

HOPS = 8
SHARDS = [(0, 0, 0, 0), (0, 1, 0, 1), (1, 1, 0, 0)]


@pytest.fixture(params=SHARDS, ids=str)
def row(request: pytest.FixtureRequest, api: Api, topic: str) -> Iterator[list[str]]:
    """Names of four topics, which are not there yet; they go at the end."""
    names = names_for(topic, request.param)
    yield names
    for name in names:
        ok(api.delete(name))


def settled(api: Api, *names: str) -> list[int]:
    """``forwarded_total`` of routers in a circle, once it stands still."""

    def look() -> list[int]:
        return [forwarded(api, name) for name in names]

    def is_done(before: list[int]) -> bool:
        return not any(lag(api, name) for name in names) and look() == before

    return until(look, is_done)


# --- chains and fans


def test_copies_are_copied_on(api: Api, row: list[str]) -> None:
    names = [route(api, *pair) for pair in itertools.pairwise(row)]
    for number in range(20):
        records = [{"data": [number, each], "node": f"n{number}", "tag": "t"} for each in range(3)]
        ok(api.append(row[0], records=records))
    ok(api.append(row[1], "from here on"))
    passed(api, *names)
    first = kept(api, row[0])
    for dest in row[1:]:
        found = [record for record in kept(api, dest) if record["data"] != "from here on"]
        assert [*map(untouched, found)] == [*map(untouched, first)]
        assert seqs(kept(api, dest)) == [*range(1, 62)]
    assert [forwarded(api, name) for name in names] == [60, 61, 61]


def test_a_router_of_a_chain_that_goes_ends_it_there(api: Api, row: list[str]) -> None:
    names = [route(api, *pair) for pair in itertools.pairwise(row)]
    ok(api.append(row[0], "a"))
    for dest in row:
        arrived(api, dest, "a")
    ok(api.call("DELETE", f"/v0/routers/{row[1]}-%3E{row[2]}"))
    ok(api.append(row[0], "b"))
    passed(api, names[0], names[2])
    assert [data(kept(api, dest)) for dest in row] == [["a", "b"], ["a", "b"], ["a"], ["a"]]


def test_one_source_feeds_many(api: Api, row: list[str]) -> None:
    source, *dests = row
    filters = [None, "even", ["tag", "Glob", "o*"]]
    names = [
        route(api, source, dest, filter=each) for dest, each in zip(dests, filters, strict=True)
    ]
    ok(
        api.append(
            source, records=[{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(9)]
        )
    )
    ok(api.append(source, "untagged"))
    passed(api, *names)
    assert [data(kept(api, dest)) for dest in dests] == [
        [*range(9), "untagged"],
        [0, 2, 4, 6, 8],
        [1, 3, 5, 7],
    ]
    assert [forwarded(api, name) for name in names] == [10, 5, 4]


@pytest.mark.slow
def test_fifty_dests_of_one_source_hold_the_same(api: Api, topic: str) -> None:
    dests = [f"{topic}.{number:02}" for number in range(50)]
    names = [route(api, topic, dest) for dest in dests]
    for number in range(20):
        ok(api.append(topic, *range(number * 10, number * 10 + 10)))
    passed(api, *names)
    expected = [*map(untouched, kept(api, topic))]
    for dest in dests:
        found = kept(api, dest)
        assert [*map(untouched, found)] == expected
        assert seqs(found) == [*range(1, 201)]
    ok(api.delete(topic))


def test_a_router_that_starts_later_copies_what_comes_later(api: Api, row: list[str]) -> None:
    source, first, second, _ = row
    route(api, source, first)
    ok(api.append(source, "a"))
    arrived(api, first, "a")
    route(api, source, second)
    ok(api.append(source, "b"))
    arrived(api, first, "a", "b")
    arrived(api, second, "b")


# --- hops


def test_a_chain_without_a_cycle_delivers_however_long_it_is(api: Api, topic: str) -> None:
    row = names_for(topic, [0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0])
    names = [route(api, *pair) for pair in itertools.pairwise(row)]
    ok(api.append(row[0], "a"))
    passed(api, *names)
    assert [data(kept(api, name)) for name in row] == [["a"]] * len(row)
    ok(api.append(row[1], "b"))
    passed(api, *names)
    assert data(kept(api, row[-1])) == ["a", "b"]
    for name in row:
        ok(api.delete(name))


def test_only_routers_on_a_cycle_bound_the_hops(api: Api, topic: str) -> None:
    """A mirror, and a chain that leaves it."""
    one, other, *tail = names_for(topic, [0, 1, 0, 1, 1])
    there = route(api, one, other)
    back = route(api, other, one, allow_cycle=True)
    names = [route(api, *pair) for pair in itertools.pairwise([other, *tail])]
    ok(api.append(one, "a"))
    assert settled(api, there, back, *names) == [HOPS // 2] * 2 + [HOPS // 2] * len(names)
    assert data(kept(api, tail[-1])) == ["a"] * (HOPS // 2)
    assert drop(api, back)
    ok(api.append(one, "b"))
    passed(api, there, *names)
    assert data(kept(api, tail[-1])) == [*["a"] * (HOPS // 2), "b"]


@pytest.mark.parametrize("count", [1, 10])
def test_a_mirror_terminates(api: Api, row: list[str], count: int) -> None:
    one, other, *_ = row
    there = route(api, one, other, allow_cycle=True)
    back = route(api, other, one, allow_cycle=True)
    ok(api.append(one, *range(count)))
    assert settled(api, there, back) == [4 * count, 4 * count]
    assert Counter(data(kept(api, one))) == Counter([*range(count)] * 5)
    assert Counter(data(kept(api, other))) == Counter([*range(count)] * 4)
    ok(api.append(other, "back"))
    assert settled(api, there, back) == [4 * count + 4, 4 * count + 4]
    assert Counter(data(kept(api, one)))["back"] == 4
    assert Counter(data(kept(api, other)))["back"] == 5


def test_a_circle_of_three_terminates(api: Api, row: list[str]) -> None:
    circle = row[:3]
    names = [
        route(api, source, dest, allow_cycle=True)
        for source, dest in zip(circle, circle[1:] + circle[:1], strict=True)
    ]
    ok(api.append(circle[0], "a"))
    assert settled(api, *names) == [3, 3, 2]
    assert [len(kept(api, name)) for name in circle] == [3, 3, 3]


def test_a_mirror_shows_no_node_what_it_wrote(api: Api, row: list[str]) -> None:
    one, other, *_ = row
    names = [route(api, one, other), route(api, other, one, allow_cycle=True)]
    ok(api.append(one, "of n1", node="n1"))
    ok(api.append(other, "of n2", node="n2"))
    settled(api, *names)
    for topic in (one, other):
        assert {*data(api.read(topic, node="n1"))} == {"of n2"}
        assert {*data(api.read(topic, node="n2"))} == {"of n1"}
        assert api.read(topic, node=["n1", "n2"]) == []
        assert {*data(api.read(topic, node="n3"))} == {"of n1", "of n2"}


def test_a_mirror_with_filters_goes_only_where_it_shall(api: Api, row: list[str]) -> None:
    one, other, *_ = row
    names = [
        route(api, one, other, filter=["tag", "Glob", "one:*"], allow_cycle=True),
        route(api, other, one, filter=["tag", "Glob", "other:*"], allow_cycle=True),
    ]
    ok(api.append(one, records=[{"data": 1, "tag": "one:a"}, {"data": 2, "tag": "other:a"}]))
    ok(api.append(other, records=[{"data": 3, "tag": "other:b"}, {"data": 4}]))
    assert settled(api, *names) == [1, 1]
    assert data(kept(api, one)) == [1, 2, 3]
    assert sorted(data(kept(api, other))) == [1, 3, 4]
