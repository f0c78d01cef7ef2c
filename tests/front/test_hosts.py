"""Host names (decision 0019): a page whose name was rebound to 127.0.0.1 reaches nothing."""

from __future__ import annotations

import pytest

from tests.support.fake_shards import FakeShards
from tests.support.front import HANDSHAKE, running
from topics.config import Settings
from topics.errors import Forbidden
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


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "cold"])
async def test_without_keys_a_loopback_server_goes_by_loopback_names_only(fast: bool) -> None:
    async with running(fast=fast, shards=FakeShards(topics={"a": []})) as run:
        client = await run.connect()
        for method, path in (
            ("POST", "/v0/topics/a/diff"),
            ("GET", "/v0/topics/a"),
            ("GET", "/v0/health"),
        ):
            for host in OURS:
                assert (await client.ask(method, path, host=host)).status == 200
                assert (await client.ask(method, f"http://{host}{path}")).status == 200
            for host in THEIRS:
                answer = await client.ask(method, path, host=host)
                assert (answer.status, answer.code) == (403, "forbidden")
                assert "TOPICS_ALLOWED_HOSTS" in answer.json()["error"]["message"]
                if host != ":4000":
                    assert (await client.ask(method, f"http://{host}{path}")).code == "forbidden"


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


@pytest.mark.parametrize("path", ["/v0/topics/a/diff", "/v0/health", "/"])
async def test_a_request_that_names_no_host_passes(path: str) -> None:
    async with running(shards=FakeShards(topics={"a": []})) as run:
        client = await run.connect()
        await client.say(f"{'POST' if 'diff' in path else 'GET'} {path} HTTP/1.0\r\n\r\n".encode())
        assert (await client.hear()).status == 200


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
