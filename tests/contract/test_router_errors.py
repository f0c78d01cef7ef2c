"""Every refusal of the router calls (§6): bodies, missing ends, fan-in, cycles, the cap."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Answer, Api, ok, refused
from tests.support.caps import capped
from tests.support.routers import (
    DEFAULTS,
    chain,
    config_of,
    delete,
    get,
    names,
    names_for,
    put,
)
from tests.support.server import Server


def assert_absent(api: Api, *topics: str) -> None:
    for name in topics:
        refused(api.get(name), 404, "topic_not_found")


# --- 404


def test_a_missing_dest_gets_404_and_creates_nothing(api: Api, ends: tuple[str, str]) -> None:
    router = "->".join(ends)
    for _ in range(2):
        error = refused(put(api, router, *ends, create_dest=False), 404, "topic_not_found")
        assert error["detail"]["topic"] == ends[1]
        refused(get(api, router), 404, "router_not_found")
        assert_absent(api, *ends)
    ok(api.put(ends[0]), 201)
    refused(put(api, router, *ends, create_dest=False), 404, "topic_not_found")
    assert_absent(api, ends[1])


def test_a_put_that_changes_the_dest_to_a_missing_topic_is_refused(
    api: Api, ends: tuple[str, str]
) -> None:
    router, (source, dest) = "->".join(ends), ends
    ok(put(api, router, source, dest), 201)
    moved = put(api, router, f"{source}.new", f"{dest}.new", create_dest=False)
    refused(moved, 404, "topic_not_found")
    assert config_of(ok(get(api, router))) == {"source": source, "dest": dest, **DEFAULTS}
    assert_absent(api, f"{source}.new", f"{dest}.new")


# --- 409, fan-in


def assert_fan_in_refused(answer: Answer) -> None:
    error = refused(answer, 409, "topic_exists_incompatible")
    assert error["detail"]["reason"] == "router_dest_fan_in"


def test_a_second_source_for_a_dest_is_refused(api: Api, ends: tuple[str, str]) -> None:
    source, dest = ends
    ok(put(api, f"{source}.1", source, dest), 201)
    for fields in ({}, {"allow_cycle": True}, {"create_dest": False}, {"filter": "t"}):
        assert_fan_in_refused(put(api, f"{source}.2", f"{source}.other", dest, **fields))
    assert_absent(api, f"{source}.other")
    refused(get(api, f"{source}.2"), 404, "router_not_found")
    assert names(api, dest=dest) == [f"{source}.1"]


def test_a_put_that_changes_an_end_cannot_create_a_fan_in(api: Api, topic: str) -> None:
    first, second = f"{topic}.1", f"{topic}.2"
    a, b, c, d = names_for(topic, [number % 2 for number in range(4)])
    ok(put(api, first, a, b), 201)
    ok(put(api, second, c, d), 201)
    assert_fan_in_refused(put(api, second, c, b))
    assert config_of(ok(get(api, second))) == {"source": c, "dest": d, **DEFAULTS}
    ok(put(api, first, c, b))  # the previous source of the router itself does not count
    ok(put(api, second, c, b))
    assert_fan_in_refused(put(api, first, a, b))
    assert ok(get(api, first))["source"] == c


# --- 409, cycles


def assert_cycle_refused(answer: Answer, topics: Sequence[str]) -> None:
    """Check that the refusal shows this cycle, which may start and end at any of the topics."""
    shown = refused(answer, 409, "router_cycle")["detail"]["cycle"]
    edges = {*pairwise([*topics, topics[0]])}
    assert shown[0] == shown[-1]
    assert len(shown) == len(topics) + 1
    assert {*pairwise(shown)} == edges


def test_a_router_back_to_the_source_is_a_cycle(api: Api, ends: tuple[str, str]) -> None:
    source, dest = ends
    ok(put(api, f"{source}->{dest}", source, dest), 201)
    for fields in ({}, {"allow_cycle": False}, {"create_dest": False}, {"filter": "t"}):
        assert_cycle_refused(put(api, f"{dest}->{source}", dest, source, **fields), ends)
    refused(get(api, f"{dest}->{source}"), 404, "router_not_found")
    assert names(api, dest=source) == []


@pytest.mark.parametrize("length", [3, 4, 9])
def test_a_longer_cycle_is_detected_and_shown(api: Api, topic: str, length: int) -> None:
    topics = names_for(topic, [number % 2 for number in range(length)])
    made = chain(api, topics)
    ok(put(api, f"{topic}.side", topics[1], f"{topic}.end"), 201)
    back = f"{topics[-1]}->{topics[0]}"
    assert_cycle_refused(put(api, back, topics[-1], topics[0]), topics)
    ok(delete(api, made[length // 2]))
    assert ok(put(api, back, topics[-1], topics[0]), 201)["created"] is True


def test_allow_cycle_permits_a_cycle(api: Api, ends: tuple[str, str]) -> None:
    source, dest = ends
    ok(put(api, f"{source}->{dest}", source, dest, allow_cycle=True), 201)
    back = f"{dest}->{source}"
    assert_cycle_refused(put(api, back, dest, source), ends)
    assert ok(put(api, back, dest, source, allow_cycle=True), 201)["allow_cycle"] is True
    for router, (one, other) in ((f"{source}->{dest}", ends), (back, (dest, source))):
        for fields in ({}, {"allow_cycle": True}, {"filter": "t"}):
            again = ok(put(api, router, one, other, **fields))
            assert (again["created"], again["allow_cycle"]) == (False, True)


def test_a_put_that_changes_an_end_cannot_create_a_cycle(api: Api, topic: str) -> None:
    a, b, c, d = names_for(topic, [number % 2 for number in range(4)])
    first, second, third = chain(api, (a, b, c, d))
    assert_cycle_refused(put(api, third, c, a), (a, b, c))
    assert config_of(ok(get(api, third))) == {"source": c, "dest": d, **DEFAULTS}
    ok(delete(api, first))
    ok(put(api, third, c, a))
    ok(put(api, second, b, c))


def test_the_direction_of_a_router_can_be_reversed(api: Api, ends: tuple[str, str]) -> None:
    source, dest = ends
    router = "->".join(ends)
    ok(put(api, router, source, dest), 201)
    body = ok(put(api, router, dest, source))
    assert (body["source"], body["dest"]) == (dest, source)
    assert names(api, source=source) == []


# --- 429


@pytest.mark.slow
def test_the_number_of_routers_is_capped(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "data", shards=2, max_routers=2) as server,
        Api(server.address) as api,
    ):
        ok(put(api, "r1", "a", "b"), 201)
        ok(put(api, "r2", "b", "c"), 201)
        for _ in range(2):
            capped(put(api, "r3", "x", "y"), "max_routers", 2)
            assert_absent(api, "x", "y")
        refused(get(api, "r3"), 404, "router_not_found")
        again: list[dict[str, Any]] = [{}, {"filter": "t"}, {"guarantee": "exactly_once"}]
        for fields in again:
            assert ok(put(api, "r1", "a", "b", **fields))["created"] is False
        assert ok(put(api, "r1", "a", "d"))["dest"] == "d"
        refused(put(api, "r3", "x", "y", create_dest=False), 404, "topic_not_found")
        refused(put(api, "r3", "x", "c"), 409, "topic_exists_incompatible")
        refused(put(api, "r3", "c", "b"), 409, "router_cycle")
        assert_absent(api, "x", "y")
        assert ok(delete(api, "r1"))["deleted"] is True
        ok(put(api, "r3", "x", "y"), 201)
        capped(put(api, "r4", "x", "z"), "max_routers", 2)
        assert ok(api.delete("x"))["routers_removed"] == ["r3"]
        ok(put(api, "r4", "x", "z"), 201)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_routers_recovered_by_a_restart_count_against_the_cap(tmp_path: Path, end: str) -> None:
    with Server(tmp_path / "data", shards=2, max_routers=2) as server:
        with Api(server.address) as api:
            ok(put(api, "r1", "a", "b"), 201)
            ok(put(api, "r2", "b", "c"), 201)
        with server.again(end) as api:
            capped(put(api, "r3", "x", "y"), "max_routers", 2)
            assert_absent(api, "x", "y")
            ok(put(api, "r2", "b", "c"))


@pytest.mark.slow
def test_a_cap_of_zero_disables_the_cap(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "data", shards=2, max_routers=0) as server,
        Api(server.address) as api,
    ):
        for number in range(20):
            ok(put(api, f"r{number}", "a", f"b{number}"), 201)
