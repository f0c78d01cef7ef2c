"""Who may watch, how many may, and what ends every stream (§0.2, §7.1, §11, §8.2)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Answer, Api, Wire, ok, refused
from tests.support.caps import capped
from tests.support.queues import BOUND_S
from tests.support.server import Server
from tests.support.sse import ERROR, Stream, session, turned_away, watch
from tests.support.ws import Socket, handshake

FULL = "full-key"
ODD = "o+d/d=%20key"
KEYS = ",".join(
    [
        FULL,
        "second-key",
        ODD,
        "reader:read",
        "writer:write",
        "remover:delete",
        "admin:admin",
        "tenant:read:t42:|shared.",
    ]
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(
        tmp_path_factory.mktemp("guarded-watch") / "data", api_keys=KEYS, shards=2
    ) as server:
        with Api(server.address, token=FULL) as api:
            for name in ("t42:a", "t43:a", "shared.x", "other"):
                ok(api.append(name, name), 201)
        yield server


@pytest.fixture
def full(guarded: Server) -> Iterator[Api]:
    with Api(guarded.address, token=FULL) as api:
        yield api


def posted(server: Server, token: str | None, *topics: str, query: str = "") -> Answer:
    with Api(server.address, token=token) as api:
        return api.call("POST", f"/v0/watch{query}", {"topics": {topic: {} for topic in topics}})


def unopened(server: Server, url: str, token: str | None = None) -> Answer:
    key = [] if token is None else [f"Authorization: Bearer {token}"]
    return turned_away(server.address, url, "Accept: text/event-stream", *key)


# --- keys


@pytest.mark.parametrize("token", [None, "nope", "full-ke"])
def test_a_session_needs_a_known_key(guarded: Server, token: str | None) -> None:
    refused(posted(guarded, token, "other"), 401, "unauthorized")


def test_a_session_takes_no_key_from_the_query(guarded: Server) -> None:
    refused(posted(guarded, None, "other", query=f"?token={FULL}"), 401, "unauthorized")


@pytest.mark.parametrize("token", ["writer", "remover", "admin"])
def test_a_session_needs_the_read_scope(guarded: Server, token: str) -> None:
    refused(posted(guarded, token, "other"), 403, "forbidden")


def test_a_session_stays_inside_the_prefixes_of_its_key(guarded: Server) -> None:
    ok(posted(guarded, "tenant", "t42:a", "shared.x"))
    refused(posted(guarded, "tenant", "t43:a"), 403, "forbidden")
    refused(posted(guarded, "tenant", "t42:a", "other"), 403, "forbidden")
    refused(posted(guarded, "tenant", "other-that-is-absent"), 403, "forbidden")
    refused(posted(guarded, "tenant", "t42:a", "other", query="?lenient=true"), 403, "forbidden")
    refused(posted(guarded, "tenant", "t42:absent"), 404, "topic_not_found")


@pytest.mark.parametrize("token", [FULL, "reader", ODD])
def test_the_key_that_made_a_session_opens_its_stream(guarded: Server, token: str) -> None:
    url = ok(posted(guarded, token, "other"))["stream_url"]
    with Stream(guarded.address, url, token=token) as stream:
        assert stream.told(["other"]).data() == ["other"]


@pytest.mark.parametrize("token", [None, "nope", "second-key", "reader", "writer"])
def test_no_other_key_opens_a_stream(guarded: Server, full: Api, token: str | None) -> None:
    url = session(full, ["other"])["stream_url"]
    refused(unopened(guarded, url, token), 401, "unauthorized")
    if token is not None:
        refused(unopened(guarded, f"{url}?token={token}"), 401, "unauthorized")
    with Stream(guarded.address, url, token=FULL) as stream:
        assert stream.told(["other"]).data() == ["other"]


@pytest.mark.parametrize(
    ("token", "query"),
    [
        (FULL, "token=full-key"),
        (FULL, "token=full%2Dkey"),
        (FULL, "t=1&token=full-key&x="),
        (FULL, "token=full-key&token=second-key"),
        (ODD, "token=o%2Bd%2Fd%3D%2520key"),
    ],
)
def test_a_browser_may_give_the_key_in_the_query(guarded: Server, token: str, query: str) -> None:
    url = ok(posted(guarded, token, "other"))["stream_url"]
    with Stream(guarded.address, f"{url}?{query}") as stream:
        assert stream.told(["other"]).data() == ["other"]


@pytest.mark.parametrize(
    "query",
    [
        "token=second-key&token=full-key",
        "token=",
        "token",
        "token=full-key%20",
        "token=full+key",
        "Token=full-key",
    ],
)
def test_a_query_is_a_form(guarded: Server, full: Api, query: str) -> None:
    url = session(full, ["other"])["stream_url"]
    refused(unopened(guarded, f"{url}?{query}"), 401, "unauthorized")


def test_a_plus_in_a_query_is_a_space(guarded: Server) -> None:
    url = ok(posted(guarded, ODD, "other"))["stream_url"]
    refused(unopened(guarded, f"{url}?token=o+d%2Fd%3D%2520key"), 401, "unauthorized")


def test_an_unknown_wid_is_a_401_without_a_key_and_a_404_with_one(guarded: Server) -> None:
    url = "/v0/watch/wid_" + "A" * 22
    refused(unopened(guarded, url), 401, "unauthorized")
    refused(unopened(guarded, url, FULL), 404, "not_found")


def test_keys_of_streams_are_never_logged(guarded: Server, full: Api) -> None:
    url = session(full, ["other"])["stream_url"]
    with Stream(guarded.address, f"{url}?token={FULL}") as stream:
        stream.told(["other"])
    refused(unopened(guarded, f"{url}?token=second-key"), 401, "unauthorized")
    for secret in (FULL, "second-key"):
        assert secret not in guarded.logged


# --- caps


@pytest.mark.slow
def test_the_number_of_sessions_is_capped(tmp_path: Path) -> None:
    with Server(tmp_path / "data", max_watch_sessions=3) as server, Api(server.address) as api:
        ok(api.append("t", 1), 201)
        urls = [session(api, ["t"])["stream_url"] for _ in range(3)]
        capped(posted(server, None, "t"), "max_watch_sessions", 3)
        with Stream(server.address, urls[0]) as stream:
            assert stream.told(["t"]).data() == [1]
        capped(posted(server, None, "t"), "max_watch_sessions", 3)


@pytest.mark.slow
def test_the_number_of_sessions_of_a_key_is_capped(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", api_keys="one,two", max_watch_sessions_per_key=2)
    with server, Api(server.address, token="one") as api:
        ok(api.append("t", 1), 201)
        urls = [session(api, ["t"])["stream_url"] for _ in range(2)]
        capped(posted(server, "one", "t"), "max_watch_sessions_per_key", 2)
        ok(posted(server, "two", "t"))
        with Stream(server.address, urls[0], token="one") as stream:
            assert stream.told(["t"]).data() == [1]


def free_again(server: Server, url: str, token: str | None = None) -> None:
    """A slot of a connection that has gone is free as soon as the server has noticed."""
    deadline = time.monotonic() + BOUND_S
    while True:
        try:
            Stream(server.address, url, token=token).close()
        except AssertionError:
            assert time.monotonic() < deadline, "the slot of a closed stream stays taken"
            time.sleep(0.02)
        else:
            return


def upgraded(server: Server, *headers: str) -> Answer:
    with Wire(server.address) as wire:
        wire.send(handshake(AGAIN, *headers))
        return wire.answer()


AGAIN = "dGhlIHNhbXBsZSBub25jZQ=="


@pytest.mark.slow
def test_the_number_of_streams_and_sockets_is_capped(tmp_path: Path) -> None:
    with Server(tmp_path / "data", max_sse_connections=2) as server, Api(server.address) as api:
        ok(api.append("t", 1), 201)
        urls = [session(api, ["t"])["stream_url"] for _ in range(3)]
        with Stream(server.address, urls[0]), Socket(server.address) as socket:
            capped(unopened(server, urls[1]), "max_sse_connections", 2)
            capped(upgraded(server), "max_sse_connections", 2)
            assert socket.ask("ping", "p")["op"] == "pong"
        free_again(server, urls[1])
        free_again(server, urls[2])


@pytest.mark.slow
def test_the_number_of_streams_of_one_key_is_capped(tmp_path: Path) -> None:
    with Server(tmp_path / "data", max_sse_connections_per_key=1, api_keys="left,right") as server:
        with Api(server.address, token="left") as api:
            ok(api.append("t", 1), 201)
        left = [ok(posted(server, "left", "t"))["stream_url"] for _ in range(2)]
        right = ok(posted(server, "right", "t"))["stream_url"]
        with (
            Stream(server.address, left[0], token="left"),
            Stream(server.address, right, token="right"),
        ):
            capped(unopened(server, left[1], "left"), "max_sse_connections_per_key", 1)
            capped(
                upgraded(server, "Authorization: Bearer right"), "max_sse_connections_per_key", 1
            )
        free_again(server, left[1], "left")


@pytest.mark.slow
def test_the_number_of_topics_in_a_session_may_be_changed(tmp_path: Path) -> None:
    with Server(tmp_path / "data", max_watch_topics=2) as server, Api(server.address) as api:
        for name in "abc":
            ok(api.append(name, 1), 201)
        ok(posted(server, None, "a", "b"))
        refused(posted(server, None, "a", "b", "c"), 400, "invalid_request")


# --- the end of the server


@pytest.mark.slow
def test_a_server_that_stops_tells_its_readers(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    with server:
        with Api(server.address) as api:
            ok(api.append("t", 1), 201)
            url = session(api, ["t"])["stream_url"]
            idle = session(api, ["t"])["stream_url"]
            stream, socket = Stream(server.address, url), Socket(server.address)
        with stream, socket:
            stream.told(["t"])
            begun = time.monotonic()
            server.stop()
            assert time.monotonic() - begun < 10
            assert type(stream.event(ERROR).json()["code"]) is int
            with pytest.raises(EOFError):
                stream.block()
            socket.closed()
        server.start()
        for gone in (url, idle):
            refused(unopened(server, gone), 404, "not_found")
        with Api(server.address) as api, watch(api, ["t"]) as again:
            assert again.told(["t"]).data() == [1]


@pytest.mark.slow
def test_a_server_that_stops_answers_what_it_has_taken(tmp_path: Path) -> None:
    """Every record that is there afterwards has been acknowledged, and the other way round."""
    server = Server(tmp_path / "data")
    with server:
        with Api(server.address) as api:
            ok(api.put("t", {"durability": "fsync"}), 201)
        with Socket(server.address) as socket:
            for number in range(400):
                socket.say("publish", str(number), topic="t", records=[{"data": number}])
            server.stop()
            acknowledged = set()
            while (told := socket.receive()).opcode == 1:
                document = json.loads(told.payload)
                if document["op"] == "ack":
                    acknowledged.add(int(document["request_id"]))
        server.start()
        with Api(server.address) as api:
            stored = {record["data"] for record in ok(api.diff("t", limit=1000))["records"]}
    assert stored == acknowledged


@pytest.mark.slow
def test_records_of_a_killed_server_are_watched_again(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    with server:
        with Api(server.address) as api:
            ok(api.put("t", {"durability": "fsync"}), 201)
            with watch(api, ["t"]) as stream:
                stream.told(["t"])
                for number in range(5):
                    ok(api.append("t", number))
                seen: list[Any] = stream.records(5)
                server.kill()
        server.start()
        with (
            Api(server.address) as api,
            watch(api, {"t": {"from_seq": seen[-1]["$seq"]}}) as stream,
        ):
            assert stream.told(["t"]).records == []
            ok(api.append("t", 5))
            assert stream.records(1)[0]["$seq"] == 6
