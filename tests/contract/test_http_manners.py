"""Conformance to HTTP: httplint, a linter of a third party, checks responses of a real server.

The tests request every row of the route table and every documented error code, with and without
the header fields of a web page that accepts gzip. The linter gets the bytes of the socket
unchanged. New routes are included automatically, with their bodies from `refusal_rows`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio
from httplint import HttpRequestLinter, HttpResponseLinter, levels

from tests.contract import refusal_rows
from tests.specs.described import NARROWED
from tests.support.api import SLACK_S, Api, Wire, reached, request
from tests.support.front import running
from tests.support.server import Server, kill_one
from tests.support.sse import Unchunk
from tests.support.ws import KEY
from topics.front.error_answers import STATUS
from topics.front.route import Route
from topics.front.table import ROUTES, match

pytestmark = pytest.mark.slow

EXCUSED: Final = {"STATUS_BAD_REQUEST": "every 400 has this note, whatever its fields are"}
# Files have an ETag: a cache may store them, but must revalidate them each time.
FILES: Final = ("/console", "/v0/openapi.json", "/v0/asyncapi.json")
# Fields with values that differ between equal requests: times in a body differ in length.
OWN: Final = (b"date", b"x-request-id", b"content-length", b"retry-after")

APP, ADMIN_KEY = "https://app.example", "Authorization: Bearer boss"
EVENTS: Final = b"text/event-stream"
HEADER_SETS: Final = ((ADMIN_KEY,), (ADMIN_KEY, "Accept-Encoding: gzip", f"Origin: {APP}"))
SETTINGS: Final = {"api_keys": "boss,reader:read", "cors_origins": APP, "max_routers": 2}
SHAKE: Final = (
    *("Upgrade: websocket", "Connection: Upgrade"),
    *(f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13"),
)


class RequestCase(NamedTuple):
    """A request. An Authorization field in ``fields`` replaces the key."""

    method: str
    target: str
    body: Any = None
    fields: tuple[str, ...] = ()

    def wire(self, headers: tuple[str, ...], wid: str) -> bytes:
        is_other = any(field.startswith("Authorization") for field in self.fields)
        raw = None if self.body is None else json.dumps(self.body).encode()
        target = self.target.replace(":wid", wid)
        return request(self.method, target, raw, *headers[is_other:], *self.fields)


class Exchange(NamedTuple):
    """A response and the bytes of its request. ``at`` is its time in Unix seconds."""

    case: RequestCase
    wire: bytes
    line: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes
    at: float

    @property
    def status(self) -> int:
        return int(self.line.split(b" ")[1])

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])

    def values(self, name: bytes) -> list[bytes]:
        return [value for found, value in self.fields if found == name]

    def __str__(self) -> str:
        return f"{self.case.method} {self.case.target}: {self.line.decode()}"


BODIES: Final = {
    match(row.method, row.path.encode()).route.name: row.body
    for row in refusal_rows.ROUTES.values()
    if row.method != "WS"
}
RECORDS: Final = {"records": [{"data": "x" * 2000}] * 2}
SETUP: Final = (
    RequestCase("PUT", "/v0/topics/queue", {"type": "queue"}),
    RequestCase("PUT", "/v0/topics/more"),  # a list of four topics is long enough to be compressed
    RequestCase("PUT", "/v0/topics/small", {"cap_records": 1, "discard": "reject"}),
    RequestCase("POST", "/v0/topics/log", RECORDS),
    RequestCase("POST", "/v0/topics/queue", RECORDS),
    RequestCase("PUT", "/v0/routers/log", BODIES["router.put"]),
    RequestCase("PUT", "/v0/routers/a-%3Eb", {"source": "log", "dest": "y"}),
)
REFUSED: Final = {
    "invalid_request": RequestCase("GET", "/v0/topics?page_size=x"),
    "batch_too_large": RequestCase("POST", "/v0/topics/log", {"records": [{"data": 1}] * 10_001}),
    "record_too_large": RequestCase(
        *("POST", "/v0/topics/log"), {"records": [{"data": 1, "meta": {"k": "x" * 17_000}}]}
    ),
    "unauthorized": RequestCase("GET", "/v0/topics", None, ("Authorization: Bearer nobody",)),
    "forbidden": RequestCase("DELETE", "/v0/topics/log", None, ("Authorization: Bearer reader",)),
    "not_found": RequestCase("GET", "/v0/nothing"),
    "topic_not_found": RequestCase("GET", "/v0/topics/none"),
    "router_not_found": RequestCase("GET", "/v0/routers/none"),
    "method_not_allowed": RequestCase("PATCH", "/v0/topics/log"),
    "not_acceptable": RequestCase("GET", "/v0/watch?topic=log", None, ("Accept: text/html",)),
    "topic_exists_incompatible": RequestCase("PUT", "/v0/topics/log", {"type": "queue"}),
    "router_cycle": RequestCase("PUT", "/v0/routers/back", {"source": "x", "dest": "new"}),
    "topic_not_empty": RequestCase("DELETE", "/v0/topics/log?if_empty=true"),
    "not_a_queue": RequestCase("POST", "/v0/topics/log/claim", {"node": "w"}),
    "payload_too_large": RequestCase("POST", "/v0/topics/log/diff", {"unknown": "x" * 200_000}),
    "unsupported_media_type": RequestCase("PUT", "/v0/topics/log", {}, ("Content-Encoding: br",)),
    "topic_full": RequestCase("POST", "/v0/topics/small", RECORDS),
    "upgrade_required": RequestCase("GET", "/v0/ws"),
    "throttled": RequestCase("PUT", "/v0/routers/third", {"source": "log", "dest": "z"}),
}
OTHERS: Final = (
    RequestCase("GET", "/v0/openapi.json", None, ("If-None-Match: *",)),
    RequestCase("OPTIONS", "/v0/topics/log", None, ("Access-Control-Request-Method: PUT",)),
    RequestCase("GET", "/v0/topics", None, ("Connection: close",)),
    RequestCase("GET", "no HTTP"),
)
DELETES: Final = (
    *(
        RequestCase("DELETE", f"/v0/topics/{name}")
        for name in ("log", "queue", "more", "small", "new", "x", "y")
    ),
    *(RequestCase("DELETE", f"/v0/routers/{name}") for name in ("log", "a-%3Eb")),
)
POLL: Final = RequestCase("POST", "/v0/topics/idle/diff", {"wait_ms": 30_000})


def of_routes(*methods: str) -> Iterator[RequestCase]:
    """Yield a request for each route. HEAD is sent to every route with GET, including streams."""
    for method in methods:
        for route in ROUTES:
            if method in (route.method, {"GET": "HEAD"}.get(route.method)):
                fields = SHAKE if route.name == "ws" else ()
                yield RequestCase(method, target_of(route), BODIES.get(route.name), fields)


def target_of(route: Route) -> str:
    """Return the path of a route with its required parameters. ``:wid`` is replaced later."""
    path = route.path_of("queue" if route.name.startswith("queue.") else "log")
    names = [parameter.name for parameter in route.parameters]
    needed = [name for name in names if NARROWED.get((route.name, name), {}).get("required")]
    return "?".join([path, *(f"{name}=log" for name in needed)])


CASES: Final = (
    *SETUP,
    *of_routes("PUT", "POST", "GET", "HEAD"),
    *REFUSED.values(),
    *(case._replace(method="HEAD") for case in REFUSED.values() if case.method == "GET"),
    *OTHERS,
    *of_routes("DELETE"),
    *DELETES,
)


class RawWire(Wire):
    """A connection that returns the bytes of responses unchanged."""

    def read_response(self, case: RequestCase, wire: bytes) -> Exchange:
        """Read the response. Of an endless one, read only the bytes received with its head."""
        line, fields = parsed(self._until(b"\r\n\r\n"))
        at, known = time.time(), dict(fields)
        if known.get(b"content-type", b"").startswith(EVENTS) and case.method == "GET":
            body = Unchunk().feed(self._take(len(self._buffer)))
        elif known.get(b"transfer-encoding") == b"chunked":
            body = self._chunks()
        else:
            has_none = case.method == "HEAD" or b"content-length" not in known
            body = self._take(len(self._buffer) if has_none else int(known[b"content-length"]))
        return Exchange(case, wire, line, fields, body, at)


def parsed(head: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return the first line and the fields in order of arrival."""
    first, *lines = head.split(b"\r\n\r\n")[0].split(b"\r\n")
    pairs = [line.split(b": ", 1) for line in lines]
    return first, [(name, value) for name, value in pairs]


def conversation(folder: Path) -> Iterator[Exchange]:
    """Yield the responses to all requests, then those of long polls that a crash and a stop end."""
    with Server(folder, shards=1, drain_ms=1000, **SETTINGS) as server:
        for headers in HEADER_SETS:
            wid = ""
            for case in CASES:
                with RawWire(server.address) as wire:
                    wire.send(sent := case.wire(headers, wid))
                    exchange = wire.read_response(case, sent)
                yield exchange
                if (case.method, case.target) == ("POST", "/v0/watch"):
                    wid = json.loads(exchange.body)["wid"]
        ends: list[Callable[[], None]] = [
            lambda: kill_one(server.roles()["shard 0"]),
            server.terminate,
        ]
        for end in ends:
            server.wait_ready()
            with Api(server.address, token="boss") as api, RawWire(server.address) as wire:
                api.put("idle")
                wire.send(sent := POLL.wire(HEADER_SETS[0], ""))
                reached(api, "idle")
                end()
                yield wire.read_response(POLL, sent)
        server.wait_stopped()


def head_of(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    """Return the fields in order, without values that differ between equal requests."""
    return [(name, b"" if name in OWN else value) for name, value in exchange.fields]


@pytest.fixture(scope="module")
def exchanges(tmp_path_factory: pytest.TempPathFactory) -> list[Exchange]:
    """All responses of the server."""
    return [*conversation(tmp_path_factory.mktemp("manners"))]


def notes(exchange: Exchange) -> list[str]:
    """Return the linter's findings for a response."""
    line, fields = parsed(exchange.wire)
    method, target, version = line.split(b" ")[0], *line.split(b" ", 1)[1].rsplit(b" ", 1)
    sent, found = HttpRequestLinter(), HttpResponseLinter()
    sent.process_request_topline(method, target, version.removeprefix(b"HTTP/"))
    sent.process_headers(fields)
    found.request = sent
    found.is_head_response = exchange.case.method == "HEAD"
    version, status, phrase = exchange.line.split(b" ", 2)
    found.process_response_topline(version.removeprefix(b"HTTP/"), status, phrase)
    found.process_headers(exchange.fields)
    found.feed_content(exchange.body)
    found.finish_content(complete=True)
    return [
        f"{exchange}: {note.level.value}: {note.summary}"
        for each in found.notes
        for note in (each, *each.subnotes)
        if note.level in (levels.WARN, levels.BAD) and type(note).__name__ not in EXCUSED
    ]


def test_the_linter_finds_no_problem_in_any_response(exchanges: list[Exchange]) -> None:
    assert [note for each in exchanges for note in notes(each)] == []


def test_every_route_and_every_error_code_was_covered(exchanges: list[Exchange]) -> None:
    done = {(each.case.method, each.case.target) for each in exchanges if each.status < 300}
    assert {(method, target_of(route)) for route in ROUTES for method in route.methods} <= done
    codes = {each.code for each in exchanges if each.status >= 400 and each.body}
    assert codes == {kind.code for kind in STATUS} - {"internal"}
    for each in exchanges:
        for code, case in REFUSED.items():
            assert each.case != case or each.code == code, each


def test_every_response_has_a_date_and_forbids_caching(exchanges: list[Exchange]) -> None:
    for each in exchanges:
        (date,) = each.values(b"date")
        at = parsedate_to_datetime(date.decode()).timestamp()
        assert each.at - SLACK_S < at <= each.at, each
        (control,) = each.values(b"cache-control")
        is_kept = each.status in (200, 304) and each.case.target.startswith(FILES)
        assert control.split(b", ")[0] == (b"no-cache" if is_kept else b"no-store"), each


def test_the_location_of_a_201_is_the_created_resource(exchanges: list[Exchange]) -> None:
    created = {each.case.target for each in exchanges if each.status == 201}
    assert created >= {
        "/v0/topics/queue",
        "/v0/topics/log",
        "/v0/routers/log",
        "/v0/routers/a-%3Eb",
    }
    for each in exchanges:
        expected = [each.case.target.encode()] if each.status == 201 else []
        assert each.values(b"location") == expected, each


def test_head_returns_the_fields_of_get(exchanges: list[Exchange]) -> None:
    """For a stream, HEAD gets 405 with the allowed methods."""
    streams = {target_of(route).partition("?")[0] for route in ROUTES if route.streams}
    for start in (0, len(CASES)):
        gets: dict[Any, Exchange] = {}
        for each in exchanges[start : start + len(CASES)]:
            if each.case.method == "GET":
                gets[each.case] = each
            elif each.case.method == "HEAD":
                assert each.body == b"", each
                get = gets[each.case._replace(method="GET")]
                if each.case.target.partition("?")[0] in streams:
                    (allowed,) = each.values(b"allow")
                    assert each.status == 405, each
                    assert {*allowed.split(b", ")} & {b"GET", b"HEAD"} == {b"GET"}, each
                else:
                    assert (each.line, head_of(each)) == (get.line, head_of(get)), each


async def test_the_linter_finds_no_problem_in_the_response_to_a_bug() -> None:
    """No request makes a real server return the code ``internal``, so this test raises an error."""
    case = RequestCase("GET", "/v0/topics/bug")
    wire = case.wire((), "")
    async with running() as run:
        client = await run.connect()
        await client.send(wire)
        with trio.fail_after(SLACK_S):
            answer = await client.stream.receive_some()
    line, fields = parsed(answer)
    body = answer.partition(b"\r\n\r\n")[2]
    exchange = Exchange(case, wire, line, fields, body, time.time())
    assert (exchange.code, exchange.values(b"cache-control")) == ("internal", [b"no-store"])
    assert notes(exchange) == []
