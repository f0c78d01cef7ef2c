"""Host names and origins (decisions 0019, 0033): a page of another site, or of a name that was
rebound to 127.0.0.1, has no access through the browser of a visitor.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.front import HANDSHAKE, RECORD, Running, running
from tests.support.raw_client import request
from topics.config import Settings
from topics.errors import Forbidden
from topics.formats.api.request_heads import HeadFields
from topics.front import hosts
from topics.front.route import Route
from topics.front.table import ROUTES

OURS = [
    *("localhost", "LOCALHOST:4000", "topics.localhost", "127.0.0.1", "127.0.0.1:4000"),
    *("127.8.9.10:1", "[::1]", "[::1]:4000", "[0:0::1]"),
]
THEIRS = [
    *("evil.example", "evil.example:4000", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("notlocalhost", "10.0.0.7", "[fd00::1]", "a..b", "[::2]:80", "0.0.0.0", "127.1"),
    *("2130706433", ":4000", "a" * 255 + ".localhost"),
]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.methods[0]} {route.path}")
async def test_the_host_name_is_checked_first_on_every_route(route: object) -> None:
    assert isinstance(route, type(ROUTES[0]))
    async with running() as run:
        client = await run.connect()
        path = route.path_of("a").replace(":wid", "w")
        answer = await client.request(
            route.methods[0],
            path,
            b'{"records":[{"data":1}]}',
            host="evil.example",
            origin="http://evil.example",
            **HANDSHAKE,
        )
        assert (answer.status, answer.code) == (403, "forbidden")
        assert run.shards.calls == []


async def test_a_cached_head_with_another_host_name_is_refused_again() -> None:
    async with running() as run:
        client = await run.connect()
        for host, status in (
            ("localhost", 201),
            ("evil.example", 403),
            ("localhost", 200),
            ("evil.example", 403),
        ):
            assert (
                await client.request("POST", "/v0/topics/a", b'{"records":[{"data":1}]}', host=host)
            ).status == status


@pytest.mark.parametrize(
    ("settings", "keys", "passes", "refused"),
    [
        (Settings(), "k", [*OURS, *THEIRS], []),
        (Settings(host="0.0.0.0"), "", [*OURS, *THEIRS], []),
        (Settings(host="::1"), "", OURS, THEIRS),
        (Settings(host="localhost"), "", OURS, THEIRS),
        (Settings(allowed_hosts=("*",)), "", [*OURS, *THEIRS], []),
        (
            Settings(allowed_hosts=("evil.example", "[fd00::1]")),
            "",
            [*OURS, "Evil.Example:1", "[fd00::1]:4000"],
            ["x.evil.example", "a..b"],
        ),
        (
            Settings(allowed_hosts=(".example",)),
            "",
            [*OURS, "evil.example", "a.b.example"],
            ["example", "evil.example.org", "notexample"],
        ),
        (Settings(allowed_hosts=("a.b",)), "k", [*OURS, "a.b"], THEIRS),
        (Settings(host="0.0.0.0", allowed_hosts=("a.b",)), "", [*OURS, "a.b"], THEIRS),
    ],
)
def test_settings_activate_the_rule_and_specify_the_accepted_names(
    settings: Settings, keys: str, passes: list[str], refused: list[str]
) -> None:
    rule = hosts.HostRule(settings, has_keys=bool(keys))
    rule.check([])
    for host in passes:
        rule.check([host.encode()])
    for host in refused:
        with pytest.raises(Forbidden):
            rule.check([host.encode()])
        with pytest.raises(Forbidden):
            rule.check([b"localhost", host.encode()])


# Origins


@pytest.mark.parametrize(
    ("host", "origin", "is_foreign"),
    [
        ("localhost", "", True),
        ("127.0.0.1:4000", "http://127.0.0.1:8000", False),
        ("127.0.0.1:4000", "https://LocalHost", False),
        ("[fd00::1]:4000", "http://[FD00::1]", False),
        ("topics.internal", "https://topics.internal:8443", False),
        ("10.0.0.7:4000", "http://[::1]:3000", False),
        *(
            ("127.0.0.1:4000", origin, True)
            for origin in (
                *("http://elsewhere", "https://elsewhere.example:4000", "http://[::2]:4000"),
                *("http://localhost.elsewhere.example", "http://localhost@elsewhere.example"),
                *("http://elsewhere.example/localhost", "http://localhost http://elsewhere"),
                *("null", "file://", "localhost", "//localhost"),
            )
        ),
    ],
)
def test_only_pages_of_this_host_or_machine_are_not_foreign(
    host: str, origin: str, is_foreign: bool
) -> None:
    own = (b"host", host.encode())
    fields = HeadFields([own, (b"origin", origin.encode())])
    assert hosts.is_from_foreign_page(fields) is is_foreign
    assert not hosts.is_from_foreign_page(HeadFields([own])), (
        "a request without an origin is not from a page"
    )
    two = HeadFields([own, (b"origin", b"http://" + own[1]), (b"origin", b"http://elsewhere")])
    assert hosts.is_from_foreign_page(two)


# Requests that Chromium and Firefox send without an Origin: the method, and the values of
# Sec-Fetch-Mode and Sec-Fetch-Dest.
BY_PAGES = {
    "img": ("GET", "no-cors", "image"),
    "script": ("GET", "no-cors", "script"),
    "iframe": ("GET", "navigate", "iframe"),
    "link": ("GET", "navigate", "document"),
    "form": ("GET", "navigate", "document"),
    "prefetch": ("GET", "no-cors", "empty"),
    "fetch": ("GET", "no-cors", "empty"),
    "fetch HEAD": ("HEAD", "no-cors", "empty"),
    "fetch POST": ("POST", "no-cors", "empty"),
}
DOCUMENTS = {
    *("topic.get", "topic.list", "queue.leases", "router.get", "router.list", "metrics"),
    *("health", "ready", "root", "console", "spec"),
}


def fetched(kind: str, site: str) -> dict[str, str]:
    _, mode, destination = BY_PAGES[kind]
    return {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": destination}


def ids(route: Route) -> str:
    return f"{route.method} {route.path}"


async def send_request(
    run: Running, method: str, path: str, **fields: str
) -> tuple[int, list[Any]]:
    """Send a request on its own connection. Return the status and the requests to the shards."""
    run.shards.calls.clear()
    client = await run.connect()
    await client.send(request(method, path, b"", **fields))
    status = (await client.receive(method="HEAD")).status
    await client.stream.aclose()
    return status, run.shards.calls


def test_the_routes_that_only_return_a_document_are_listed_here() -> None:
    """The author of a new GET route must decide whether a page of another site may request it."""
    assert {route.name for route in ROUTES if route.is_document} == DOCUMENTS


@pytest.mark.parametrize("route", ROUTES, ids=ids)
async def test_a_page_of_another_site_can_request_only_documents(
    route: Route,
) -> None:
    """Browsers send these requests without a preflight."""
    async with running() as run:
        path = route.path_of("a").replace(":wid", "w")
        for kind, site in itertools.product(BY_PAGES, ["cross-site", "same-site"]):
            method = BY_PAGES[kind][0] if BY_PAGES[kind][0] in route.methods else route.method
            status, calls = await send_request(
                run, method, path, **HANDSHAKE, **fetched(kind, site)
            )
            if route.name in DOCUMENTS:
                assert status in (200, 404), (kind, site)
            else:
                assert (status, calls) == (403, []), (kind, site)
        for fields in ({"origin": "http://elsewhere"}, {"origin": "null"}):
            for more in ({}, {"sec_fetch_site": "cross-site"}):
                status, calls = await send_request(
                    run, route.method, path, **HANDSHAKE, **fields, **more
                )
                assert (status == 403) == (route.name not in DOCUMENTS), (fields, more)


@pytest.mark.parametrize("route", ROUTES, ids=ids)
async def test_pages_of_the_server_users_and_programs_are_accepted(route: Route) -> None:
    async with running() as run:
        path = route.path_of("a").replace(":wid", "w")
        for fields in (
            *(fetched("fetch", "same-origin"), fetched("link", "none"), {}),
            {"sec_fetch_site": "same-origin", "origin": "http://as-the-proxy-is-called"},
            {"sec_fetch_site": "same-site", "origin": "http://localhost:3000"},
            {"sec_fetch_site": "a-later-word"},
        ):
            status, _ = await send_request(run, route.method, path, **HANDSHAKE, **fields)
            assert status != 403, fields


async def test_a_key_and_a_listed_origin_do_not_admit_a_page_request_without_an_origin() -> None:
    for origins in (("https://app.example",), ("*",)):
        settings = Settings(cors_origins=origins)
        async with running(keys="k", settings=settings) as run:
            for path in ("/v0/topics/a/work?node=n&token=k", "/v0/watch?topic=a&token=k"):
                for kind, (method, *_) in BY_PAGES.items():
                    if method == "GET":
                        fields = fetched(kind, "cross-site")
                        assert await send_request(run, "GET", path, **fields) == (403, []), kind
            fields = fetched("fetch", "cross-site") | {"origin": "https://app.example"}
            assert (await send_request(run, "GET", "/v0/watch?token=k", **fields))[0] == 400, (
                "no topic"
            )


async def test_a_cached_head_of_a_program_does_not_admit_a_page() -> None:
    async with running() as run:
        for site, status in (("", 201), ("cross-site", 403), ("", 200), ("same-site", 403)):
            client = await run.connect()
            answer = await client.request("POST", "/v0/topics/a", RECORD, sec_fetch_site=site)
            assert answer.status == status
