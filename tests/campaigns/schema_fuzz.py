"""Fuzzing by schema: valid requests to every route, and mutations of them with one to three
changes.

Runs as a program: ``python -m tests.campaigns.schema_fuzz --seconds 600 --seed 1``. `schemas` makes
the requests and `schema_mutations` mutates two of three. The seed determines the requests of each
worker. Their responses also depend on the other workers, which use the same topics and routers.

These conditions must hold:

- a valid request gets a status that is documented for its route, and a success has all its members
- every other response has the envelope and a code that belongs to its status, and is never a 500
- every response is documented in openapi.json
- 429 and 503 specify when to retry; every response arrives within 15 s, unless it may wait
- a WebSocket stays open for any text, and responds with known frames and codes
- no process dies or grows without bound, and the log contains no error
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaigns import fuzz_support
from tests.campaigns.fuzz_support import END_S, SHOWN_BYTES, Worker, check_envelope
from tests.campaigns.hostile import MIB, Memory, watched
from tests.campaigns.killer import Summary, program
from tests.campaigns.schema_mutations import bytes_of, corrupted_value, mutate, text_of
from tests.campaigns.schemas import Request, command, valid_request
from tests.specs.judge import Specifications
from tests.support.api import REQUEST_LINE, Answer, Api, Wire, ok
from tests.support.server import Server
from tests.support.sse import Decoder, Unchunk
from tests.support.ws import PING, PONG, TEXT, Socket

SPECIFICATIONS = Specifications()
HTTP_WORKERS, SOCKET_WORKERS = 4, 2
VALID_SHARE = 0.35
WAIT_S, STREAM_S = 0.5, 0.05
SOCKET_COMMANDS = 40  # per socket
SLOWEST_MAX = 5
SAMPLE_S = 0.5
TOKEN = "fuzz-key"
GROWTH, GROWTH_BYTES = 1.5, 64 * MIB  # after the first quarter of the time
CAPS = {"max_topics": 60, "max_routers": 16, "max_watch_sessions": 300, "max_sse_connections": 40}

CODES: dict[int, set[str]] = {
    400: {"invalid_request", "batch_too_large", "record_too_large"},
    401: {"unauthorized"},
    403: {"forbidden"},
    404: {"not_found", "topic_not_found", "router_not_found"},
    405: {"method_not_allowed"},
    406: {"not_acceptable"},
    409: {"router_cycle", "topic_exists_incompatible", "topic_not_empty", "not_a_queue"},
    413: {"payload_too_large"},
    415: {"unsupported_media_type"},
    422: {"topic_full"},
    426: {"upgrade_required"},
    429: {"throttled"},
    503: {"not_ready"},
}
FRAMES = {
    *("subscribed", "unsubscribed", "record", "caught_up", "tombstone", "topic_deleted"),
    *("ack", "pong", "error"),
}
FRAME_CODES = {code for status, codes in CODES.items() if status != 426 for code in codes}
VALID_FRAME_CODES = {"topic_not_found", "topic_full", "throttled"}
DELAYS = (b'"delay_ms"', b'"deliver_at"')  # a log has no delays: 400


@dataclass
class Findings(fuzz_support.Findings):
    """``slowest``: the duration in seconds, and its request."""

    valid: int = 0
    slowest: list[tuple[float, str]] = field(default_factory=list)

    def took(self, seconds: float, what: bytes) -> None:
        """Record the duration of one response, or of one pong after a command."""
        if len(self.slowest) < SLOWEST_MAX or seconds > self.slowest[-1][0]:
            shown = f"{len(what)} bytes: {what[:SHOWN_BYTES]!r}"
            self.slowest = sorted([*self.slowest, (seconds, shown)], reverse=True)[:SLOWEST_MAX]

    def add(self, other: Findings) -> None:
        super().add(other)
        self.valid += other.valid
        self.slowest = sorted(self.slowest + other.slowest, reverse=True)[:SLOWEST_MAX]


class HttpWorker(Worker[Findings]):
    """Sends requests on one connection, which is kept alive while the server permits it."""

    _wire: Wire | None = None

    def send_case(self) -> None:
        request = valid_request(self.source)
        if self.source.random() > VALID_SHARE:
            mutate(self.source, request)
        else:
            self.findings.valid += 1
        content = bytes_of(request, TOKEN)
        try:
            began = time.monotonic()
            answer = self._exchange(request, content)
            if not request.row.waits:
                self.findings.took(time.monotonic() - began, content)
            self._check(request, content, answer)
        except TimeoutError:
            self._close()
            self._tell(request, "left")
            if not request.row.waits:
                self.problem(f"no response within {END_S} s: {content[:SHOWN_BYTES]!r}")
        except (AssertionError, OSError, EOFError, ValueError, KeyError) as error:
            self._close()
            self.problem(f"{type(error).__name__}: {error}\n  {content[:SHOWN_BYTES]!r}")

    def _exchange(self, request: Request, content: bytes) -> Answer:
        wire = self._wire = self._wire or Wire(self.address)
        wire.socket.settimeout(WAIT_S if request.row.waits else END_S)
        with suppress(ConnectionError):  # refused before it was sent completely
            wire.send(content)
        status, fields = wire.head()
        while status == 100:
            status, fields = wire.head()
        if fields.get("content-type", "").startswith("text/event-stream") and status == 200:
            return self._stream(wire, fields)
        is_empty = request.method == "HEAD" or status == 204
        body = b"" if is_empty else wire._take(int(fields["content-length"]))
        if fields.get("connection", "").lower() == "close":
            self._close()
        return Answer(status, fields, body)

    def _stream(self, wire: Wire, fields: dict[str, str]) -> Answer:
        """Read a stream for a moment. Every event must be well-formed."""
        until, decoder, unchunk = time.monotonic() + STREAM_S, Decoder(), Unchunk()
        wire.socket.settimeout(STREAM_S)
        try:
            while time.monotonic() < until and wire._receive():
                for event in decoder.feed(unchunk.feed(bytes(wire._buffer))):
                    if event.data is not None:
                        event.json()
                wire._buffer.clear()
        except TimeoutError:
            pass
        self._close()
        return Answer(200, fields, b"")

    def _close(self) -> None:
        if self._wire is not None:
            self._wire.socket.close()
        self._wire = None

    def _tell(self, request: Request, outcome: object) -> None:
        kind = "spoiled" if request.spoiled else "valid"
        self.findings.outcomes[f"{request.row.name} {kind} {outcome}"] += 1

    def _check(self, request: Request, content: bytes, answer: Answer) -> None:
        self._tell(request, answer.status)
        if line := REQUEST_LINE.match(content):
            SPECIFICATIONS.answered(line[1].decode(), line[2].decode(), answer)
        row, status = request.row, answer.status
        if not request.spoiled:
            valid_statuses = row.valid_statuses | (
                {400} if any(name in content for name in DELAYS) else set()
            )
            assert status in valid_statuses, f"valid, but the response is {answer}"
        if status >= 300 and answer.body:
            check_envelope(answer)
            code = answer.json()["error"]["code"]
            assert code in CODES.get(status, ()), f"{status} with the code {code}"
        if status in (429, 503):
            assert int(answer.headers["retry-after"]) >= 1, answer.headers
        if status in (200, 201) and answer.body and not request.spoiled and row.required_members:
            missing = row.required_members - answer.json().keys()
            assert not missing, f"the response lacks {missing}: {answer}"
        assert status in (200, 201, *CODES) or (status, request.method) == (204, "OPTIONS"), status
        if row.name == "watch" and status == 200 and "wid" in (document := answer.json()):
            self._open(document["stream_url"])

    def _open(self, url: str) -> None:
        """Sometimes open the stream of a session."""
        if self.source.random() < 0.3:
            content = (
                f"GET {url} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            )
            with Wire(self.address, END_S) as wire:
                wire.send(content.encode())
                status, _ = wire.head()
            assert status in (200, 404, 429), f"the stream of a session gets status {status}"
            self.findings.outcomes[f"stream {status}"] += 1


class SocketWorker(Worker[Findings]):
    """Sends commands on a sequence of sockets."""

    _socket: Socket | None = None
    _valid: dict[str, bytes]  # by request_id

    def send_case(self) -> None:
        number = self.findings.sent
        if self._socket is None or number % SOCKET_COMMANDS == 0:
            self._renew()
        assert self._socket is not None
        body = command(self.source, number)
        is_valid = self.source.random() < VALID_SHARE
        text = text_of(body if is_valid else corrupted_value(self.source, body)).encode()
        if is_valid:
            self.findings.valid += 1
            self._valid[f"r{number}"] = text
        try:
            began = time.monotonic()
            self._socket.text(text)
            self._socket.send_command("ping", f"p{number}")
            while (message := self._message(self._socket)).get("request_id") != f"p{number}":
                self._check(message)
            self.findings.took(time.monotonic() - began, text)
        except (AssertionError, OSError, EOFError, ValueError, KeyError) as error:
            self.problem(f"{type(error).__name__}: {error}\n  {text[:SHOWN_BYTES]!r}")
            self._renew()

    def _message(self, socket: Socket) -> dict[str, Any]:
        """Return the next text message. Answer pings."""
        while (frame := socket.receive()).opcode == PING:
            socket.frame(PONG, frame.payload)
        assert frame.opcode == TEXT, f"a text message expected, got {frame}"
        assert frame.fin, "a message of several frames"
        message = json.loads(frame.payload)
        assert isinstance(message, dict), message
        return message

    def _renew(self) -> None:
        if self._socket is not None:
            self._socket.socket.close()
        self._socket, self._valid = Socket(self.address, token=TOKEN, timeout_s=END_S), {}

    def _check(self, message: dict[str, Any]) -> None:
        op = message["op"]
        self.findings.outcomes[f"socket {op} {message.get('code', '')}".rstrip()] += 1
        assert op in FRAMES, message
        if op == "error":
            assert message["code"] in FRAME_CODES, message
            text = self._valid.get(str(message.get("request_id")))
            if text is not None and not any(name in text for name in DELAYS):
                assert message["code"] in VALID_FRAME_CODES, f"{message} to {text[:SHOWN_BYTES]!r}"


def work(address: tuple[str, int], seed: int, seconds: float, rate: float) -> Findings:
    """Run all workers in a separate process."""
    kinds = [HttpWorker] * HTTP_WORKERS + [SocketWorker] * SOCKET_WORKERS
    workers = [
        kind(address, f"worker {number}", random.Random(f"{seed}/{number}"), Findings())
        for number, kind in enumerate(kinds)
    ]
    return fuzz_support.run_workers(workers, seconds, rate, Findings())


@contextmanager
def fuzzed_server(folder: Path) -> Iterator[Server]:
    """Start a server with keys and small caps, and create the dead-letter topics."""
    caps = {name: str(value) for name, value in CAPS.items()}
    with Server(folder, shards=2, api_keys=f"{TOKEN},other:r", **caps) as server:
        with Api(server.address, token=TOKEN) as api:
            for name in ("dead-0", "dead-1"):
                ok(api.put(name, {"cap_records": 1000}), 201)
        yield server


def fuzz(server: Server, *, seed: int, seconds: float, rate: float) -> tuple[Findings, Memory]:
    """Fuzz a running server."""
    with watched(server, SAMPLE_S) as memory:
        findings = fuzz_support.run_in_process(work, server, seed, seconds, rate)
    for role, found in memory.samples.items():
        if found[-1] > found[len(found) // 4] * GROWTH + GROWTH_BYTES:
            findings.problems.append(f"{role} grows: {memory.lines()[role]}")
    with Api(server.address) as api:
        ok(api.call("GET", "/v0/health"))
    return findings, memory


def campaign(data_dir: Path, *, seed: int, seconds: float, rate: float) -> Summary:
    """Run the campaign. ``rate``: requests per second."""
    summary = Summary(seed)
    with fuzzed_server(data_dir) as server:
        findings, memory = fuzz(server, seed=seed, seconds=seconds, rate=rate)
    summary.print_progress("\n".join(f"{role}: {line}" for role, line in memory.lines().items()))
    for took, what in findings.slowest:
        summary.print_progress(f"{took:.2f} s: {what[:300]}")
    summary.counts = findings.outcomes
    summary.counts["requests"], summary.counts["valid"] = findings.sent, findings.valid
    summary.problems = findings.problems
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, seconds=60.0, rate=400.0))
