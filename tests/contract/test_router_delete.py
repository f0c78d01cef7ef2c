"""DELETE /v0/routers/:router (§6), and the routers that go with a topic (§1.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.api import Api, data, ok, refused
from tests.support.queues import names_on, until
from tests.support.routers import (
    DEFAULTS,
    OTHERS,
    chain,
    config_of,
    delete,
    get,
    names,
    names_for,
    put,
)
from tests.support.server import Server


@pytest.fixture(params=["same shard", "another shard"])
def ends(request: pytest.FixtureRequest, topic: str) -> tuple[str, str]:
    """Names of a source and a dest that are not there yet."""
    same, other = names_on(topic)
    return topic, same if request.param == "same shard" else other


def test_delete_takes_the_router_away_and_no_topic(api: Api, ends: tuple[str, str]) -> None:
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


def test_delete_of_an_absent_router_is_a_200(api: Api, topic: str) -> None:
    for name in (topic, f"{topic}->b"):
        body = ok(delete(api, name))
        assert (body["router"], body["deleted"]) == (name, False)
    refused(api.get(topic), 404, "topic_not_found")


def test_a_second_delete_finds_nothing(api: Api, topic: str) -> None:
    ok(put(api, topic, f"{topic}.a", f"{topic}.b"), 201)
    assert [ok(delete(api, topic))["deleted"] for _ in range(3)] == [True, False, False]


def test_delete_stops_forwarding_and_leaves_what_was_forwarded(
    api: Api, ends: tuple[str, str]
) -> None:
    router = "->".join(ends)
    ok(put(api, router, *ends), 201)
    ok(api.append(ends[0], 1, 2))
    until(lambda: ok(get(api, router))["forwarded_total"], lambda total: total == 2)
    before = api.read(ends[1])
    ok(delete(api, router))
    ok(api.append(ends[0], 3))
    ok(api.append(ends[1], "direct"))
    after = api.read(ends[1])
    assert after[:2] == before
    assert data(after) == [1, 2, "direct"]
    assert data(api.read(ends[0])) == [1, 2, 3]


def test_a_router_made_again_is_a_new_one(api: Api, topic: str) -> None:
    ok(put(api, topic, f"{topic}.a", f"{topic}.b", **OTHERS), 201)
    ok(delete(api, topic))
    body = ok(put(api, topic, f"{topic}.a", f"{topic}.b"), 201)
    assert body["created"] is True
    assert config_of(body) == {"source": f"{topic}.a", "dest": f"{topic}.b", **DEFAULTS}


def test_delete_makes_room_for_another_source_and_for_the_way_back(
    api: Api, ends: tuple[str, str]
) -> None:
    source, dest = ends
    ok(put(api, f"{source}.1", source, dest), 201)
    refused(put(api, f"{source}.2", f"{source}.x", dest), 409, "topic_exists_incompatible")
    refused(put(api, f"{source}.3", dest, source), 409, "router_cycle")
    ok(delete(api, f"{source}.1"))
    ok(put(api, f"{source}.2", f"{source}.x", dest), 201)
    ok(put(api, f"{source}.3", dest, source), 201)


# --- with a topic


@pytest.mark.parametrize("end", [0, 1], ids=["1.4 source", "1.4 dest"])
def test_a_topic_takes_its_routers_with_it(api: Api, ends: tuple[str, str], end: int) -> None:
    router = "->".join(ends)
    ok(put(api, router, *ends), 201)
    ok(api.append(ends[0], 1, 2))
    until(lambda: ok(get(api, router))["forwarded_total"], lambda total: total == 2)
    body = ok(api.delete(ends[end]))
    assert (body["topic"], body["deleted"]) == (ends[end], True)
    assert body["routers_removed"] == [router]
    refused(get(api, router), 404, "router_not_found")
    assert names(api, source=ends[0]) == []
    assert data(api.read(ends[1 - end])) == [1, 2]


def test_all_routers_of_a_topic_go_and_are_listed_by_name(api: Api, topic: str) -> None:
    hub, *others = names_for(topic, [number % 2 for number in range(6)])
    made = [f"{topic}>{end}" for end in ("z", "b", "a>", "Z", "a")]
    ok(put(api, made[0], others[0], hub), 201)
    for name, other in zip(made[1:], others[1:], strict=True):
        ok(put(api, name, hub, other), 201)
    ok(put(api, f"{topic}>kept", others[0], f"{topic}.kept"), 201)
    assert ok(api.delete(hub))["routers_removed"] == sorted(made)
    assert names(api, prefix=f"{topic}>") == [f"{topic}>kept"]
    for other in others:
        assert api.state(other)["head_seq"] == 0
        assert ok(api.delete(other))["routers_removed"] == (
            [f"{topic}>kept"] if other == others[0] else []
        )


def test_a_topic_without_routers_takes_none(api: Api, topic: str) -> None:
    before, middle, after = names_for(topic, [number % 2 for number in range(3)])
    chain(api, (before, after))
    ok(api.put(middle), 201)
    assert ok(api.delete(middle))["routers_removed"] == []
    assert ok(api.delete(middle)) | {"performance": {}} == {
        "topic": middle,
        "deleted": False,
        "routers_removed": [],
        "performance": {},
    }
    assert names(api, source=before) == [f"{before}->{after}"]


@pytest.mark.parametrize("end", [0, 1], ids=["1.4 source", "1.4 dest"])
def test_a_delete_that_is_refused_removes_no_router(
    api: Api, ends: tuple[str, str], end: int
) -> None:
    router = "->".join(ends)
    ok(put(api, router, *ends), 201)
    ok(api.append(ends[end], 1))
    refused(api.delete(ends[end], if_empty="true"), 409, "topic_not_empty")
    assert config_of(ok(get(api, router))) == {"source": ends[0], "dest": ends[1], **DEFAULTS}
    before = ok(get(api, router))["forwarded_total"] if end else 0
    ok(api.append(ends[0], 2))
    until(lambda: ok(get(api, router))["forwarded_total"], lambda total: total > before)


def test_an_empty_topic_is_deleted_with_its_routers(api: Api, ends: tuple[str, str]) -> None:
    router = "->".join(ends)
    ok(put(api, router, *ends), 201)
    assert ok(api.delete(ends[1], if_empty="true"))["routers_removed"] == [router]
    refused(get(api, router), 404, "router_not_found")


@pytest.mark.parametrize("end", [0, 1], ids=["1.4 source", "1.4 dest"])
def test_a_topic_made_again_has_no_router(api: Api, ends: tuple[str, str], end: int) -> None:
    router = "->".join(ends)
    ok(put(api, router, *ends), 201)
    ok(api.delete(ends[end]))
    ok(api.append(ends[end], "new"), 201)
    ok(api.append(ends[0], "more"))
    refused(get(api, router), 404, "router_not_found")
    assert data(api.read(ends[1])) == (["new"] if end else [])
    again = ok(put(api, router, *ends), 201)
    assert again["created"] is True
    assert ok(get(api, router))["forwarded_total"] == 0


@pytest.mark.parametrize("end", [0, 1], ids=["1.4 source", "1.4 dest"])
def test_a_topic_that_goes_makes_room_in_the_graph(
    api: Api, ends: tuple[str, str], end: int
) -> None:
    ok(put(api, "->".join(ends), *ends), 201)
    ok(api.delete(ends[end]))
    ok(put(api, f"{ends[1]}->{ends[0]}", ends[1], ends[0]), 201)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_is_deleted_stays_so_after_a_restart(tmp_path: Path, end: str) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        with Api(server.address) as api:
            topics = names_for("t", [number % 2 for number in range(8)])
            made = chain(api, topics)
            ok(delete(api, made[0]))
            assert ok(api.delete(topics[3]))["routers_removed"] == sorted(made[2:4])
            ok(put(api, made[0], topics[0], "elsewhere"), 201)
            ok(delete(api, made[0]))
        server.stop() if end == "stop" else server.kill()
        server.start()
        with Api(server.address) as api:
            assert names(api) == sorted([made[1], *made[4:]])
            for name in (made[0], *made[2:4]):
                assert ok(delete(api, name))["deleted"] is False
