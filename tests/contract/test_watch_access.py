"""Who may watch, how many may, and what ends every stream (§0.2, §7.1, §11, §8.2)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Answer, Api, ok, refused
from tests.support.caps import capped
from tests.support.server import Server
from tests.support.sse import ERROR, Stream, session, turned_away, watch
from tests.support.ws import Socket

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
        *("token=second-key&token=full-key", "token=", "token", "token=full-key%20"),
        *("token=full+key", "Token=full-key"),
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
