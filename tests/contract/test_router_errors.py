"""Every refusal of the router calls (§6): bodies, missing ends, fan-in, cycles, the cap."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Answer, Api, ok, refused
from tests.support.caps import capped
from tests.support.queues import names_on
from tests.support.routers import (
    DEFAULTS,
    chain,
    config_of,
    delete,
    get,
    names,
    names_for,
    path_of,
    put,
)
from tests.support.server import Server
from tests.support.wrong_types import FLAG, GUARANTEE, MATCH, TOPIC_NAMES, rows


@pytest.fixture(params=["same shard", "another shard"])
def ends(request: pytest.FixtureRequest, topic: str) -> tuple[str, str]:
    """Names of a source and a dest that are not there yet."""
    same, other = names_on(topic)
    return topic, same if request.param == "same shard" else other


def absent(api: Api, *topics: str) -> None:
    for name in topics:
        refused(api.get(name), 404, "topic_not_found")


# --- 400


WRONG = [
    *rows(FLAG, "preserve_node", "preserve_tag", "create_dest", "allow_cycle"),
    *rows(GUARANTEE, "guarantee"),
    *rows(MATCH, "filter"),
    *rows(('["tag","Glob","a**"]', '["tag","Glob","*a"]', '["tag","Glob",""]'), "filter"),
    *rows(('["tag","eq","a"]', '["tag","Regex","a"]', '["tag","Eq","a","b"]'), "filter"),
    *rows(('["tag","Eq",null]', '["tag",["Eq"],"a"]', '[["tag","Eq","a"]]'), "filter"),
]


@pytest.mark.parametrize(("field", "text"), WRONG, ids=lambda value: f"6 {value}")
def test_a_wrong_value_is_a_400_and_makes_nothing(
    api: Api, topic: str, field: str, text: str
) -> None:
    ends = (f"{topic}.a", f"{topic}.b")
    body = f'{{"source":"{ends[0]}","dest":"{ends[1]}","{field}":{text}}}'.encode()
    error = refused(api.call("PUT", path_of(topic), body), 400, "invalid_request")
    assert error["detail"]["field"] == field
    refused(get(api, topic), 404, "router_not_found")
    absent(api, *ends)


END_VALUES = ["null", "5", "true", "[]", "{}", '"a->b"', *(f'"{name}"' for name in TOPIC_NAMES)]


@pytest.mark.parametrize("field", ["source", "dest"])
@pytest.mark.parametrize("text", END_VALUES, ids=lambda value: f"6 {value[:20]}")
def test_both_ends_are_names_of_topics(api: Api, topic: str, field: str, text: str) -> None:
    other = "dest" if field == "source" else "source"
    body = f'{{"{other}":"{topic}.x","{field}":{text}}}'.encode()
    error = refused(api.call("PUT", path_of(topic), body), 400, "invalid_request")
    assert error["detail"]["field"] == field
    refused(get(api, topic), 404, "router_not_found")
    absent(api, f"{topic}.x")


@pytest.mark.parametrize("field", ["source", "dest"])
def test_both_ends_are_required_in_every_body(api: Api, topic: str, field: str) -> None:
    body = {"source": f"{topic}.a", "dest": f"{topic}.b", "preserve_tag": False}
    lacking = {name: value for name, value in body.items() if name != field}
    for _ in range(2):  # the second time the router is there
        error = refused(api.call("PUT", path_of(topic), lacking), 400, "invalid_request")
        assert error["detail"]["field"] == field
        api.call("PUT", path_of(topic), body)
    refused(api.call("PUT", path_of(topic), {}), 400, "invalid_request")


def test_source_and_dest_differ(api: Api, topic: str) -> None:
    for fields in ({}, {"allow_cycle": True}, {"create_dest": False}):
        error = refused(
            put(api, topic, f"{topic}.a", f"{topic}.a", **fields), 400, "invalid_request"
        )
        assert error["detail"]["field"] in ("source", "dest")
    absent(api, f"{topic}.a")
    refused(get(api, topic), 404, "router_not_found")


NOT_OBJECTS = [b"", b"[]", b'"x"', b"1", b"null", b"true", b"{", b"{} {}", b"{'source':1}"]


@pytest.mark.parametrize("body", NOT_OBJECTS, ids=lambda body: f"6 {body.decode()}")
def test_a_body_that_is_not_a_json_object_is_a_400(api: Api, topic: str, body: bytes) -> None:
    refused(api.call("PUT", path_of(topic), body), 400, "invalid_request")
    refused(get(api, topic), 404, "router_not_found")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 40_000 + "]" * 40_000, '"\\ud800"', "1e999", "NaN"]
)
def test_a_filter_that_is_no_sound_json_is_a_400(api: Api, topic: str, text: str) -> None:
    body = f'{{"source":"{topic}.a","dest":"{topic}.b","filter":{text}}}'.encode()
    refused(api.call("PUT", path_of(topic), body), 400, "invalid_request")
    absent(api, f"{topic}.a", f"{topic}.b")


def test_invalid_utf8_is_a_400(api: Api, topic: str) -> None:
    body = b'{"source":"a1","dest":"b1","filter":"\xff"}'
    refused(api.call("PUT", path_of(topic), body), 400, "invalid_request")


def test_a_refused_put_changes_nothing(api: Api, topic: str) -> None:
    ends = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    ok(put(api, topic, **ends, filter="t"), 201)
    for fields in ({"guarantee": "once"}, {"filter": ["tag"]}, {"dest": f"{topic}.a"}):
        body = ends | {"preserve_tag": False, "allow_cycle": True} | fields
        refused(api.call("PUT", path_of(topic), body), 400, "invalid_request")
    assert config_of(ok(get(api, topic))) == ends | DEFAULTS | {"filter": ["tag", "Eq", "t"]}


# --- 405, 415, 413


def test_other_methods_are_told_the_right_ones(api: Api, topic: str) -> None:
    for method in ("POST", "PATCH"):
        answer = api.call(method, path_of(topic), {})
        refused(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "DELETE, GET, PUT"
    for method in ("POST", "PUT", "DELETE"):
        answer = api.call(method, "/v0/routers", {})
        refused(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "GET"


def test_a_body_needs_its_media_type_and_has_a_bound(api: Api, topic: str) -> None:
    body = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    for kind in ("text/plain", ""):
        answer = api.call("PUT", path_of(topic), body, {"Content-Type": kind})
        refused(answer, 415, "unsupported_media_type")
    answer = api.call("PUT", path_of(topic), body | {"x": "x" * 200_000})
    refused(answer, 413, "payload_too_large")
    absent(api, *body.values())


# --- 404


def test_a_missing_dest_is_a_404_and_leaves_no_phantom(api: Api, ends: tuple[str, str]) -> None:
    router = "->".join(ends)
    for _ in range(2):
        error = refused(put(api, router, *ends, create_dest=False), 404, "topic_not_found")
        assert error["detail"]["topic"] == ends[1]
        refused(get(api, router), 404, "router_not_found")
        absent(api, *ends)
    ok(api.put(ends[0]), 201)
    refused(put(api, router, *ends, create_dest=False), 404, "topic_not_found")
    absent(api, ends[1])


def test_a_router_is_not_moved_to_a_missing_dest(api: Api, ends: tuple[str, str]) -> None:
    router, (source, dest) = "->".join(ends), ends
    ok(put(api, router, source, dest), 201)
    moved = put(api, router, f"{source}.new", f"{dest}.new", create_dest=False)
    refused(moved, 404, "topic_not_found")
    assert config_of(ok(get(api, router))) == {"source": source, "dest": dest, **DEFAULTS}
    absent(api, f"{source}.new", f"{dest}.new")


# --- 409, fan-in


def fan_in(answer: Answer) -> None:
    error = refused(answer, 409, "topic_exists_incompatible")
    assert error["detail"]["reason"] == "router_dest_fan_in"


def test_a_dest_has_one_source(api: Api, ends: tuple[str, str]) -> None:
    source, dest = ends
    ok(put(api, f"{source}.1", source, dest), 201)
    for fields in ({}, {"allow_cycle": True}, {"create_dest": False}, {"filter": "t"}):
        fan_in(put(api, f"{source}.2", f"{source}.other", dest, **fields))
    absent(api, f"{source}.other")
    refused(get(api, f"{source}.2"), 404, "router_not_found")
    assert names(api, dest=dest) == [f"{source}.1"]


def test_a_diamond_is_a_fan_in(api: Api, topic: str) -> None:
    top, left, right, bottom = names_for(topic, [number % 2 for number in range(4)])
    chain(api, (top, left, bottom))
    chain(api, (top, right))
    fan_in(put(api, f"{topic}.last", right, bottom))


def test_a_put_that_moves_an_end_makes_no_fan_in(api: Api, topic: str) -> None:
    first, second = f"{topic}.1", f"{topic}.2"
    a, b, c, d = names_for(topic, [number % 2 for number in range(4)])
    ok(put(api, first, a, b), 201)
    ok(put(api, second, c, d), 201)
    fan_in(put(api, second, c, b))
    assert config_of(ok(get(api, second))) == {"source": c, "dest": d, **DEFAULTS}
    ok(put(api, first, c, b))  # its own old source does not count
    ok(put(api, second, c, b))
    fan_in(put(api, first, a, b))
    assert ok(get(api, first))["source"] == c


# --- 409, cycles


def cycle(answer: Answer, topics: Sequence[str]) -> None:
    """The refusal shows these topics, beginning at any of them, the first one again at the end."""
    shown = refused(answer, 409, "router_cycle")["detail"]["cycle"]
    edges = {*pairwise([*topics, topics[0]])}
    assert shown[0] == shown[-1]
    assert len(shown) == len(topics) + 1
    assert {*pairwise(shown)} == edges


def test_the_way_back_is_a_cycle(api: Api, ends: tuple[str, str]) -> None:
    source, dest = ends
    ok(put(api, f"{source}->{dest}", source, dest), 201)
    for fields in ({}, {"allow_cycle": False}, {"create_dest": False}, {"filter": "t"}):
        cycle(put(api, f"{dest}->{source}", dest, source, **fields), ends)
    refused(get(api, f"{dest}->{source}"), 404, "router_not_found")
    assert names(api, dest=source) == []


@pytest.mark.parametrize("length", [3, 4, 9])
def test_a_longer_cycle_is_found_and_shown(api: Api, topic: str, length: int) -> None:
    topics = names_for(topic, [number % 2 for number in range(length)])
    made = chain(api, topics)
    ok(put(api, f"{topic}.side", topics[1], f"{topic}.end"), 201)
    back = f"{topics[-1]}->{topics[0]}"
    cycle(put(api, back, topics[-1], topics[0]), topics)
    ok(delete(api, made[length // 2]))
    assert ok(put(api, back, topics[-1], topics[0]), 201)["created"] is True


def test_allow_cycle_permits_it(api: Api, ends: tuple[str, str]) -> None:
    source, dest = ends
    ok(put(api, f"{source}->{dest}", source, dest, allow_cycle=True), 201)
    back = f"{dest}->{source}"
    cycle(put(api, back, dest, source), ends)
    assert ok(put(api, back, dest, source, allow_cycle=True), 201)["allow_cycle"] is True
    for router, (one, other) in ((f"{source}->{dest}", ends), (back, (dest, source))):
        for fields in ({}, {"allow_cycle": True}, {"filter": "t"}):
            again = ok(put(api, router, one, other, **fields))
            assert (again["created"], again["allow_cycle"]) == (False, True)


def test_a_router_that_was_there_before_the_cycle_can_still_be_put(
    api: Api, ends: tuple[str, str]
) -> None:
    source, dest = ends
    ok(put(api, f"{source}->{dest}", source, dest), 201)
    ok(put(api, f"{dest}->{source}", dest, source, allow_cycle=True), 201)
    again = ok(put(api, f"{source}->{dest}", source, dest))
    assert (again["created"], again["allow_cycle"]) == (False, False)
    assert ok(put(api, f"{source}->{dest}", source, dest, filter="t"))["filter"]


def test_a_put_that_moves_an_end_makes_no_cycle(api: Api, topic: str) -> None:
    a, b, c, d = names_for(topic, [number % 2 for number in range(4)])
    first, second, third = chain(api, (a, b, c, d))
    cycle(put(api, third, c, a), (a, b, c))
    assert config_of(ok(get(api, third))) == {"source": c, "dest": d, **DEFAULTS}
    ok(delete(api, first))
    ok(put(api, third, c, a))
    ok(put(api, second, b, c))


def test_a_router_may_be_turned_round(api: Api, ends: tuple[str, str]) -> None:
    source, dest = ends
    router = "->".join(ends)
    ok(put(api, router, source, dest), 201)
    body = ok(put(api, router, dest, source))
    assert (body["source"], body["dest"]) == (dest, source)
    assert names(api, source=source) == []


def test_parallel_routers_and_shared_sources_are_no_cycle(api: Api, topic: str) -> None:
    a, b, c = names_for(topic, [number % 2 for number in range(3)])
    chain(api, (a, b, c))
    ok(put(api, f"{topic}.again", a, b), 201)
    ok(put(api, f"{topic}.side", a, f"{topic}.side"), 201)


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
            absent(api, "x", "y")
        refused(get(api, "r3"), 404, "router_not_found")
        again: list[dict[str, Any]] = [{}, {"filter": "t"}, {"guarantee": "exactly_once"}]
        for fields in again:
            assert ok(put(api, "r1", "a", "b", **fields))["created"] is False
        assert ok(put(api, "r1", "a", "d"))["dest"] == "d"
        refused(put(api, "r3", "x", "y", create_dest=False), 404, "topic_not_found")
        refused(put(api, "r3", "x", "c"), 409, "topic_exists_incompatible")
        refused(put(api, "r3", "c", "b"), 409, "router_cycle")
        absent(api, "x", "y")
        assert ok(delete(api, "r1"))["deleted"] is True
        ok(put(api, "r3", "x", "y"), 201)
        capped(put(api, "r4", "x", "z"), "max_routers", 2)
        assert ok(api.delete("x"))["routers_removed"] == ["r3"]
        ok(put(api, "r4", "x", "z"), 201)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_cap_counts_what_a_restart_has_found(tmp_path: Path, end: str) -> None:
    with Server(tmp_path / "data", shards=2, max_routers=2) as server:
        with Api(server.address) as api:
            ok(put(api, "r1", "a", "b"), 201)
            ok(put(api, "r2", "b", "c"), 201)
        server.stop() if end == "stop" else server.kill()
        server.start()
        with Api(server.address) as api:
            capped(put(api, "r3", "x", "y"), "max_routers", 2)
            absent(api, "x", "y")
            ok(put(api, "r2", "b", "c"))


@pytest.mark.slow
def test_a_cap_of_zero_is_none(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "data", shards=2, max_routers=0) as server,
        Api(server.address) as api,
    ):
        for number in range(20):
            ok(put(api, f"r{number}", "a", f"b{number}"), 201)
