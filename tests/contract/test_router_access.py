"""Who may do what with routers (§0.2, §6): scopes, prefixes of the name and of both ends, and names
that no answer may show.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.api import Answer, Api, ok, refused
from tests.support.routers import (
    config_of,
    delete,
    get,
    listing,
    named,
    names,
    pages,
    path_of,
    put,
)
from tests.support.server import Server

pytestmark = pytest.mark.slow

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
# name: source, dest. What the key `tenant` may see comes first.
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


CALLS: dict[str, Callable[[Api], Answer]] = {
    "put": lambda api: put(api, "t42:a->b", "t42:a", "t42:b"),
    "get": lambda api: get(api, "t42:a->b"),
    "list": lambda api: listing(api),
    "delete": lambda api: delete(api, "t42:absent"),
}
RIGHTS: list[tuple[str, set[str]]] = [
    (FULL, {"put", "get", "list", "delete"}),
    ("reader", {"get", "list"}),
    ("writer", set()),
    ("remover", {"delete"}),
    ("admin", {"put"}),
    ("rwd", {"get", "list", "delete"}),
    ("tenant", {"put", "get", "list", "delete"}),
    ("tenant-reader", {"get", "list"}),
]


@pytest.mark.parametrize(("token", "allowed"), RIGHTS, ids=[f"0.2 {row[0]}" for row in RIGHTS])
def test_every_call_needs_its_scope(guarded: Server, token: str, allowed: set[str]) -> None:
    with Api(guarded.address, token=token) as api:
        for name, call in CALLS.items():
            if name in allowed:
                ok(call(api))
            else:
                refused(call(api), 403, "forbidden")


@pytest.mark.parametrize("token", [None, "nope", "full-ke"])
def test_without_a_known_key_everything_is_a_401(guarded: Server, token: str | None) -> None:
    with Api(guarded.address, token=token) as api:
        for call in CALLS.values():
            refused(call(api), 401, "unauthorized")
        refused(api.call("PATCH", path_of("t42:a->b"), b"{"), 401, "unauthorized")
        for path in (path_of("t42:a->b"), "/v0/routers"):
            refused(api.call("GET", f"{path}?token={FULL}"), 401, "unauthorized")


# --- the path's name


def test_the_name_is_inside_the_prefixes(full: Api, tenant: Api) -> None:
    for name in ("t43:r", "t43:absent", "foreign", "T42:r", "t4", "shared", "t42>x"):
        refused(get(tenant, name), 403, "forbidden")
        refused(put(tenant, name, "t42:a", "t42:b"), 403, "forbidden")
        refused(delete(tenant, name), 403, "forbidden")
    assert {*names(full)} >= {*THEIRS}
    for name in OURS:
        assert ok(get(tenant, name))["router"] == name


def test_a_prefix_may_hold_an_arrow(guarded: Server) -> None:
    with Api(guarded.address, token="arrow") as api:
        refused(get(api, "t42:a"), 403, "forbidden")
        refused(get(api, "t42:a->absent"), 404, "router_not_found")
        # No topic can begin with that prefix.
        refused(get(api, "t42:a->b"), 403, "forbidden")
        refused(put(api, "t42:a->new", "t42:a", "t42:b"), 403, "forbidden")
        assert names(api) == []


def test_an_absent_router_inside_the_prefixes_is_absent(tenant: Api) -> None:
    refused(get(tenant, "t42:absent"), 404, "router_not_found")
    assert ok(delete(tenant, "t42:absent"))["deleted"] is False


# --- the ends


@pytest.mark.parametrize(
    "ends",
    [
        ("t42:new", "t43:new"),
        ("t43:new", "t42:new"),
        ("t43:new", "t43:new2"),
        ("t42:new", "t43:a"),
        ("t43:a", "shared.new"),
        ("other", "t42:new"),
    ],
    ids=lambda ends: f"6 {ends}",
)
def test_a_put_needs_both_ends_inside_the_prefixes(
    full: Api, tenant: Api, ends: tuple[str, str]
) -> None:
    source, dest = ends
    for fields in ({}, {"create_dest": False}, {"allow_cycle": True}):
        refused(put(tenant, "t42:new", source, dest, **fields), 403, "forbidden")
    refused(get(full, "t42:new"), 404, "router_not_found")
    for name in ends:
        if "new" in name or name == "other":
            refused(full.get(name), 404, "topic_not_found")


def test_a_put_inside_the_prefixes_makes_its_topics(full: Api, tenant: Api) -> None:
    ok(put(tenant, "shared.made", "t42:made", "shared.made"), 201)
    assert full.state("t42:made")["head_seq"] == full.state("shared.made")["head_seq"] == 0
    refused(put(tenant, "shared.made", "t42:made", "t43:c"), 403, "forbidden")
    refused(put(tenant, "shared.made", "t43:a", "shared.made"), 403, "forbidden")
    assert ok(get(full, "shared.made"))["dest"] == "shared.made"
    assert ok(delete(tenant, "shared.made"))["deleted"] is True
    refused(get(full, "shared.made"), 404, "router_not_found")


@pytest.mark.parametrize("name", ["t42:out", "t42:in", "t42:foreign"])
def test_a_router_with_an_end_outside_the_prefixes_is_out_of_reach(
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


def test_a_refusal_does_not_show_the_names_of_others(full: Api, tenant: Api) -> None:
    """A fan-in or a cycle that leads through topics outside the prefixes."""
    fan_in = put(tenant, "t42:second", "t42:z", "t42:d")  # fed from t43:a
    refused(fan_in, 409, "topic_exists_incompatible")
    ok(put(full, "way", "t43:c", "t42:back"), 201)  # t42:a -> t43:c -> t42:back
    cycle = put(tenant, "t42:close", "t42:back", "t42:a")
    refused(cycle, 409, "router_cycle")
    for answer in (fan_in, cycle):
        assert b"t43" not in answer.body
    ok(delete(full, "way"))


# --- the order of checks


def test_checks_come_in_their_order(guarded: Server, tenant: Api) -> None:
    plain = {"Content-Type": "text/plain"}
    with Api(guarded.address, token="reader") as api:
        refused(api.call("PATCH", path_of("t42:a->b"), b"{"), 405, "method_not_allowed")
        refused(api.call("PUT", path_of("a b"), b"{", plain), 403, "forbidden")
    refused(tenant.call("PATCH", path_of("t43:r"), b"{"), 405, "method_not_allowed")
    refused(tenant.call("PUT", path_of("t43:r"), b"{", plain), 403, "forbidden")
    refused(tenant.call("PUT", path_of("t42:r"), b"{", plain), 415, "unsupported_media_type")
    outside: dict[str, Any] = {"source": "t43:x", "dest": "t43:y", "guarantee": "once"}
    refused(tenant.call("PUT", path_of("t42:r"), outside), 400, "invalid_request")
    refused(tenant.call("PUT", path_of("t42:r\n"), outside), 400, "invalid_request")
    absent = {"source": "t42:x", "dest": "t43:absent", "create_dest": False}
    refused(tenant.call("PUT", path_of("t42:r"), absent), 403, "forbidden")
    absent["dest"] = "t42:absent"
    refused(tenant.call("PUT", path_of("t42:r"), absent), 404, "topic_not_found")


# --- the list


def test_the_list_shows_what_the_key_may_reach(full: Api, tenant: Api) -> None:
    assert names(tenant) == sorted(OURS)
    assert {*names(full)} >= {*OURS, *THEIRS}
    assert names(tenant, source="t42:a") == ["t42:a->b"]
    for query in ({"source": "t43:a"}, {"dest": "t43:c"}, {"dest": "t42:d"}, {"prefix": "t43"}):
        page = ok(listing(tenant, **query))
        assert page["routers"] == []
        assert "next_cursor" not in page


def test_a_list_within_one_prefix_needs_both_ends_too(guarded: Server) -> None:
    with Api(guarded.address, token="tenant-reader") as api:
        assert names(api) == ["t42:a->b"]


def test_no_page_and_no_cursor_tells_of_other_routers(full: Api, tenant: Api) -> None:
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


# --- routers that go with a topic


def test_routers_removed_shows_no_name_outside_the_prefixes(full: Api, tenant: Api) -> None:
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


def test_a_key_that_may_not_delete_a_topic_removes_no_router(full: Api, guarded: Server) -> None:
    for token, topic in (("tenant", "t43:a"), ("reader", "t42:a"), ("admin", "t42:a")):
        with Api(guarded.address, token=token) as api:
            refused(api.delete(topic), 403, "forbidden")
    assert {*names(full)} >= {*OURS, *THEIRS}
