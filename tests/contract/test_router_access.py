"""GET /v0/routers (§6), and the routers that a key with prefixes can access."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from tests.support.api import Api, ok, refused
from tests.support.queues import until
from tests.support.routers import (
    config_of,
    delete,
    get,
    listing,
    named,
    names,
    pages,
    put,
)
from tests.support.server import Server


def test_a_list_shows_summaries(api: Api, topic: str) -> None:
    ok(put(api, f"{topic}->b", topic, f"{topic}.b"), 201)
    ok(put(api, f"{topic}->c", topic, f"{topic}.c", guarantee="exactly_once", filter="t"), 201)
    ok(api.append(topic, 1, 2, 3))
    until(lambda: ok(get(api, f"{topic}->b"))["forwarded_total"], lambda total: total == 3)
    assert ok(listing(api, source=topic))["routers"] == [
        {
            "router": f"{topic}->b",
            "source": topic,
            "dest": f"{topic}.b",
            "guarantee": "at_least_once",
            "forwarded_total": 3,
        },
        {
            "router": f"{topic}->c",
            "source": topic,
            "dest": f"{topic}.c",
            "guarantee": "exactly_once",
            "forwarded_total": 0,
        },
    ]


def test_a_list_is_filtered_by_its_ends(api: Api, topic: str) -> None:
    ends = {"1": ("a", "b"), "2": ("a", "c"), "3": ("b", "d"), "4": ("a", "b"), "5": ("A", "e")}
    for name, (source, dest) in ends.items():
        ok(put(api, f"{topic}.{name}", f"{topic}.{source}", f"{topic}.{dest}"), 201)

    def found(**query: str) -> str:
        sent = {name: f"{topic}.{value}" for name, value in query.items()}
        return "".join(name.rpartition(".")[2] for name in names(api, **sent, page_size=2))

    assert found(source="a") == "124"
    assert found(dest="b") == "14"
    assert found(source="b") == "3"
    assert found(source="A") == "5"
    assert found(source="a", dest="b") == "14"
    assert found(source="a", dest="d") == ""
    assert found(source="a", prefix="2") == "2"
    assert found(source="a", dest="b", prefix="4") == "4"
    assert found(dest="a") == ""
    assert found(source="nope") == ""
    assert names(api, source=topic) == [], "an end must match completely"


# --- refusals


FULL = "full-key"
KEYS = ",".join(
    [
        FULL,
        "reader:read",
        "writer:write",
        "remover:delete",
        "admin:admin",
        "rwd:read+write+delete",
        "tenant::t42:|shared.",
        "tenant-reader:read:t42:",
        "arrow::t42:a->",
    ]
)
# name: source, dest. The routers visible to the key `tenant` are first.
OURS = {
    "t42:a->b": ("t42:a", "t42:b"),
    "t42:b->shared": ("t42:b", "shared.c"),
    "shared.r": ("shared.s", "shared.d"),
}
THEIRS = {
    "t43:r": ("t43:a", "t43:b"),
    "t42:out": ("t42:a", "t43:c"),
    "t42:in": ("t43:a", "t42:d"),
    "t42:foreign": ("t43:a", "t43:d"),
    "foreign": ("t42:a", "t42:e"),
    "T42:r": ("t42:a", "t42:f"),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("guarded-routers") / "data"
    with Server(path, api_keys=KEYS, shards=2) as server:
        with Api(server.address, token=FULL) as api:
            for name, ends in (OURS | THEIRS).items():
                ok(put(api, name, *ends), 201)
        yield server


@pytest.fixture
def full(guarded: Server) -> Iterator[Api]:
    with Api(guarded.address, token=FULL) as api:
        yield api


@pytest.fixture
def tenant(guarded: Server) -> Iterator[Api]:
    with Api(guarded.address, token="tenant") as api:
        yield api


# --- the name in the path


@pytest.mark.slow
def test_a_prefix_may_contain_an_arrow(guarded: Server) -> None:
    with Api(guarded.address, token="arrow") as api:
        refused(get(api, "t42:a"), 403, "forbidden")
        refused(get(api, "t42:a->absent"), 404, "router_not_found")
        # No name of a topic can begin with that prefix.
        refused(get(api, "t42:a->b"), 403, "forbidden")
        refused(put(api, "t42:a->new", "t42:a", "t42:b"), 403, "forbidden")
        assert names(api) == []


# --- the ends


@pytest.mark.slow
def test_a_put_within_the_prefixes_creates_its_topics(full: Api, tenant: Api) -> None:
    ok(put(tenant, "shared.made", "t42:made", "shared.made"), 201)
    assert full.state("t42:made")["head_seq"] == full.state("shared.made")["head_seq"] == 0
    refused(put(tenant, "shared.made", "t42:made", "t43:c"), 403, "forbidden")
    refused(put(tenant, "shared.made", "t43:a", "shared.made"), 403, "forbidden")
    assert ok(get(full, "shared.made"))["dest"] == "shared.made"
    assert ok(delete(tenant, "shared.made"))["deleted"] is True
    refused(get(full, "shared.made"), 404, "router_not_found")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t42:out", "t42:in", "t42:foreign"])
def test_a_router_with_an_end_outside_the_prefixes_is_inaccessible(
    full: Api, tenant: Api, name: str
) -> None:
    before = config_of(ok(get(full, name)))
    for answer in (get(tenant, name), delete(tenant, name)):
        refused(answer, 403, "forbidden")
        for outside in ("t43", "foreign"):
            assert outside.encode() not in answer.body.replace(name.encode(), b"")
    refused(put(tenant, name, "t42:x", "t42:y"), 403, "forbidden")
    assert config_of(ok(get(full, name))) == before
    for topic in ("t42:x", "t42:y"):
        refused(full.get(topic), 404, "topic_not_found")


@pytest.mark.slow
def test_a_refusal_does_not_show_the_names_of_others(full: Api, tenant: Api) -> None:
    """The refusals concern a fan-in and a cycle with topics outside the prefixes."""
    fan_in = put(tenant, "t42:second", "t42:z", "t42:d")  # fed from t43:a
    refused(fan_in, 409, "topic_exists_incompatible")
    ok(put(full, "way", "t43:c", "t42:back"), 201)  # t42:a -> t43:c -> t42:back
    cycle = put(tenant, "t42:close", "t42:back", "t42:a")
    refused(cycle, 409, "router_cycle")
    for answer in (fan_in, cycle):
        assert b"t43" not in answer.body
    ok(delete(full, "way"))


# --- the list


@pytest.mark.slow
def test_the_list_shows_the_routers_that_the_key_may_access(full: Api, tenant: Api) -> None:
    assert names(tenant) == sorted(OURS)
    assert {*names(full)} >= {*OURS, *THEIRS}
    assert names(tenant, source="t42:a") == ["t42:a->b"]
    for query in ({"source": "t43:a"}, {"dest": "t43:c"}, {"dest": "t42:d"}, {"prefix": "t43"}):
        page = ok(listing(tenant, **query))
        assert page["routers"] == []
        assert "next_cursor" not in page


@pytest.mark.slow
def test_no_page_or_cursor_contains_names_of_other_routers(full: Api, tenant: Api) -> None:
    assert [named(page) for page in pages(tenant, page_size=1)] == [[name] for name in sorted(OURS)]
    assert "next_cursor" not in ok(listing(tenant, page_size=len(OURS)))
    query: dict[str, object] = {"page_size": 1}
    while True:
        page = ok(listing(tenant, **query))
        if "next_cursor" not in page:
            break
        query["cursor"] = page["next_cursor"]
        packed = page["next_cursor"] + "=" * (-len(page["next_cursor"]) % 4)
        content = base64.urlsafe_b64decode(packed).decode()
        assert named(page["routers"])[0] in json.dumps(json.loads(content), ensure_ascii=False)
        for name in THEIRS:
            assert name not in content
    foreign = ok(listing(full, page_size=1, prefix="t4"))["next_cursor"]
    assert {*names(tenant, cursor=foreign)} <= {*OURS}


# --- routers that are deleted with a topic


@pytest.mark.slow
def test_routers_removed_contains_no_name_outside_the_prefixes(full: Api, tenant: Api) -> None:
    routers = {
        "t42:gone": ("t42:hub", "t42:leaf1"),
        "shared.gone": ("t42:hub", "shared.leaf2"),
        "t43:gone": ("t42:hub", "t43:leaf3"),
        "gone": ("t43:leaf4", "t42:hub"),
    }
    for name, ends in routers.items():
        ok(put(full, name, *ends), 201)
    answer = tenant.delete("t42:hub")
    assert ok(answer)["routers_removed"] == ["shared.gone", "t42:gone"]
    assert b"t43" not in answer.body
    for name in routers:
        refused(get(full, name), 404, "router_not_found")
    for end in ("t43:leaf3", "t43:leaf4"):
        assert full.state(end)["head_seq"] == 0
