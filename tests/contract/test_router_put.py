"""PUT /v0/routers/:router (§6): make a router or change one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.api import Api, data, ok, refused
from tests.support.queues import names_on
from tests.support.routers import DEFAULTS, OTHERS, config_of, get, names, path_of, put
from tests.support.server import Server
from tests.support.topic_configs import DEFAULTS as TOPIC_DEFAULTS


@pytest.fixture(params=["same shard", "another shard"])
def ends(request: pytest.FixtureRequest, topic: str) -> tuple[str, str]:
    """Names of a source and a dest that are not there yet."""
    same, other = names_on(topic)
    return topic, same if request.param == "same shard" else other


def test_put_creates_with_every_default(api: Api, ends: tuple[str, str]) -> None:
    source, dest = ends
    router = f"{source}->{dest}"
    body = ok(put(api, router, source, dest), 201)
    assert body | {"performance": {}} == {
        "router": router,
        "created": True,
        "source": source,
        "dest": dest,
        **DEFAULTS,
        "performance": {},
    }


def test_put_creates_both_ends_with_the_defaults(api: Api, ends: tuple[str, str]) -> None:
    ok(put(api, "->".join(ends), *ends), 201)
    for name in ends:
        state = api.state(name)
        assert (state["config"], state["head_seq"]) == (TOPIC_DEFAULTS, 0)


@pytest.mark.parametrize("present", [0, 1], ids=["6 source", "6 dest"])
def test_put_leaves_an_end_that_is_there_as_it_is(
    api: Api, ends: tuple[str, str], present: int
) -> None:
    name, absent = ends[present], ends[1 - present]
    ok(api.put(name, {"cap_records": 7, "durability": "fsync"}), 201)
    ok(api.append(name, 1, 2))
    before = api.state(name)
    ok(put(api, "->".join(ends), *ends), 201)
    after = api.state(name)
    for field in ("config", "epoch", "head_seq", "count"):
        assert after[field] == before[field]
    assert data(api.read(name)) == [1, 2]
    assert api.state(absent)["config"] == TOPIC_DEFAULTS


def test_create_dest_false_is_satisfied_by_a_dest_that_is_there(
    api: Api, ends: tuple[str, str]
) -> None:
    ok(api.put(ends[1]), 201)
    body = ok(put(api, "->".join(ends), *ends, create_dest=False), 201)
    assert config_of(body) == {"source": ends[0], "dest": ends[1], **DEFAULTS}
    assert api.state(ends[0])["head_seq"] == 0
    assert ok(put(api, "->".join(ends), *ends, create_dest=False))["created"] is False


def test_an_identical_put_is_a_no_op(api: Api, ends: tuple[str, str]) -> None:
    router = "->".join(ends)
    first = ok(put(api, router, *ends, **OTHERS), 201)
    for fields in (OTHERS, dict(reversed(OTHERS.items())), {}, {"create_dest": True}):
        again = ok(put(api, router, *ends, **fields))
        assert again["created"] is False
        assert config_of(again) == config_of(first)
    assert config_of(ok(get(api, router))) == config_of(first)


@pytest.mark.parametrize("field", OTHERS, ids=lambda field: f"6 {field}")
def test_every_field_is_stored_echoed_and_can_be_set_back(api: Api, topic: str, field: str) -> None:
    ends = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    made = ok(put(api, topic, **ends, **{field: OTHERS[field]}), 201)
    assert config_of(made) == ends | DEFAULTS | {field: OTHERS[field]}
    assert config_of(ok(get(api, topic))) == config_of(made)
    assert config_of(ok(put(api, topic, **ends))) == config_of(made), "not named: kept"
    back = ok(put(api, topic, **ends, **{field: DEFAULTS[field]}))
    assert (back["created"], config_of(back)) == (False, ends | DEFAULTS)
    assert config_of(ok(get(api, topic))) == ends | DEFAULTS
    changed = ok(put(api, topic, **ends, **{field: OTHERS[field]}))
    assert config_of(changed) == config_of(made)


def test_put_changes_only_the_fields_it_names(api: Api, topic: str) -> None:
    ends = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    ok(put(api, topic, **ends, **OTHERS), 201)
    body = ok(put(api, topic, **ends, preserve_tag=True))
    assert config_of(body) == ends | OTHERS | {"preserve_tag": True}
    body = ok(put(api, topic, **ends, filter=None, guarantee="at_least_once"))
    assert config_of(body) == ends | OTHERS | {
        "preserve_tag": True,
        "filter": None,
        "guarantee": "at_least_once",
    }


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        (None, None),
        (["tag", "Glob", "public:*"], ["tag", "Glob", "public:*"]),
        (["tag", "Glob", "*"], ["tag", "Glob", "*"]),
        (["tag", "Eq", "public:*"], ["tag", "Eq", "public:*"]),
        (["tag", "Eq", 'é "x"'], ["tag", "Eq", 'é "x"']),
        ("public", ["tag", "Eq", "public"]),
        ("public:*", ["tag", "Eq", "public:*"]),
    ],
    ids=lambda value: f"6 {value}",
)
def test_a_filter_is_a_tuple_or_a_tag_and_the_echo_is_the_tuple(
    api: Api, topic: str, sent: Any, echoed: Any
) -> None:
    ends = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    assert ok(put(api, topic, **ends, filter=sent), 201)["filter"] == echoed
    assert ok(get(api, topic))["filter"] == echoed
    assert ok(put(api, topic, **ends, filter=echoed))["filter"] == echoed


def test_unknown_fields_are_ignored(api: Api, topic: str) -> None:
    ends = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    unknown = {"nope": {"a": [1]}, "SOURCE": 5, "forwarded_total": 7, "router": "x", "id": 3}
    body = ok(api.call("PUT", path_of(topic), ends | unknown), 201)
    assert body["router"] == topic
    assert config_of(body) == ends | DEFAULTS
    assert ok(get(api, topic))["forwarded_total"] == 0


@pytest.mark.parametrize("moved", ["source", "dest"], ids=lambda field: f"6 {field}")
def test_put_can_move_an_end(api: Api, topic: str, moved: str) -> None:
    ends = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    ok(put(api, topic, **ends, **OTHERS), 201)
    before = {end: api.state(end)["epoch"] for end in ends.values()}
    other = ends | {moved: f"{topic}.c"}
    body = ok(put(api, topic, **other))
    assert (body["created"], config_of(body)) == (False, other | OTHERS)
    assert config_of(ok(get(api, topic))) == other | OTHERS
    assert api.state(f"{topic}.c")["head_seq"] == 0
    assert {end: api.state(end)["epoch"] for end in ends.values()} == before, "topics stay"


# --- what may stand beside what


def test_two_routers_may_have_the_same_ends(api: Api, topic: str) -> None:
    for router in (f"{topic}.1", f"{topic}.2"):
        assert ok(put(api, router, f"{topic}.a", f"{topic}.b"), 201)["created"] is True
    assert names(api, source=f"{topic}.a") == [f"{topic}.1", f"{topic}.2"]


def test_a_source_may_feed_many_dests_and_a_dest_may_be_a_source(api: Api, topic: str) -> None:
    for number in range(5):
        ok(put(api, f"{topic}->{number}", topic, f"{topic}.{number}"), 201)
        ok(put(api, f"{topic}.{number}->", f"{topic}.{number}", f"{topic}.{number}.x"), 201)
    assert len(names(api, source=topic)) == 5


def test_routers_have_a_namespace_of_their_own(api: Api, topic: str) -> None:
    ok(put(api, topic, topic, f"{topic}.b"), 201)
    assert ok(api.put(topic))["created"] is False
    refused(get(api, f"{topic}.b"), 404, "router_not_found")


# --- names


def test_a_name_may_be_encoded_or_not(api: Api, topic: str) -> None:
    body = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    assert ok(api.call("PUT", f"/v0/routers/{topic}->b", body), 201)["router"] == f"{topic}->b"
    for name in (f"{topic}-%3Eb", f"{topic}-%3eb", f"{topic}%2D%3Eb", f"{topic}->%62"):
        again = ok(api.call("PUT", f"/v0/routers/{name}", body))
        assert (again["router"], again["created"]) == (f"{topic}->b", False)
        assert ok(api.call("GET", f"/v0/routers/{name}"))["router"] == f"{topic}->b"


@pytest.mark.parametrize("end", ["->b", "->", ">>>>", ".a_b:c-d>", ">" * 200])
def test_a_name_holds_the_documented_characters(api: Api, topic: str, end: str) -> None:
    name = f"{topic}{end}"
    assert ok(put(api, name, f"{topic}.a", f"{topic}.b"), 201)["router"] == name
    assert ok(get(api, name))["router"] == name


def test_a_name_has_up_to_255_characters(api: Api, topic: str) -> None:
    name = topic + ">" * (255 - len(topic))
    assert ok(put(api, name, f"{topic}.a", f"{topic}.b"), 201)["router"] == name
    refused(put(api, f"{name}>", f"{topic}.a", f"{topic}.b"), 400, "invalid_request")


def test_names_and_ends_are_case_sensitive(api: Api, topic: str) -> None:
    ok(put(api, f"{topic}.R", f"{topic}.a", f"{topic}.A"), 201)
    refused(get(api, f"{topic}.r"), 404, "router_not_found")
    ok(put(api, f"{topic}.r", f"{topic}.a", f"{topic}.B"), 201)
    refused(api.get(f"{topic}.b"), 404, "topic_not_found")


@pytest.mark.parametrize(
    "name",
    ["", "%3Ea", "-%3Ea", ".a", "a%20b", "a%0A", "a-%3Eb%0A", "%0Aa", "a%00", "%C3%A9", "a%25"],
    ids=lambda name: f"6 {name}",
)
def test_a_name_that_is_none_is_a_400(api: Api, topic: str, name: str) -> None:
    body = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    refused(api.call("PUT", f"/v0/routers/{name}", body), 400, "invalid_request")
    refused(api.get(f"{topic}.a"), 404, "topic_not_found")
    for method in ("GET", "DELETE"):
        refused(api.call(method, f"/v0/routers/{name}"), 400, "invalid_request")


@pytest.mark.parametrize("name", ["a%2Fb", "a/b", "a-%3Eb/"])
def test_a_slash_makes_another_path(api: Api, name: str) -> None:
    refused(api.call("GET", f"/v0/routers/{name}"), 404, "not_found")


# --- many at once


@pytest.mark.slow
def test_of_many_equal_puts_one_creates(server: Server, topic: str) -> None:
    def create(_: int) -> int:
        with Api(server.address) as api:
            return put(api, topic, f"{topic}.a", f"{topic}.b").status

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(create, range(24))) == [200] * 23 + [201]
    with Api(server.address) as api:
        assert names(api, source=f"{topic}.a") == [topic]


@pytest.mark.slow
def test_of_opposite_routers_at_once_one_is_made(server: Server, topic: str) -> None:
    for number in range(10):
        ends = (f"{topic}.{number}.a", names_on(f"{topic}.{number}.a")[number % 2])

        def create(source: str, dest: str) -> int:
            with Api(server.address) as api:
                return put(api, f"{source}->{dest}", source, dest).status

        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(create, *ends), pool.submit(create, *reversed(ends))]
            assert sorted(future.result() for future in found) == [201, 409]


@pytest.mark.slow
def test_of_many_sources_at_once_one_feeds_the_dest(server: Server, topic: str) -> None:
    def create(number: int) -> int:
        with Api(server.address) as api:
            return put(api, f"{topic}.{number}", f"{topic}.s{number}", topic).status

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(create, range(24))) == [201] + [409] * 23
    with Api(server.address) as api:
        (made,) = ok(api.call("GET", f"/v0/routers?dest={topic}"))["routers"]
        for number in range(24):
            is_there = api.get(f"{topic}.s{number}").status == 200
            assert is_there == (made["source"] == f"{topic}.s{number}")
