"""PUT, GET and DELETE /v0/routers/:router (§6)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, data, ok, refused
from tests.support.queues import until
from tests.support.routers import (
    DEFAULTS,
    OTHERS,
    chain,
    config_of,
    delete,
    get,
    names,
    names_for,
    pages,
    put,
)
from tests.support.server import Server
from tests.support.topic_configs import DEFAULTS as TOPIC_DEFAULTS


def test_put_creates_a_router_and_both_ends_with_every_default(
    api: Api, ends: tuple[str, str]
) -> None:
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
    for name in ends:
        state = api.state(name)
        assert (state["config"], state["head_seq"]) == (TOPIC_DEFAULTS, 0)


@pytest.mark.parametrize("present", [0, 1], ids=["6 source", "6 dest"])
def test_put_does_not_change_an_existing_end(api: Api, ends: tuple[str, str], present: int) -> None:
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


def test_create_dest_false_accepts_an_existing_dest(api: Api, ends: tuple[str, str]) -> None:
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
def test_every_field_is_stored_and_returned_and_can_be_reset(
    api: Api, topic: str, field: str
) -> None:
    ends = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    made = ok(put(api, topic, **ends, **{field: OTHERS[field]}), 201)
    assert config_of(made) == ends | DEFAULTS | {field: OTHERS[field]}
    assert config_of(ok(get(api, topic))) == config_of(made)
    assert config_of(ok(put(api, topic, **ends))) == config_of(made), "an omitted field has changed"
    back = ok(put(api, topic, **ends, **{field: DEFAULTS[field]}))
    assert (back["created"], config_of(back)) == (False, ends | DEFAULTS)
    assert config_of(ok(get(api, topic))) == ends | DEFAULTS
    changed = ok(put(api, topic, **ends, **{field: OTHERS[field]}))
    assert config_of(changed) == config_of(made)


def test_put_changes_only_the_given_fields(api: Api, topic: str) -> None:
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


@pytest.mark.slow
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
def test_a_filter_given_as_a_tag_or_a_tuple_is_returned_as_a_tuple(
    api: Api, topic: str, sent: Any, echoed: Any
) -> None:
    ends = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    assert ok(put(api, topic, **ends, filter=sent), 201)["filter"] == echoed
    assert ok(get(api, topic))["filter"] == echoed
    assert ok(put(api, topic, **ends, filter=echoed))["filter"] == echoed


@pytest.mark.parametrize("moved", ["source", "dest"], ids=lambda field: f"6 {field}")
def test_put_can_change_an_end(api: Api, topic: str, moved: str) -> None:
    ends = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    ok(put(api, topic, **ends, **OTHERS), 201)
    before = {end: api.state(end)["epoch"] for end in ends.values()}
    other = ends | {moved: f"{topic}.c"}
    body = ok(put(api, topic, **other))
    assert (body["created"], config_of(body)) == (False, other | OTHERS)
    assert config_of(ok(get(api, topic))) == other | OTHERS
    assert api.state(f"{topic}.c")["head_seq"] == 0
    assert {end: api.state(end)["epoch"] for end in ends.values()} == before, "a topic was deleted"


# --- namespaces


def test_routers_and_topics_have_separate_namespaces(api: Api, topic: str) -> None:
    ok(put(api, topic, topic, f"{topic}.b"), 201)
    assert ok(api.put(topic))["created"] is False
    refused(get(api, f"{topic}.b"), 404, "router_not_found")


# --- names


def test_a_name_may_be_percent_encoded(api: Api, topic: str) -> None:
    body = {"source": f"{topic}.a", "dest": f"{topic}.b"}
    assert ok(api.call("PUT", f"/v0/routers/{topic}->b", body), 201)["router"] == f"{topic}->b"
    for name in (f"{topic}-%3Eb", f"{topic}-%3eb", f"{topic}%2D%3Eb", f"{topic}->%62"):
        again = ok(api.call("PUT", f"/v0/routers/{name}", body))
        assert (again["router"], again["created"]) == (f"{topic}->b", False)
        assert ok(api.call("GET", f"/v0/routers/{name}"))["router"] == f"{topic}->b"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["->b", "->", ">>>>", ".a_b:c-d>", ">" * 200])
def test_a_name_may_contain_the_documented_characters(api: Api, topic: str, end: str) -> None:
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


# --- concurrent requests


@pytest.mark.slow
def test_exactly_one_of_many_equal_puts_creates_the_router(server: Server, topic: str) -> None:
    def create(_: int) -> int:
        with Api(server.address) as api:
            return put(api, topic, f"{topic}.a", f"{topic}.b").status

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(create, range(24))) == [200] * 23 + [201]
    with Api(server.address) as api:
        assert names(api, source=f"{topic}.a") == [topic]


@pytest.mark.slow
def test_exactly_one_of_many_concurrent_sources_gets_the_dest(server: Server, topic: str) -> None:
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


def test_a_router_is_shown_with_its_config_and_counters(api: Api, ends: tuple[str, str]) -> None:
    router = "->".join(ends)
    ok(put(api, router, *ends), 201)
    assert ok(get(api, router)) | {"performance": {}} == {
        "router": router,
        "source": ends[0],
        "dest": ends[1],
        **DEFAULTS,
        "forwarded_total": 0,
        "lag_records": 0,
        "lag_ms": 0,
        "performance": {},
    }


def test_forwarded_total_survives_a_change_but_not_a_delete(api: Api, topic: str) -> None:
    ok(put(api, topic, f"{topic}.a", f"{topic}.b"), 201)
    ok(api.append(f"{topic}.a", 1, 2))
    until(lambda: ok(get(api, topic))["forwarded_total"], lambda total: total == 2)
    ok(put(api, topic, f"{topic}.a", f"{topic}.b", preserve_tag=False))
    assert ok(get(api, topic))["forwarded_total"] == 2
    ok(put(api, topic, f"{topic}.a", f"{topic}.c"))
    assert ok(get(api, topic))["forwarded_total"] == 2
    ok(delete(api, topic))
    ok(put(api, topic, f"{topic}.a", f"{topic}.c"), 201)
    assert ok(get(api, topic))["forwarded_total"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_routers_survive_a_restart(tmp_path: Path, end: str) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        with Api(server.address) as api:
            for number in range(20):
                fields = OTHERS if number % 2 else {}
                ok(put(api, f"r{number:02}", f"a{number}", f"b{number}", **fields), 201)
            ok(put(api, "r00", "a0", "c0", filter="t"))
            ok(delete(api, "r01"))
            ok(api.delete("a2"))
            ok(api.append("a3", records=[{"data": 1, "tag": "public:x"}]))
            until(lambda: ok(get(api, "r03"))["forwarded_total"], lambda total: total == 1)
            before = [ok(get(api, name)) | {"performance": {}} for name in names(api)]
        with server.again(end) as api:
            assert names(api) == [f"r{number:02}" for number in range(20) if number not in (1, 2)]
            until(
                lambda: [ok(get(api, name)) | {"performance": {}} for name in names(api)],
                lambda after: after == before,
            )
            assert [item["forwarded_total"] for page in pages(api) for item in page] == [
                item["forwarded_total"] for item in before
            ]
            refused(get(api, "r01"), 404, "router_not_found")
            assert ok(put(api, "r00", "a0", "c0"))["created"] is False


def test_delete_removes_the_router_and_no_topic(api: Api, ends: tuple[str, str]) -> None:
    router = "->".join(ends)
    ok(put(api, router, *ends), 201)
    assert ok(delete(api, router)) | {"performance": {}} == {
        "router": router,
        "deleted": True,
        "performance": {},
    }
    refused(get(api, router), 404, "router_not_found")
    assert names(api, source=ends[0]) == []
    for name in ends:
        assert api.state(name)["head_seq"] == 0


def test_deleting_a_missing_router_gets_200(api: Api, topic: str) -> None:
    for name in (topic, f"{topic}->b"):
        body = ok(delete(api, name))
        assert (body["router"], body["deleted"]) == (name, False)
    refused(api.get(topic), 404, "topic_not_found")


def test_after_a_delete_another_source_and_the_reverse_router_are_accepted(
    api: Api, ends: tuple[str, str]
) -> None:
    source, dest = ends
    ok(put(api, f"{source}.1", source, dest), 201)
    refused(put(api, f"{source}.2", f"{source}.x", dest), 409, "topic_exists_incompatible")
    refused(put(api, f"{source}.3", dest, source), 409, "router_cycle")
    ok(delete(api, f"{source}.1"))
    ok(put(api, f"{source}.2", f"{source}.x", dest), 201)
    ok(put(api, f"{source}.3", dest, source), 201)


# --- deletes of topics


@pytest.mark.parametrize("end", [0, 1], ids=["1.4 source", "1.4 dest"])
def test_after_a_topic_is_deleted_its_edges_no_longer_prevent_routers(
    api: Api, ends: tuple[str, str], end: int
) -> None:
    ok(put(api, "->".join(ends), *ends), 201)
    ok(api.delete(ends[end]))
    ok(put(api, f"{ends[1]}->{ends[0]}", ends[1], ends[0]), 201)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_deleted_router_stays_deleted_after_a_restart(tmp_path: Path, end: str) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        with Api(server.address) as api:
            topics = names_for("t", [number % 2 for number in range(8)])
            made = chain(api, topics)
            ok(delete(api, made[0]))
            assert ok(api.delete(topics[3]))["routers_removed"] == sorted(made[2:4])
            ok(put(api, made[0], topics[0], "elsewhere"), 201)
            ok(delete(api, made[0]))
        with server.again(end) as api:
            assert names(api) == sorted([made[1], *made[4:]])
            for name in (made[0], *made[2:4]):
                assert ok(delete(api, name))["deleted"] is False
