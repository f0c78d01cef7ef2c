"""GET /v0/watch?topic=: a stream in one request, which can be resumed with only an event id."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.support.api import Answer, Api, create, ok, refused
from tests.support.queues import names_on
from tests.support.server import Server
from tests.support.sse import (
    CAUGHT_UP,
    DELETED,
    RECORD,
    Stream,
    encoded,
    gap_ends,
    refused_stream,
    session,
)

URL = "/v0/watch?"
NO_ID = base64.urlsafe_b64encode(b"\1" + bytes(28)).decode().rstrip("=")  # its checksum is wrong


def url_of(*topics: str, **options: object) -> str:
    return URL + urlencode([*(("topic", topic) for topic in topics), *options.items()])


def refusal(api: Api, url: str, *headers: str) -> Answer:
    return refused_stream(api.address, url, "Accept: text/event-stream", *headers)


def test_an_id_resumes_the_stream_even_after_a_kill_of_the_server(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        left, right = names_on("events")
        with Api(server.address) as api:
            for topic in (left, right):
                ok(api.put(topic, {"durability": "fsync"}), 201)
                ok(api.append(topic, f"{topic} 1"))
        url = url_of(left, right)
        with Stream(server.address, url) as stream:
            last_id = stream.read_until_caught_up([left, right]).last_id
        server.restart("kill")
        with Api(server.address) as api:
            ok(api.append(right, "new"))
        with Stream(server.address, url, last_event_id=last_id) as stream:
            assert stream.read_until_caught_up([left, right]).data() == ["new"]


def test_an_id_is_sent_before_the_first_event(api: Api, topic: str) -> None:
    create(api, topic, *range(5))
    url = url_of(topic, tail="true")
    with Stream(api.address, url) as stream:
        first_id = stream.block().id
    ok(api.append(topic, "missed"))
    assert first_id
    with Stream(api.address, url, last_event_id=first_id) as stream:
        assert stream.read_until_caught_up([topic]).data() == ["missed"]


def test_every_id_contains_the_cursors_of_all_topics(api: Api, new_name: Callable[[], str]) -> None:
    """A client may resume after any event of a stream."""
    names = [new_name() for _ in range(3)]
    for topic in names:
        create(api, topic, *(f"{topic} {number}" for number in range(4)))
    url = url_of(*names, limit=2)
    with Stream(api.address, url) as stream:
        events = stream.read_until_caught_up(names).events
    everything = {f"{topic} {number}" for topic in names for number in range(4)}
    seen: set[str] = set()
    for event in events:
        if event.event == RECORD:
            seen |= {record["data"] for record in event.json()["records"]}
        with Stream(api.address, url, last_event_id=event.id) as stream:
            assert sorted(stream.read_until_caught_up(names).data()) == sorted(everything - seen)


def test_a_deleted_topic_is_reported_on_resume_and_the_others_continue(
    api: Api, new_name: Callable[[], str]
) -> None:
    deleted, remaining, new = new_name(), new_name(), new_name()
    create(api, deleted, 1, 2)
    create(api, remaining, 1)
    with Stream(api.address, url_of(deleted, remaining)) as stream:
        last_id = stream.read_until_caught_up([deleted, remaining]).last_id
        stream.leave()
    ok(api.delete(deleted))
    ok(api.append(remaining, 2))
    create(api, new, "new")
    url = url_of(deleted, remaining, new)
    for _ in range(2):
        with Stream(api.address, url, last_event_id=last_id) as stream:
            event = stream.event(DELETED)
            assert event.json() == {"topic": deleted, "head_seq": 2, "reason": "deleted"}
            contents = stream.read_until_caught_up([remaining, new])
            assert sorted(map(str, contents.data())) == ["2", "new"]
    # A topic that only the id names is ignored.
    with Stream(api.address, url_of(remaining), last_event_id=contents.last_id) as stream:
        assert stream.read_until_caught_up([remaining]).records == []
    refused(refusal(api, url), 404, "topic_not_found")


@pytest.mark.parametrize(
    "id_", ["x", "0", "AAAA", NO_ID, encoded({"t": 3}), "é", "A" * 4000, "MTIz"]
)
def test_an_id_that_is_not_from_such_a_stream_is_refused(api: Api, topic: str, id_: str) -> None:
    create(api, topic, 1)
    of_header = refusal(api, url_of(topic), f"Last-Event-ID: {id_}")
    of_query = refusal(api, url_of(topic, cursor=id_))
    for field, answer in (("Last-Event-ID", of_header), ("cursor", of_query)):
        assert refused(answer, 400, "invalid_request")["detail"]["field"] == field


def test_a_cursor_in_the_url_resumes_the_stream(api: Api, new_name: Callable[[], str]) -> None:
    """Reloaded web pages resume in this way. On a reconnect, the header contains a newer id."""
    first, second = new_name(), new_name()
    create(api, first, 1)
    create(api, second, "a")
    with Stream(api.address, url_of(first)) as stream:
        older = stream.read_until_caught_up([first]).last_id
    ok(api.append(first, 2, 3))
    url = url_of(first, cursor=older, tail="true")
    with Stream(api.address, url) as stream:
        contents = stream.read_until_caught_up([first])
        assert contents.data() == [2, 3]
    with Stream(api.address, url, last_event_id=contents.last_id) as stream:
        assert stream.read_until_caught_up([first]).data() == []
    with Stream(api.address, url_of(first, second, cursor=older)) as stream:
        assert sorted(map(str, stream.read_until_caught_up([first, second]).data())) == [
            "2",
            "3",
            "a",
        ]
    ok(api.delete(first))
    create(api, first, "again")
    with Stream(api.address, url) as stream:
        assert [
            gap_ends(body, "recreated") for body in stream.read_until_caught_up([first]).tombstones
        ] == [(1, 1)]


def test_64_topics_of_the_longest_names_are_watched_and_resumed(api: Api, topic: str) -> None:
    names = [f"{topic}-{number:02d}".ljust(255, "x") for number in range(65)]
    for name in names:
        create(api, name, 1)
    with Stream(api.address, url_of(*names[:64], *names[:3])) as stream:
        last_id = stream.read_until_caught_up(names[:64]).last_id
    ok(api.append(names[63], 2))
    with Stream(api.address, url_of(*names[:64]), last_event_id=last_id) as stream:
        assert stream.read_until_caught_up(names[:64]).data() == [2]
    refused(refusal(api, url_of(*names)), 400, "invalid_request")


def test_a_stream_in_one_request_counts_as_a_stream_but_not_as_a_session(tmp_path: Path) -> None:
    with (
        Server(
            tmp_path / "data", max_watch_sessions=1, max_sse_connections=2, max_watch_topics=1
        ) as server,
        Api(server.address) as api,
    ):
        create(api, "a", 1)
        create(api, "b", 1)
        session(api, ["a"])
        with Stream(api.address, url_of("a")), Stream(api.address, url_of("a")) as second:
            answer = refusal(api, url_of("a"))
            assert refused(answer, 429, "throttled")["detail"]["limit"] == "max_sse_connections"
            second.leave()
            with Stream(api.address, url_of("a")) as third:
                assert third.read_until_caught_up(["a"]).events[-1].event == CAUGHT_UP
        refused(refusal(api, url_of("a", "b")), 400, "invalid_request")


def test_a_stream_requires_the_prefixes_of_its_key_and_an_allowed_origin(tmp_path: Path) -> None:
    with Server(
        tmp_path / "data", api_keys="full-key,t42-key:read:t42:", cors_origins="https://app.test"
    ) as server:
        with Api(server.address, token="full-key") as api:
            create(api, "t42:a", 1)
            create(api, "other", 2)
        tenant = ("Authorization: Bearer t42-key",)
        with Stream(server.address, url_of("t42:a", token="t42-key")) as stream:
            assert stream.read_until_caught_up(["t42:a"]).data() == [1]
        refused(refusal(api, url_of("t42:a")), 401, "unauthorized")
        refused(refusal(api, url_of("t42:a", "other"), *tenant), 403, "forbidden")
        refused(refusal(api, url_of("missing"), *tenant), 403, "forbidden")
        unknown = "/v0/watch/wid_" + "A" * 22
        refused(refusal(api, unknown), 401, "unauthorized")
        refused(refusal(api, unknown, *tenant), 404, "not_found")
        url = url_of("t42:a", token="t42-key")
        refused(refusal(api, url, "Origin: https://other.test"), 403, "forbidden")
        headers = ("Accept: text/event-stream", "Origin: https://app.test")
        with Stream(server.address, url, headers=headers) as stream:
            assert ("access-control-allow-origin", "https://app.test") in [
                (name.lower(), value) for name, value in stream.headers
            ]
