"""Event streams and WebSockets in Chromium."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import chromium
from tests.support.api import Api, Wire, ok
from tests.support.event_sources import (
    KEY,
    TIMEOUT_S,
    Event,
    at,
    reads_a_backlog_and_live_records,
    records,
    works_on_a_queue,
)
from tests.support.queues import Queue, work_path
from tests.support.server import Server
from tests.support.sse import session
from topics.client import Topics

RESTART_S = 60.0


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    with chromium.opened(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


TAB = """
(() => {
  const kept = ((globalThis.tabs ??= {})[NAME] = []);
  const source = new EventSource(URL);
  for (const name of ["record", "caught-up", "job", "error"])
    source.addEventListener(name, (event) => {
      if (event.data !== undefined)
        kept.push({ event: name, id: event.lastEventId, data: event.data });
    });
})()
"""


class Tab:
    """An EventSource in the open page."""

    def __init__(self, browser: chromium.Chromium, name: str, url: str) -> None:
        self._browser, self._name = browser, name
        script = TAB.replace("NAME", json.dumps(name)).replace("URL", json.dumps(url))
        browser.evaluate(script)

    def wait(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            events: list[Event] = self._browser.evaluate(f"tabs[{json.dumps(self._name)}]")
            if enough(events):
                return events
            assert time.monotonic() < deadline, events
            time.sleep(0.01)


@pytest.mark.slow
def test_chromium_receives_the_events_of_a_watch(
    browser: chromium.Chromium, api: Api, topic: str, url: str
) -> None:
    browser.open(at(api.address, "/v0/health"))
    reads_a_backlog_and_live_records(Tab(browser, "watch", url), api, topic)


@pytest.fixture
def listing(
    tmp_path_factory: pytest.TempPathFactory, server: Server, topic: str
) -> Iterator[Server]:
    """A server with keys that allows the origin of the pages of ``server``."""
    origin = at(server.address, "")
    data_dir = tmp_path_factory.mktemp("listing") / "data"
    with Server(data_dir, cors_origins=origin, api_keys=KEY) as listing:
        with Api(listing.address, token=KEY) as api:
            ok(api.append(topic, "old"), 201)
        yield listing


ACROSS = """
(async () => {
  const headers = { "Content-Type": "application/json", Authorization: "Bearer KEY" };
  const body = JSON.stringify({ records: [{ data: "from a page" }] });
  const response = await fetch(URL, { method: "POST", headers, body });
  const refused = await fetch(URL, { method: "POST", headers: {}, body });
  return {
    status: response.status,
    head_seq: (await response.json()).head_seq,
    has_id: response.headers.has("x-request-id"),
    shows_date: response.headers.has("date"),
    refused: [refused.status, (await refused.json()).error.code],
  };
})().catch((failure) => ({ failed: failure.name }))
"""


@pytest.mark.slow
def test_a_page_of_a_listed_origin_can_write_read_and_watch(
    browser: chromium.Chromium, server: Server, listing: Server, topic: str
) -> None:
    browser.open(at(server.address, "/v0/health"))
    url = json.dumps(at(listing.address, f"/v0/topics/{topic}"))
    script = ACROSS.replace("URL", url).replace("KEY", KEY)
    assert browser.evaluate(script) == {
        "status": 200,
        "head_seq": 2,
        "has_id": True,
        "shows_date": False,
        "refused": [401, "unauthorized"],
    }
    with Api(listing.address, token=KEY) as api:
        path = session(api, [topic])["stream_url"]
        tab = Tab(browser, "watch", at(listing.address, f"{path}?token={KEY}"))
        assert records(tab.wait(lambda events: len(records(events)) == 2))[0] == "old"


@pytest.mark.slow
def test_chromium_can_open_a_work_stream_with_a_key_in_the_query(
    browser: chromium.Chromium, guarded_queue: Queue
) -> None:
    browser.open(at(guarded_queue.api.address, "/v0/health"))
    url = work_path(guarded_queue.name, node="w", max=2, token=KEY)
    works_on_a_queue(Tab(browser, "work", url), guarded_queue)


FOLLOW = """
globalThis.seen = [];
globalThis.source = new EventSource("/v0/watch?topic=orders");
source.addEventListener("record", (event) => {
  for (const record of JSON.parse(event.data).records) seen.push(record.data);
});
null
"""


HALF_A_REQUEST = (
    b"POST /v0/topics/others HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{"
)


@pytest.mark.slow
def test_an_eventsource_on_one_request_sees_every_record_once_over_restarts_and_kills(
    browser: chromium.Chromium, tmp_path: Path
) -> None:
    """An incomplete request prolongs the stops: the page reconnects before the server ends."""
    is_over = threading.Event()
    with Server(tmp_path / "data", drain_ms=4000) as server:
        server.env["TOPICS_PORT"] = str(server.port)
        with Topics(at(server.address, "")) as client:
            client.topic("orders").put(durability="fsync")
            client.topic("orders").append(*range(100))
        sent = [*range(100)]

        def produce() -> None:
            with Topics(at(server.address, "")) as client:
                while not is_over.is_set():
                    client.topic("orders").append(len(sent))
                    sent.append(len(sent))

        browser.open(at(server.address, "/v0/health"))
        browser.evaluate(FOLLOW)
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            for end in ("stop", "kill", "stop", "kill"):
                wait_for(browser, f"seen.length >= {len(sent) + 2}")  # one may be unacknowledged
                with Wire(server.address) as wire:
                    wire.send(HALF_A_REQUEST)
                    server.restart(end)
        finally:
            is_over.set()
            producer.join(60)
        with Topics(at(server.address, "")) as client:
            client.topic("orders").append("last")
        wait_for(browser, 'seen.at(-1) === "last"')
        assert browser.evaluate("seen") == [*sent, "last"]


def wait_for(browser: chromium.Chromium, condition: str) -> None:
    deadline = time.monotonic() + RESTART_S
    while not browser.evaluate(condition):
        shown = browser.evaluate("[source.readyState, seen.length, seen.slice(-5)]")
        assert time.monotonic() < deadline, (condition, shown)
        time.sleep(0.02)


SOCKET = """
new Promise((resolve, reject) => {
  const socket = new WebSocket(URL);
  const seen = [];
  const say = (command) => socket.send(JSON.stringify(command));
  socket.onopen = () => say({ op: "subscribe", request_id: "s", topic: TOPIC });
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    seen.push(message);
    if (message.op === "caught_up" && seen.length < 4)
      say({
        op: "publish", request_id: "p", topic: TOPIC,
        records: [{ data: { from: "page", text: "é\u2028" } }],
      });
    const records = seen.filter((one) => one.op === "record");
    if (seen.some((one) => one.op === "ack") && records.length === 2) {
      socket.onclose = (closed) => resolve({ seen, code: closed.code, clean: closed.wasClean });
      socket.close(1000);
    }
  };
  socket.onerror = () => reject(new Error("the socket broke"));
  setTimeout(() => reject(new Error(JSON.stringify(seen))), 15000);
})
"""


@pytest.mark.slow
def test_chromium_can_use_a_websocket(
    browser: chromium.Chromium, server: Server, api: Api, topic: str
) -> None:
    ok(api.append(topic, "old"), 201)
    browser.open(at(server.address, "/v0/health"))
    script = SOCKET.replace("URL", json.dumps(at(server.address, "/v0/ws", "ws"))).replace(
        "TOPIC", json.dumps(topic)
    )
    result = browser.evaluate(script)
    shown = [
        record["data"]
        for message in result["seen"]
        if message["op"] == "record"
        for record in message["records"]
    ]
    assert shown == ["old", {"from": "page", "text": "é\u2028"}]
    assert (result["code"], result["clean"]) == (1000, True)
