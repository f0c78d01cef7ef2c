"""`subscribe` of topics.js, in a page of another origin and in Node.js."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.conftest import url_of
from tests.client.js.conftest import KEY, Run
from tests.client.subscribing import (
    SUBSCRIBE,
    Answering,
    InNode,
    InPage,
    data,
    of,
    refused,
    silent,
    stream,
)
from tests.support import chromium
from tests.support.event_sources import CANNED
from tests.support.server import Server
from topics.client import Topics

Subscribe = Callable[..., InPage | InNode]

pytestmark = pytest.mark.slow


@pytest.fixture
def subscribe(run: Run) -> Subscribe:
    """Return the function ``subscribe(more="{}", **options)``."""

    def open_one(more: str = "{}", **options: Any) -> InPage | InNode:
        return run(SUBSCRIBE.replace("MORE", more), **options)

    return open_one


def test_every_record_arrives_once_over_restarts_and_kills(
    subscribe: Subscribe, guarded: Server, client: Topics, name: str
) -> None:
    client.topic(name).put(durability="fsync")
    client.topic(name).append(*range(100))
    sent, is_over = [*range(100)], threading.Event()

    def produce() -> None:
        with Topics(url_of(guarded), key=KEY) as client:
            while not is_over.is_set():
                client.topic(name).append(len(sent))
                sent.append(len(sent))
                time.sleep(0.001)

    subscription = subscribe(url=url_of(guarded), key=KEY, topics=name)
    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for end in ("stop", "kill", "stop", "kill"):
            subscription.records(
                len(sent) + 2
            )  # one record may have been received without an acknowledgement
            guarded.restart(end)
    finally:
        is_over.set()
        producer.join(60)
    client.topic(name).append("last")
    assert subscription.records(len(sent) + 1) == [*sent, "last"]
    states = [event["state"] for event in of(subscription.events(), "status")]
    assert (states.count("open") > 4, {*states}) == (True, {"open", "waiting"})


def test_losses_tags_and_a_deleted_topic_are_reported(
    subscribe: Subscribe, guarded: Server, client: Topics, name: str
) -> None:
    others = f"{name}-others"
    client.topic(name).put(cap_records=2)
    client.topic(name).append(records=[{"data": number, "tag": "t"} for number in range(5)])
    client.topic(others).append("one\u2028line")
    subscription = subscribe(url=url_of(guarded), key=KEY, topics=[name, others])
    events = subscription.wait(lambda events: len(of(events, "caughtUp")) == 2)
    assert [event["topic"] for event in of(events, "tombstone")] == [name]
    assert [(event["gap_from"], event["gap_to"]) for event in of(events, "tombstone")] == [(1, 3)]
    shown = [(event["topic"], event.get("$tag"), event["data"]) for event in of(events, "record")]
    assert shown.count((others, None, "one\u2028line")) == 1
    assert [each for each in shown if each[0] == name] == [(name, "t", 3), (name, "t", 4)]
    client.topic(name).drop()
    events = subscription.wait(lambda events: bool(of(events, "topicDeleted")))
    assert of(events, "topicDeleted") == [{"topic": name, "head_seq": 5, "reason": "deleted"}]
    client.topic(others).append("more")
    assert subscription.records(4)[-1] == "more"


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"key": "wrong"}, 401, "unauthorized"),
        ({"key": None}, 401, "unauthorized"),
        ({"key": "reader", "topics": ["others"]}, 403, "forbidden"),
        ({"topics": "client-missing"}, 404, "topic_not_found"),
        ({"topics": []}, 400, "invalid_request"),
        ({"id": "of another stream"}, 400, "invalid_request"),
    ],
    ids=["wrong key", "no key", "topic of others", "no such topic", "no topic", "strange id"],
)
def test_a_refusal_is_reported_once_and_ends_the_subscription(
    subscribe: Subscribe,
    guarded: Server,
    client: Topics,
    options: dict[str, Any],
    status: int,
    code: str,
) -> None:
    client.topic("client-here").put()
    arguments = {"url": url_of(guarded), "key": KEY, "topics": ["client-here"], **options}
    subscription = subscribe(**arguments)
    subscription.wait(bool)
    if isinstance(subscription, InNode):
        subscription.join()  # the process has exited, so no request is repeated
    events = {"state": "closed", "status": status, "code": code}
    assert subscription.events() == [("status", events)]


def record(number: int, event_id: str) -> bytes:
    body = {"topic": "t", "records": [{"$seq": number, "data": number}]}
    return f"id: {event_id}\nevent: record\ndata: {json.dumps(body)}\n\n".encode()


LATER = json.dumps({"error": {"code": "not_ready", "detail": {"retry_after_ms": 50}}}).encode()
STOPS = b'event: error\ndata: {"code":503,"error":"the server is shutting down"}\n\n'
PACED = b'event: error\ndata: {"code":429,"error":"paced","topics":["t"]}\n\n'
UNKNOWN = b"event: of-a-later-server\ndata: {}\n\n"
HEARTBEAT = b": hb\n\n"


def test_a_subscription_resumes_after_its_last_event_after_every_failure(
    subscribe: Subscribe,
) -> None:
    """A stream without data is closed after twice the heartbeat interval, here after 2 s."""
    first = b"id: a\nretry: 2000\n\n"
    moments = (
        refused(503, LATER),
        refused(429, Retry_After="1"),
        stream(first),
        stream(record(1, "b"), record(2, "c")[:20]),
        stream(STOPS),
        stream(record(2, "c"), then=b""),
        silent,
        stream(first.replace(b"a", b"c"), PACED, UNKNOWN, record(3, "d"), then=HEARTBEAT),
    )
    with Answering(*moments) as server:
        subscription = subscribe(url=server.url, topics="t", key="k", heartbeat_ms=1000)
        assert subscription.records(3) == [1, 2, 3]
        ids = [last_id for _, last_id in server.requests]
        assert ids == [None, None, None, "a", "b", "b", "c", "c"]
        path = "/v0/watch?topic=t&include_tags=true&heartbeat_ms=1000"
        assert {path for path, _ in server.requests} == {path}
    waits = [event for event in of(subscription.events(), "status") if event["state"] == "waiting"]
    assert [(event["status"], event["code"]) for event in waits[:7]] == [
        (503, "not_ready"),
        (429, "http_429"),
        (0, "stream_ended"),
        (0, "stream_ended"),
        (503, "stream_503"),
        (0, "connection_lost"),
        (0, "connection_lost"),
    ]
    assert [event["pause_ms"] for event in waits[:2]] == [50, 1000]


def test_pauses_double_while_streams_contain_no_events(subscribe: Subscribe) -> None:
    with Answering(*[stream(STOPS)] * 5, stream(record(1, "a"), then=HEARTBEAT)) as server:
        subscription = subscribe(url=server.url, topics="t")
        assert subscription.records(1) == [1]
    waits = [event for event in of(subscription.events(), "status") if event["state"] == "waiting"]
    for event, most_ms in zip(waits, (100, 200, 400, 800, 1600), strict=False):
        assert most_ms / 2 <= event["pause_ms"] <= most_ms


def test_bytes_may_arrive_one_by_one(subscribe: Subscribe) -> None:
    chunks = [bytes((byte,)) for byte in CANNED]
    with Answering(stream(*chunks, then=HEARTBEAT)) as server:
        subscription = subscribe(url=server.url, topics="t")
        events = subscription.wait(lambda events: bool(of(events, "caughtUp")))
    assert data(events) == ["é", 2]


PAGE = refused(200, b"<title>sign in</title>", Content_Type="text/html")


@pytest.mark.parametrize(
    ("answer", "code"),
    [(PAGE, "bad_answer"), (stream(b"event: record\ndata: {\n\n", then=HEARTBEAT), None)],
    ids=["page", "event"],
)
def test_a_response_of_another_kind_of_server_ends_the_subscription(
    subscribe: Subscribe, answer: Any, code: str | None
) -> None:
    with Answering(answer) as server:
        subscription = subscribe(url=server.url, topics="t")
        events = subscription.wait(
            lambda events: [e["state"] for _, e in events][-1:] == ["closed"]
        )
        assert events[-1][1].get("code") == code
        assert len(server.requests) == 1


def test_no_handler_is_called_after_a_close(subscribe: Subscribe) -> None:
    with Answering(stream(then=record(1, "a"))) as server:
        subscription = subscribe(url=server.url, topics="t")
        subscription.records(3)
        subscription.close()
        events = subscription.events()
        assert server.is_left.wait(60)
        assert subscription.events() == events


def test_an_abort_signal_closes_the_subscription(subscribe: Subscribe) -> None:
    more = """(() => {
      const closing = new AbortController();
      return { signal: closing.signal, on: { record: (record) => {
        say(["record", record]);
        closing.abort();
      } } };
    })()"""
    with Answering(stream(record(1, "a") + record(2, "b"), then=HEARTBEAT)) as server:
        subscription = subscribe(more, url=server.url, topics="t")
        assert server.is_left.wait(60)
        if isinstance(subscription, InNode):
            subscription.join()
        assert data(subscription.events()) == [1]


def test_a_subscription_with_an_aborted_signal_sends_no_request(subscribe: Subscribe) -> None:
    with Answering() as server:
        subscription = subscribe("{ signal: AbortSignal.abort() }", url=server.url, topics="t")
        if isinstance(subscription, InNode):
            subscription.join()
        assert (server.requests, subscription.events()) == ([], [])


def test_a_subscription_awaits_handlers_and_continues_if_they_fail(
    browser: chromium.Chromium, page: str
) -> None:
    more = """(() => {
      globalThis.onerror = (text) => { say(["uncaught", text]); };
      return { on: { record: async (record) => {
        await new Promise((over) => setTimeout(over, 20));
        say(["record", record]);
        throw new Error(`of the page ${record.data}`);
      } } };
    })()"""
    with Answering(stream(record(1, "a") + record(2, "b") + record(3, "c"), then=b"")) as server:
        subscription = InPage(
            browser, page, {"url": server.url, "topics": "t"}, SUBSCRIBE.replace("MORE", more)
        )
        events = subscription.wait(lambda events: len(of(events, "uncaught")) == 3)
        assert data(events) == [1, 2, 3]
        assert [name for name, _ in events] == ["record", "uncaught"] * 3
        deadline = time.monotonic() + 60
        while browser.evaluate("running.id") != "c":
            assert time.monotonic() < deadline
        subscription.close()
