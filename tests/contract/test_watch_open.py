"""GET /v0/watch/:wid (§7.1, §7.2): the headers of a stream, and who gets none."""

from __future__ import annotations

import json

import pytest

from tests.support.api import Api, Wire, create, ok, refused, request
from tests.support.sse import (
    Stream,
    session,
    turned_away,
    watch,
)


def test_a_stream_has_exactly_these_headers(api: Api, topic: str) -> None:
    create(api, topic)
    with watch(api, [topic]) as stream:
        assert stream.raw_head.startswith(b"HTTP/1.1 200")
        names = [name.lower() for name, _ in stream.headers]
        assert len(names) == len(set(names)), stream.headers
        expected = {
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-store, no-transform",
            "Connection": "keep-alive",
            "X-Accel-Buffering": "no",
        }
        headers = {name.lower(): value for name, value in stream.headers}
        assert {name: headers.get(name.lower()) for name in expected} == expected
        assert "content-length" not in headers
        assert "content-encoding" not in headers


def test_a_stream_is_never_compressed(api: Api, topic: str) -> None:
    create(api, topic, "x" * 5000)
    url = session(api, [topic])["stream_url"]
    with Stream(
        api.address,
        url,
        headers=["Accept: text/event-stream", "Accept-Encoding: gzip, deflate, br"],
    ) as stream:
        assert stream.told([topic]).data() == ["x" * 5000]


def test_retry_is_sent_once_at_open(api: Api, topic: str) -> None:
    create(api, topic, 1)
    url = session(api, [topic])["stream_url"]
    for number in (1, 2):
        with Stream(api.address, url) as stream:
            assert stream.block().retry == "2000"
            stream.told([topic])
            ok(api.append(topic, number))
            stream.records(1)
            assert [event.retry for event in stream.blocks[1:] if event.retry is not None] == []


@pytest.mark.parametrize(
    "wid",
    ["wid_" + "A" * 22, "wid_", "wid", "x", "wid_BuRguGorNdVFWNQULz-rrw", "wid_%00", "A" * 4000],
)
def test_an_unknown_wid_is_a_404(api: Api, wid: str) -> None:
    refused(
        turned_away(api.address, f"/v0/watch/{wid}", "Accept: text/event-stream"), 404, "not_found"
    )


def test_a_wid_is_exact(api: Api, topic: str) -> None:
    create(api, topic)
    wid = session(api, [topic])["wid"]
    for other in (wid[:-1], wid + "A", wid.removeprefix("wid_"), wid.swapcase(), wid + "/"):
        refused(
            turned_away(api.address, f"/v0/watch/{other}", "Accept: text/event-stream"),
            404,
            "not_found",
        )


@pytest.mark.parametrize(
    "accept",
    [
        "application/json",
        "text/html",
        "text/event-stream;q=0",
        "text/event-stream;q=0, */*",
        "image/*",
    ],
)
def test_an_accept_header_without_event_streams_is_a_406(api: Api, topic: str, accept: str) -> None:
    create(api, topic, 1)
    url = session(api, [topic])["stream_url"]
    refused(turned_away(api.address, url, f"Accept: {accept}"), 406, "not_acceptable")
    with Stream(api.address, url) as stream:
        assert stream.told([topic]).data() == [1]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Accept: */*"],
        ["Accept: text/*"],
        ["Accept: TEXT/Event-Stream"],
        ["Accept: text/event-stream; charset=utf-8"],
        ["Accept: text/html, text/event-stream;q=0.1"],
        ["Accept: application/json, */*;q=0.5"],
        ["Accept: application/json", "Accept: text/event-stream"],
    ],
    ids=lambda value: f"7.2 {value}",
)
def test_an_accept_header_that_admits_event_streams_opens_one(
    api: Api, topic: str, headers: list[str]
) -> None:
    create(api, topic, 1)
    with Stream(api.address, session(api, [topic])["stream_url"], headers=headers) as stream:
        assert stream.told([topic]).data() == [1]


def test_a_session_and_its_stream_may_use_one_connection(wire: Wire, api: Api, topic: str) -> None:
    create(api, topic, "x")
    wire.send(request("POST", "/v0/watch", json.dumps({"topics": {topic: {}}}).encode()))
    url = ok(wire.answer())["stream_url"]
    wire.send(request("GET", url, None, "Accept: text/event-stream"))
    status, headers = wire.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert b"retry: 2000" in wire._until(b"\n\n")
