"""Host names and origins (decisions 0019, 0033): a page whose name was rebound to 127.0.0.1, or of
another site, reaches nothing through a visitor's browser.
"""

from __future__ import annotations

import pytest

from tests.support.front import HANDSHAKE, running
from topics.config import Settings
from topics.errors import Forbidden
from topics.formats.api.request_heads import HeadFields
from topics.front import hosts
from topics.front.routes.table import ROUTES

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
async def test_the_name_is_checked_on_every_route_before_anything_is_done(route: object) -> None:
    assert isinstance(route, type(ROUTES[0]))
    async with running() as run:
        client = await run.connect()
        path = route.path_of("a").replace(":wid", "w")
        answer = await client.ask(
            route.methods[0],
            path,
            b'{"records":[{"data":1}]}',
            host="evil.example",
            origin="http://evil.example",
            **HANDSHAKE,
        )
        assert (answer.status, answer.code) == (403, "forbidden")
        assert run.shards.calls == []


async def test_a_remembered_head_of_another_name_is_refused_again() -> None:
    async with running() as run:
        client = await run.connect()
        for host, status in (
            ("localhost", 201),
            ("evil.example", 403),
            ("localhost", 200),
            ("evil.example", 403),
        ):
            assert (
                await client.ask("POST", "/v0/topics/a", b'{"records":[{"data":1}]}', host=host)
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
def test_settings_decide_when_the_rule_is_active_and_which_names_it_accepts(
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
def test_a_page_of_this_host_or_machine_is_ours_and_all_others_are_foreign(
    host: str, origin: str, is_foreign: bool
) -> None:
    own = (b"host", host.encode())
    fields = HeadFields([own, (b"origin", origin.encode())])
    assert hosts.has_foreign_origin(fields) is is_foreign
    assert not hosts.has_foreign_origin(HeadFields([own])), "no browser"
    two = HeadFields([own, (b"origin", b"http://" + own[1]), (b"origin", b"http://elsewhere")])
    assert hosts.has_foreign_origin(two)


@pytest.mark.parametrize(
    "line", ["GET /v0/topics/a/work?node=n", "POST /v0/topics/a/redrive", "GET /v0/ws"]
)
async def test_a_page_of_another_site_leases_moves_and_opens_nothing(line: str) -> None:
    """Browsers send these without a preflight."""
    method, path = line.split()
    async with running() as run:
        client = await run.connect()
        answer = await client.ask(method, path, b"", origin="http://elsewhere", **HANDSHAKE)
        assert (answer.status, answer.code, run.shards.calls) == (403, "forbidden", [])
