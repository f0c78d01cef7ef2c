"""Streams and sockets with clients that this project did not write: httpx-sse, websockets,
trio-websocket, eventsource, Chromium.

A client that is not on the machine is skipped. Each is first tried on a canned stream, so that a
failure tells whose it is.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import pytest

from tests.contract import chromium
from tests.contract.api import Api, ok
from tests.server import Server
from tests.support.relay import Relay
from tests.support.sse import CAUGHT_UP, RECORD, session

FOLDER = Path(__file__).with_name("live")
TIMEOUT_S = 20.0
KEY = "live-key"
Event = dict[str, str]  # event, id, data
Address = tuple[str, int]


def records(events: list[Event]) -> list[Any]:
    """The data of all records in these events."""
    return [
        record["data"]
        for event in events
        if event["event"] == RECORD
        for record in json.loads(event["data"])["records"]
    ]


class Source(Protocol):
    """A client with a stream open. ``wait`` gives all events since the start, once ``enough`` says
    that they are.
    """

    def wait(self, enough: Callable[[list[Event]], bool]) -> list[Event]: ...


# --- a canned stream, which shows that the clients are driven rightly

CANNED = (
    b"retry: 2000\n\n: hb\n\n"
    b'id: eyJ0IjoyfQ\nevent: record\ndata: {"topic":"t","records":[{"$seq":1,"data":"\xc3\xa9"},\ndata: {"$seq":2,"data":2}]}\n\n'
    b': hb\n\nid: eyJ0IjozfQ\nevent: caught-up\ndata: {"topic":"t","head_seq":2}\n\n'
)


class CannedHandler(BaseHTTPRequestHandler):
    """Any page, and one stream, which stays open until the server goes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        stream = self.path.startswith("/v0/watch/")
        guarded = (
            self.path.endswith("/guarded") and self.headers.get("Authorization") != f"Bearer {KEY}"
        )
        self.send_response(401 if guarded else 200)
        self.send_header(
            "Content-Type", "text/event-stream; charset=utf-8" if stream else "application/json"
        )
        if not stream or guarded:
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            return
        self.close_connection = True
        self.end_headers()
        self.wfile.write(CANNED)
        self.wfile.flush()
        self.server.over.wait(TIMEOUT_S)  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: object) -> None:
        """Tests print nothing."""


@pytest.fixture(scope="module")
def canned() -> Iterator[Address]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), CannedHandler)
    server.over = threading.Event()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield "127.0.0.1", server.server_address[1]
    server.over.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def reads_the_canned_stream(source: Source) -> None:
    events = source.wait(lambda events: len(events) == 2)
    assert [(event["event"], event["id"]) for event in events] == [
        (RECORD, "eyJ0IjoyfQ"),
        (CAUGHT_UP, "eyJ0IjozfQ"),
    ]
    assert records(events) == ["é", 2]


def reads_a_backlog_and_what_comes_live(source: Source, api: Api, topic: str) -> None:
    """The topic holds "old"; the source was opened from its start."""
    source.wait(lambda events: any(event["event"] == CAUGHT_UP for event in events))
    ok(api.append(topic, {"line": "one\ntwo\u2028three"}, "new"))
    events = source.wait(lambda events: len(records(events)) == 3)
    assert records(events) == ["old", {"line": "one\ntwo\u2028three"}, "new"]
    assert [event["event"] for event in events][:2] == [RECORD, CAUGHT_UP]
    assert [event["id"] for event in events if event["event"] == RECORD][-1].rstrip("=")


def comes_back_by_itself(source: Source, api: Api, topic: str, relay: Relay) -> None:
    """A cut loses nothing and repeats nothing, for the client sends the last id that it has seen."""
    source.wait(lambda events: any(event["event"] == CAUGHT_UP for event in events))
    expected: list[Any] = ["old"]
    for number in range(2):
        ok(api.append(topic, f"before cut {number}"))
        expected.append(f"before cut {number}")
        source.wait(lambda events: len(records(events)) >= len(expected))
        relay.cut()
        ok(api.append(topic, f"after cut {number}"))
        expected.append(f"after cut {number}")
        assert (
            records(source.wait(lambda events: len(records(events)) >= len(expected))) == expected
        )


@pytest.fixture
def url(api: Api, topic: str) -> str:
    """The path of a stream of a topic that holds "old"."""
    ok(api.append(topic, "old"), 201)
    return str(session(api, [topic])["stream_url"])


@pytest.fixture
def relay(server: Server) -> Iterator[Relay]:
    with Relay(server.address) as relay:
        yield relay


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("guarded-live") / "data", api_keys=KEY) as server:
        yield server


@pytest.fixture
def guarded_api(guarded: Server) -> Iterator[Api]:
    with Api(guarded.address, token=KEY) as api:
        yield api


def at(address: Address, path: str, scheme: str = "http") -> str:
    return f"{scheme}://{address[0]}:{address[1]}{path}"


# --- httpx-sse


class HttpxSource:
    """httpx-sse reads as it is asked to."""

    def __init__(self, url: str, **headers: str) -> None:
        httpx = pytest.importorskip("httpx", reason="httpx is not installed (the dev extra has it)")
        httpx_sse = pytest.importorskip(
            "httpx_sse", reason="httpx-sse is not installed (the dev extra has it)"
        )
        self._client = httpx.Client(trust_env=False, timeout=TIMEOUT_S, headers=headers)
        self._opening = httpx_sse.connect_sse(self._client, "GET", url)
        self.events: list[Event] = []
        self.retries: list[int] = []

    def __enter__(self) -> Self:
        self.source = self._opening.__enter__()
        self._stream = self.source.iter_sse()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opening.__exit__(kind, error, trace)
        self._client.close()

    def wait(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        while not enough(self.events):
            event = next(self._stream)
            self.retries += [] if event.retry is None else [event.retry]
            if event.data:
                self.events.append({"event": event.event, "id": event.id, "data": event.data})
        return self.events


def test_httpx_reads_a_canned_stream(canned: Address) -> None:
    with HttpxSource(at(canned, "/v0/watch/w")) as source:
        reads_the_canned_stream(source)


def test_httpx_watches(server: Server, api: Api, topic: str, url: str) -> None:
    with HttpxSource(at(server.address, url)) as source:
        reads_a_backlog_and_what_comes_live(source, api, topic)
        assert source.source.response.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_httpx_resumes_from_the_last_id(server: Server, api: Api, topic: str, url: str) -> None:
    with HttpxSource(at(server.address, url)) as source:
        first = source.wait(lambda events: len(events) == 1)[0]
        ok(api.append(topic, "a", "b"))
        source.wait(lambda events: len(records(events)) == 3)
    with HttpxSource(at(server.address, url), **{"Last-Event-ID": first["id"]}) as source:
        assert records(source.wait(lambda events: len(records(events)) >= 2)) == ["a", "b"]


def test_httpx_watches_with_a_key(guarded: Server, guarded_api: Api, topic: str) -> None:
    ok(guarded_api.append(topic, "old"), 201)
    url = session(guarded_api, [topic])["stream_url"]
    with HttpxSource(at(guarded.address, url), Authorization=f"Bearer {KEY}") as source:
        reads_a_backlog_and_what_comes_live(source, guarded_api, topic)


# --- the eventsource package on Node.js


class NodeSource:
    """A Node.js process that prints events; a thread collects them."""

    def __init__(self, url: str, *bearer: str) -> None:
        program = shutil.which("node")
        if program is None:
            pytest.skip("Node.js is not installed")
        if not (FOLDER / "node_modules" / "eventsource").exists():
            pytest.skip(
                f"the npm package eventsource is not installed: npm ci --prefix {FOLDER.relative_to(FOLDER.parents[2])}"
            )
        self._process = subprocess.Popen(
            [program, "eventsource.mjs", url, *bearer],
            cwd=FOLDER,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self.events: list[Event] = []
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        self._thread.join(TIMEOUT_S)

    def wait(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        while not enough(self.events):
            self.events.append(json.loads(self._lines.get(timeout=TIMEOUT_S)))
        return self.events


@pytest.mark.slow
@pytest.mark.parametrize("bearer", [[], [KEY]], ids=["open", "guarded"])
def test_eventsource_reads_a_canned_stream(canned: Address, bearer: list[str]) -> None:
    with NodeSource(
        at(canned, "/v0/watch/guarded" if bearer else "/v0/watch/w"), *bearer
    ) as source:
        reads_the_canned_stream(source)


@pytest.mark.slow
def test_eventsource_watches(server: Server, api: Api, topic: str, url: str) -> None:
    with NodeSource(at(server.address, url)) as source:
        reads_a_backlog_and_what_comes_live(source, api, topic)


@pytest.mark.slow
def test_eventsource_comes_back_by_itself(api: Api, topic: str, url: str, relay: Relay) -> None:
    with NodeSource(at(relay.address, url)) as source:
        comes_back_by_itself(source, api, topic, relay)
    assert relay.connections == 3


@pytest.mark.slow
def test_eventsource_watches_with_a_key(guarded: Server, guarded_api: Api, topic: str) -> None:
    ok(guarded_api.append(topic, "old"), 201)
    with NodeSource(
        at(guarded.address, session(guarded_api, [topic])["stream_url"]), KEY
    ) as source:
        reads_a_backlog_and_what_comes_live(source, guarded_api, topic)


# --- Chromium

SETUP = """
globalThis.seen = [];
globalThis.collect = (event, id, data) => { seen.push({ event, id, data }); };
globalThis.listen = (url) => {
  globalThis.source = new EventSource(url);
  for (const name of ["message", "record", "tombstone", "caught-up", "topic-deleted", "error"])
    source.addEventListener(name, (event) => { if (event.data !== undefined) collect(name, event.lastEventId, event.data); });
};
globalThis.stream = async (url, bearer) => {
  const answer = await fetch(url, { headers: { Accept: "text/event-stream", Authorization: `Bearer ${bearer}` } });
  if (answer.status !== 200) throw new Error(`status ${answer.status}`);
  let text = "";
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    const frames = text.split("\\n\\n");
    text = frames.pop();
    for (const frame of frames) {
      const field = (name) => frame.split("\\n").filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2));
      if (field("data").length) collect(field("event")[0], field("id")[0], field("data").join("\\n"));
    }
  }
};
globalThis.more = (known) => new Promise((resolve) => {
  const end = Date.now() + 15000;
  const look = () => seen.length > known || Date.now() > end ? resolve(seen) : setTimeout(look, 5);
  look();
});
null
"""


class PageSource:
    """Events that a page has collected. ``start`` is the call that opens the stream."""

    def __init__(self, browser: chromium.Chromium, address: Address, start: str) -> None:
        self._browser = browser
        browser.open(at(address, "/v0/health"))
        browser.evaluate(SETUP)
        browser.evaluate(f"{start}, null")

    def wait(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        events: list[Event] = self._browser.evaluate("seen")
        while not enough(events):
            known = len(events)
            events = self._browser.evaluate(f"more({known})")
            assert len(events) > known, f"no more events come after {events}"
        return events


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    program = chromium.found()
    if program is None:
        pytest.skip("Chromium is not installed")
    pytest.importorskip("websockets", reason="websockets is not installed (the dev extra has it)")
    with chromium.Chromium(program, tmp_path_factory.mktemp("chromium")) as browser:
        yield browser
        browser.open("about:blank")


def listening(url: str) -> str:
    return f"listen({json.dumps(url)})"


def streaming(url: str, key: str) -> str:
    return f"void stream({json.dumps(url)}, {json.dumps(key)})"


@pytest.mark.slow
def test_chromium_reads_a_canned_stream(browser: chromium.Chromium, canned: Address) -> None:
    reads_the_canned_stream(PageSource(browser, canned, listening("/v0/watch/w")))
    reads_the_canned_stream(PageSource(browser, canned, streaming("/v0/watch/guarded", KEY)))


@pytest.mark.slow
def test_chromium_watches(
    browser: chromium.Chromium, server: Server, api: Api, topic: str, url: str
) -> None:
    reads_a_backlog_and_what_comes_live(
        PageSource(browser, server.address, listening(url)), api, topic
    )


@pytest.mark.slow
def test_chromium_comes_back_by_itself(
    browser: chromium.Chromium, api: Api, topic: str, url: str, relay: Relay
) -> None:
    comes_back_by_itself(PageSource(browser, relay.address, listening(url)), api, topic, relay)


@pytest.mark.slow
def test_chromium_watches_with_a_key_in_the_header(
    browser: chromium.Chromium, guarded: Server, guarded_api: Api, topic: str
) -> None:
    ok(guarded_api.append(topic, "old"), 201)
    url = session(guarded_api, [topic])["stream_url"]
    reads_a_backlog_and_what_comes_live(
        PageSource(browser, guarded.address, streaming(url, KEY)), guarded_api, topic
    )


@pytest.mark.slow
def test_chromium_watches_with_a_key_in_the_query(
    browser: chromium.Chromium, guarded: Server, guarded_api: Api, topic: str
) -> None:
    ok(guarded_api.append(topic, "old"), 201)
    url = session(guarded_api, [topic])["stream_url"]
    source = PageSource(browser, guarded.address, listening(f"{url}?token={KEY}"))
    reads_a_backlog_and_what_comes_live(source, guarded_api, topic)


@pytest.mark.slow
def test_chromium_makes_its_own_session(
    browser: chromium.Chromium, server: Server, api: Api, topic: str
) -> None:
    ok(api.append(topic, "old"), 201)
    body = json.dumps({"topics": {topic: {}}})
    post = f'{{ method: "POST", headers: {{ "Content-Type": "application/json" }}, body: {json.dumps(body)} }}'
    start = f'fetch("/v0/watch", {post}).then((answer) => answer.json()).then((made) => listen(made.stream_url))'
    reads_a_backlog_and_what_comes_live(
        PageSource(browser, server.address, f"void {start}"), api, topic
    )


@pytest.mark.slow
def test_chromium_closes_a_stream_and_opens_it_again(
    browser: chromium.Chromium, server: Server, api: Api, topic: str, url: str
) -> None:
    source = PageSource(browser, server.address, listening(url))
    source.wait(lambda events: len(events) >= 2)
    browser.evaluate("source.close()")
    again = PageSource(browser, server.address, listening(url))
    again.wait(lambda events: any(event["event"] == CAUGHT_UP for event in events))
    ok(api.append(topic, "later"))
    assert records(again.wait(lambda events: len(records(events)) == 1)) == ["later"]


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
      say({ op: "publish", request_id: "p", topic: TOPIC, records: [{ data: { from: "page", text: "é\u2028" } }] });
    if (seen.some((one) => one.op === "ack") && seen.filter((one) => one.op === "record").length === 2) {
      socket.onclose = (closed) => resolve({ seen, code: closed.code, clean: closed.wasClean });
      socket.close(1000);
    }
  };
  socket.onerror = () => reject(new Error("the socket broke"));
  setTimeout(() => reject(new Error(JSON.stringify(seen))), 15000);
})
"""


@pytest.mark.slow
def test_chromium_speaks_websocket(
    browser: chromium.Chromium, server: Server, api: Api, topic: str
) -> None:
    ok(api.append(topic, "old"), 201)
    browser.open(at(server.address, "/v0/health"))
    script = SOCKET.replace("URL", json.dumps(at(server.address, "/v0/ws", "ws"))).replace(
        "TOPIC", json.dumps(topic)
    )
    told = browser.evaluate(script)
    shown = [
        record["data"]
        for message in told["seen"]
        if message["op"] == "record"
        for record in message["records"]
    ]
    assert shown == ["old", {"from": "page", "text": "é\u2028"}]
    assert (told["code"], told["clean"]) == (1000, True)


# --- websockets, trio-websocket


def talk(say: Callable[[dict[str, Any]], None], hear: Callable[[], Any], topic: str) -> None:
    """Subscribe, publish, hear it, make a mistake, go on."""
    say({"op": "subscribe", "request_id": "s", "topic": topic})
    assert hear()["op"] == "subscribed"
    assert [record["data"] for record in hear()["records"]] == ["old"]
    assert hear()["op"] == "caught_up"
    say({"op": "publish", "request_id": "p", "topic": topic, "records": [{"data": "x" * 100_000}]})
    waiting = {"ack", "record"}
    while waiting:
        waiting.discard(hear()["op"])
    say({"op": "nope", "request_id": "e"})
    assert hear_past_caught_up(hear)["op"] == "error"
    say({"op": "ping", "request_id": "g"})
    assert hear()["op"] == "pong"


def hear_past_caught_up(hear: Callable[[], Any]) -> Any:
    while (message := hear())["op"] == "caught_up":
        pass
    return message


@pytest.mark.parametrize("compression", ["deflate", None])
def test_websockets_talks(server: Server, api: Api, topic: str, compression: str | None) -> None:
    client = pytest.importorskip(
        "websockets.sync.client", reason="websockets is not installed (the dev extra has it)"
    )
    ok(api.append(topic, "old"), 201)
    with client.connect(
        at(server.address, "/v0/ws", "ws"), proxy=None, compression=compression
    ) as socket:
        talk(
            lambda command: socket.send(json.dumps(command)),
            lambda: json.loads(socket.recv(timeout=TIMEOUT_S)),
            topic,
        )
        socket.ping().wait(TIMEOUT_S)
        socket.close()
        assert socket.close_code == 1000


@pytest.mark.slow
def test_websockets_takes_the_longest_record_once_its_bound_is_lifted(
    server: Server,
    api: Api,
    topic: str,
) -> None:
    client = pytest.importorskip("websockets.sync.client", reason="the dev extra has it")
    exceptions = pytest.importorskip("websockets.exceptions", reason="the dev extra has it")
    longest = "x" * (2**20 - 2)  # with its quotes 1 MiB
    ok(api.append(topic, longest), 201)
    ask = json.dumps({"op": "subscribe", "topic": topic, "from_seq": 0})
    address = at(server.address, "/v0/ws", "ws")
    with client.connect(address, proxy=None, max_size=None) as socket:
        socket.send(ask)
        assert json.loads(socket.recv(10))["op"] == "subscribed"
        assert json.loads(socket.recv(10))["records"][0]["data"] == longest
    with client.connect(address, proxy=None) as socket:
        socket.send(ask)
        with pytest.raises(exceptions.ConnectionClosedError):
            list(socket)


def test_websockets_talks_with_a_key(guarded: Server, guarded_api: Api, topic: str) -> None:
    client = pytest.importorskip(
        "websockets.sync.client", reason="websockets is not installed (the dev extra has it)"
    )
    exceptions = pytest.importorskip(
        "websockets.exceptions", reason="websockets is not installed (the dev extra has it)"
    )
    ok(guarded_api.append(topic, "old"), 201)
    url = at(guarded.address, "/v0/ws", "ws")
    with client.connect(
        url, proxy=None, additional_headers={"Authorization": f"Bearer {KEY}"}
    ) as socket:
        talk(
            lambda command: socket.send(json.dumps(command)),
            lambda: json.loads(socket.recv(timeout=TIMEOUT_S)),
            topic,
        )
    with pytest.raises(exceptions.InvalidStatus) as refused, client.connect(url, proxy=None):
        pass
    assert refused.value.response.status_code == 401


async def test_trio_websocket_talks(server: Server, api: Api, topic: str) -> None:
    trio_websocket = pytest.importorskip(
        "trio_websocket", reason="trio-websocket is not installed (the dev extra has it)"
    )
    ok(api.append(topic, "old"), 201)
    async with trio_websocket.open_websocket_url(at(server.address, "/v0/ws", "ws")) as socket:
        for command in (
            {"op": "subscribe", "request_id": "s", "topic": topic},
            {"op": "ping", "request_id": "g"},
        ):
            await socket.send_message(json.dumps(command))
        waiting = {"subscribed", "record", "caught_up", "pong"}
        while waiting:
            waiting.remove(json.loads(await socket.get_message())["op"])
        await socket.ping(b"frame")
    assert socket.closed.code == 1000
