"""`append` and `publish` of topics.js, in a page of another origin and in Node.js."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from tests.client.conftest import url_of
from tests.client.js.conftest import KEY, Run
from tests.client.subscribing import Events, InNode, of
from tests.support import chromium
from tests.support.server import Server
from topics.client import Topics

pytestmark = pytest.mark.slow

COUNT = 3000

APPEND = """
const running = { close() { this.isClosed = true; } };
(async () => {
  for (let n = 0; n < options.count && !running.isClosed; n++) {
    const { last_seq } = await append({ ...options, records: [{ data: n }] });
    say(["appended", last_seq]);
  }
})();
"""
PUBLISH = """
const running = publish({ on: { status }, ...options });
(async () => {
  for (let n = 0; n < options.count; n++) {
    await running.ready;
    running.send({ records: [{ data: n }] })
      .then(({ last_seq }) => say(["acked", last_seq]), (error) => say(["refused", error.code]));
  }
})();
"""


def appended(events: Events) -> list[int]:
    return [*of(events, "appended"), *of(events, "acked")]


@pytest.mark.parametrize("program", [APPEND, PUBLISH], ids=["append", "publish"])
def test_every_record_is_appended_once_over_restarts_and_kills(
    run: Run, unguarded: Server, name: str, program: str
) -> None:
    count = COUNT if program == PUBLISH else 300
    with Topics(url_of(unguarded)) as client:
        client.topic(name).put(durability="fsync")
        running = run(program, url=url_of(unguarded), topic=name, count=count, max_pending=50)
        for part, end in enumerate(("kill", "stop", "kill")):
            running.wait(lambda events, at=part * count // 4 + 1: len(appended(events)) >= at)  # type: ignore[misc]
            unguarded.restart(end)
        running.wait(lambda events: len(appended(events)) == count)
        records = [record.data for record in client.topic(name).read() if hasattr(record, "data")]
        assert sorted(records) == [*range(count)]
        assert not of(running.events(), "refused")


def test_a_refused_append_is_not_repeated(run: Run, guarded: Server, name: str) -> None:
    program = """
      const running = { close() {} };
      for (const more of [{ create: false }, { key: "wrong" }, { url: "http://127.0.0.1:1" }])
        await append({ ...options, records: [{ data: 1 }], timeout_ms: 1, ...more })
          .catch(({ status, code }) => say(["refused", [status, code]]));
      const aborted = AbortSignal.abort(new Error("too late"));
      await append({ ...options, records: [], signal: aborted })
        .catch((error) => say(["thrown", error.message]));
    """
    running = run(program, url=url_of(guarded), key=KEY, topic=name)
    events = running.wait(lambda events: bool(of(events, "thrown")))
    assert of(events, "refused") == [
        [404, "topic_not_found"],
        [401, "unauthorized"],
        [0, "connection_lost"],
    ]
    assert of(events, "thrown") == ["too late"]


@pytest.mark.parametrize("run", ["node"], indirect=True)
def test_node_publishes_with_a_key(run: Run, guarded: Server, client: Topics, name: str) -> None:
    options = {"url": url_of(guarded), "topic": name, "count": 2}
    running = run(PUBLISH, key=KEY, **options)
    running.wait(lambda events: appended(events) == [1, 2])
    running.close()
    wrong = run(PUBLISH, key="wrong", **options)
    events = wrong.wait(lambda events: len(of(events, "refused")) == 2)
    assert isinstance(wrong, InNode)
    wrong.join()  # the socket and all timers are closed
    assert of(events, "status") == [{"state": "closed", "status": 401, "code": "unauthorized"}]
    assert of(events, "refused") == ["unauthorized"] * 2


def test_a_publish_with_a_key_in_a_browser_throws_an_explanation(
    browser: chromium.Chromium, page: str
) -> None:
    browser.open(page)
    thrown = browser.evaluate(
        """import("/topics.js").then(({ publish }) => {
          try { publish({ key: "k", topic: "t" }); } catch (error) { return `${error}`; }
        })"""
    )
    assert thrown == (
        "TypeError: a browser cannot send a key on a WebSocket: let a proxy add it, or use append"
    )


def test_a_refused_message_does_not_fail_other_messages(
    run: Run, unguarded: Server, name: str
) -> None:
    program = """
      const running = publish({ on: { status }, ...options });
      const show = (what) => what.then(({ last_seq }) => last_seq, ({ code }) => code);
      const records = [{ data: 1 }];
      say(["settled", await Promise.all([
        { records }, { records: [] }, { records: [{ tag: 1 }] }, { records, topic: "no name!" },
        { records: [{ data: "x".repeat(17 * 2 ** 20) }] }, { records, topic: undefined },
        { records: [{ data: 10n }] }, { records },
      ].map((message) => show(running.send(message))))]);
      say(["pending", running.pending]);
    """
    running = run(program, url=url_of(unguarded), topic=name)
    events = running.wait(lambda events: bool(of(events, "pending")))
    invalid = "invalid_request"
    assert of(events, "settled") == [
        [1, invalid, invalid, invalid, "payload_too_large", invalid, None, 2]
    ]
    assert of(events, "pending") == [0]


# A server with prepared replies

Answer = Callable[[ServerConnection, dict[str, Any]], None]


class Sockets:
    """The messages that the server has received, by connection."""

    def __init__(self) -> None:
        self.received: list[list[dict[str, Any]]] = []
        self.url = ""


@contextmanager
def answering(*answers: Answer) -> Iterator[Sockets]:
    """Run a WebSocket server whose n-th connection handles its messages with ``answers[n]``."""
    sockets, rest = Sockets(), iter(answers)

    def handle(socket: ServerConnection) -> None:
        answer, received = next(rest), list[dict[str, Any]]()
        sockets.received.append(received)
        try:
            for message in socket:
                received.append(json.loads(message))
                answer(socket, received[-1])
        except ConnectionClosed:
            pass

    def allow(_socket: ServerConnection, _request: Request, response: Response) -> None:
        response.headers["Access-Control-Allow-Origin"] = "*"

    with serve(handle, "127.0.0.1", 0, process_response=allow, max_size=None) as server:
        sockets.url = "http://{}:{}".format(*server.socket.getsockname())
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield sockets
        finally:
            server.shutdown()
            thread.join()


def say(socket: ServerConnection, command: dict[str, Any], **members: Any) -> None:
    socket.send(json.dumps({"request_id": command["request_id"], **members}))


def ack(socket: ServerConnection, message: dict[str, Any]) -> None:
    say(socket, message, op="ack", topic="t", last_seq=message["records"][0]["data"], head_seq=9)


def test_unanswered_messages_are_sent_again_with_the_same_keys(run: Run) -> None:
    def first(socket: ServerConnection, message: dict[str, Any]) -> None:
        if message["records"][0]["data"] == 0:
            ack(socket, message)
        elif message["records"][0]["data"] == 2:
            socket.close(1012)

    with answering(first, ack) as sockets:
        running = run(PUBLISH, url=sockets.url, topic="t", count=3)
        events = running.wait(lambda events: len(of(events, "acked")) == 3)
        running.close()
        one, two = sockets.received
        assert one[1:] == two
        assert len({message["idempotency_key"] for message in one}) == 3
    assert [event["state"] for event in of(events, "status")] == ["open", "waiting", "open"]


def test_only_a_throttled_message_is_sent_again(run: Run) -> None:
    refusals = itertools.count()

    def busy(socket: ServerConnection, message: dict[str, Any]) -> None:
        if message["records"][0]["data"] == 1 and next(refusals) < 3:
            detail = {"retry_after_ms": 20}
            say(socket, message, op="error", code="throttled", message="later", detail=detail)
        else:
            ack(socket, message)

    with answering(busy) as sockets:
        running = run(PUBLISH, url=sockets.url, topic="t", count=3)
        events = running.wait(lambda events: len(of(events, "acked")) == 3)
        running.close()
        sent = [message["records"][0]["data"] for message in sockets.received[0]]
    assert (of(events, "acked"), sent) == ([0, 2, 1], [0, 1, 2, 1, 1, 1])


def test_a_message_that_is_too_long_does_not_block_the_others(run: Run) -> None:
    program = """
      const running = publish({ on: { status }, ...options });
      for (const data of ["short", "x".repeat(1000), "short"])
        running.send({ records: [{ data }] })
          .then(() => say(["acked", data]), (error) => say(["refused", error.code]));
    """

    def strict(socket: ServerConnection, message: dict[str, Any]) -> None:
        if len(message["records"][0]["data"]) > 100:
            socket.close(1009)

    with answering(strict, ack) as sockets:
        running = run(program, url=sockets.url, topic="t")
        events = running.wait(lambda events: len(of(events, "acked")) == 2)
        running.close()
    assert of(events, "refused") == ["payload_too_large"]


def test_ready_resolves_when_fewer_messages_than_max_pending_are_unacknowledged(run: Run) -> None:
    program = """
      const running = publish({ on: { status }, ...options, max_pending: 2 });
      const sent = [0, 1, 2].map((data) => running.send({ records: [{ data }] }));
      sent.forEach((each) => each.catch((error) => say(["refused", error.code])));
      let isReady = false;
      const ready = running.ready.then(() => { isReady = true; });
      await sent[2].catch(() => {});
      say(["pending", [running.pending, isReady]]);
      await ready;
      say(["ready", running.pending]);
      await running.send({ records: [{ data: 3 }] });
      running.close();
      await running.send({ records: [] }).catch((error) => say(["refused", error.code]));
      await running.ready;
      say(["closed", running.pending]);
    """
    held: list[Callable[[], None]] = []

    def slow(socket: ServerConnection, message: dict[str, Any]) -> None:
        held.append(lambda: ack(socket, message))
        if len(held) > 1:
            for each in held:
                each()

    with answering(slow) as sockets:
        running = run(program, url=sockets.url, topic="t")
        events = running.wait(lambda events: bool(of(events, "closed")))
    assert of(events, "refused") == ["too_many_pending", "closed"]
    assert (of(events, "pending"), of(events, "closed")) == ([[2, False]], [0])
    assert of(events, "ready")[0] < 2


def test_a_socket_without_replies_is_reopened(run: Run) -> None:
    """The program shortens 30 s to 300 ms."""
    short_timeout = """
      const { setTimeout: wait } = globalThis;
      globalThis.setTimeout = (act, ms) => wait(act, ms / 100);
    """

    def silent(_socket: ServerConnection, _message: dict[str, Any]) -> None:
        pass

    with answering(silent, ack) as sockets:
        running = run(short_timeout + PUBLISH, url=sockets.url, topic="t", count=1)
        running.wait(lambda events: of(events, "acked") == [0])
        running.close()


def test_a_removed_key_ends_the_publisher_and_rejects_pending_messages(run: Run) -> None:
    def removed(socket: ServerConnection, _message: dict[str, Any]) -> None:
        failure = {"op": "error", "request_id": None, "code": "unauthorized", "message": "gone"}
        socket.send(json.dumps(failure))
        socket.close(1008)

    with answering(removed) as sockets:
        running = run(PUBLISH, url=sockets.url, topic="t", count=1)
        events = running.wait(lambda events: bool(of(events, "refused")))
    assert of(events, "refused") == ["unauthorized"]
    states = [(event["state"], event.get("status")) for event in of(events, "status")]
    assert states == [("open", None), ("closed", 401)]


def test_the_cause_of_a_refused_handshake_is_found_by_a_plain_request(run: Run) -> None:
    def refuse(socket: ServerConnection, _request: Request) -> Response:
        response = socket.respond(HTTPStatus.FORBIDDEN, "not from here")
        response.headers["Access-Control-Allow-Origin"] = "*"
        return response

    with serve(lambda _: None, "127.0.0.1", 0, process_request=refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = "http://{}:{}".format(*server.socket.getsockname())
        running = run(PUBLISH, url=url, topic="t", count=1)
        events = running.wait(lambda events: bool(of(events, "refused")))
        server.shutdown()
        thread.join()
    assert of(events, "status") == [{"state": "closed", "status": 403, "code": "http_403"}]
