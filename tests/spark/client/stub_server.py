"""A small topics server for tests of clients: PUT, GET and POST of a topic, keys, and faults.

It implements the rules of the API that a batch writer depends on (§1, §2, §0.8): strict JSON,
atomic batches, contiguous seqs, the first response again for a known key, ``create:false``.
``faults`` are the faults of the next appends, one each, in order; None is no fault.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Fault:
    """``status`` refuses the request, ``cut`` resets the connection within the response, ``drop``
    before it. ``commit`` appends first.
    """

    status: int = 0
    code: str = ""
    retry_after: str | None = None
    cut: bool = False
    drop: bool = False
    commit: bool = False
    detail: dict[str, Any] | None = None


@dataclass
class StubTopic:
    """A topic's records in order, and the response for each key."""

    config: dict[str, Any]
    epoch: int
    records: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def state(self, name: str) -> dict[str, Any]:
        """Return the part of a topic's state that a producer reads."""
        return {
            "topic": name,
            "type": self.config.get("type", "log"),
            "head_seq": len(self.records),
            "next_seq": len(self.records) + 1,
            "earliest_seq": 1,
            "count": len(self.records),
            "bytes": 0,
            "epoch": self.epoch,
            "effective_priority": 0,
            "config": self.config,
        }

    def append(self, name: str, records: list[dict[str, Any]], key: str | None) -> dict[str, Any]:
        """Append once for each key."""
        if key is not None and key in self.answers:
            return {**self.answers[key], "deduped": True}
        first = len(self.records) + 1
        self.records.extend(records)
        head = len(self.records)
        answer = {
            "topic": name,
            "first_seq": first,
            "last_seq": head,
            "head_seq": head,
            "count": len(records),
        }
        answer |= {"created": False, "deduped": False, "performance": {"server_total_ms": 0.1}}
        if key is not None:
            self.answers[key] = answer
        return answer


class StubServer:
    """A server that runs in a thread while the block runs.

    ``seen`` lists (method, path with query, status; 0 for a broken connection). ``peers`` are the
    client's addresses of these requests.
    """

    def __init__(self) -> None:
        self.topics: dict[str, StubTopic] = {}
        self.faults: deque[Fault | None] = deque()
        self.seen: list[tuple[str, str, int]] = []
        self.peers: list[tuple[str, int]] = []
        self.headers: list[dict[str, str]] = []
        self.epoch = 0
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"stub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> StubServer:
        self._thread.start()
        return self

    def __exit__(self, *_failure: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def make(self, name: str, **config: Any) -> StubTopic:
        """Create a topic with the default config."""
        self.epoch += 1
        topic = StubTopic(
            {"idempotency_window_ms": 120_000, "durability": "disk", **config}, self.epoch
        )
        self.topics[name] = topic
        return topic

    def statuses(self, method: str) -> list[int]:
        """Return the status of all responses to ``method``."""
        return [status for seen, _, status in self.seen if seen == method]


class _Handler(BaseHTTPRequestHandler):
    stub: ClassVar[StubServer]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        if self.path == "/v0/ready":
            self._answer(200, {"ready": True})
            return
        with self.stub.lock:
            topic = self.stub.topics.get(self._name())
            state = topic.state(self._name()) if topic else None
        if state is None:
            self._refuse(404, "topic_not_found")
        else:
            self._answer(200, state)

    def do_PUT(self) -> None:
        config = self._body()
        if config.get("ttl_ms", 0) < 0:
            self._refuse(400, "invalid_request")
            return
        with self.stub.lock:
            created = self._name() not in self.stub.topics
            topic = self.stub.make(self._name()) if created else self.stub.topics[self._name()]
            topic.config |= config
        self._answer(
            201 if created else 200,
            {"topic": self._name(), "created": created, "config": topic.config},
        )

    def _diff(self, request: dict[str, Any]) -> None:
        name = self._name().removesuffix("/diff")
        with self.stub.lock:
            topic, after = self.stub.topics[name], request["from_seq"]
            records = [
                {"$seq": seq, "$ts": seq, "data": record["data"], "$tag": record.get("tag")}
                for seq, record in enumerate(topic.records, 1)
                if after < seq <= after + request["limit"]
            ]
            end, head = after + len(records), len(topic.records)
            page = {"records": records, "next_from_seq": end, "head_seq": head, "earliest_seq": 1}
            page |= {"caught_up": end >= head, "epoch": topic.epoch, "tombstone": None}
        self._answer(200, page)

    def do_POST(self) -> None:
        body = self._body()
        if self.path.endswith("/diff"):
            self._diff(body)
            return
        with self.stub.lock:
            fault = self.stub.faults.popleft() if self.stub.faults else None
            topic = self.stub.topics.get(self._name())
            answer = None
            empty = not body["records"]
            if topic is not None and not empty and (fault is None or fault.commit):
                answer = topic.append(
                    self._name(), body["records"], self.headers.get("Idempotency-Key")
                )
        if fault is not None and (fault.cut or fault.drop):
            self._break(answer or {}, send_half=fault.cut)
        elif fault is not None and fault.status:
            self._refuse(fault.status, fault.code, fault.retry_after, fault.detail)
        elif empty:
            self._refuse(400, "invalid_request")
        elif answer is None:
            self._refuse(404, "topic_not_found")
        else:
            self._answer(200, answer)

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path.removeprefix("/v0/topics/"))

    def _body(self) -> Any:
        assert self.headers["Content-Type"] == "application/json", (
            "§0.3: required on every POST and PUT"
        )
        raw = self.rfile.read(int(self.headers["Content-Length"]))

        def refuse(constant: str) -> Any:
            raise ValueError(f"{constant} is not JSON")

        return json.loads(raw.decode("utf-8"), parse_constant=refuse)

    def _refuse(
        self,
        status: int,
        code: str,
        retry_after: str | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        error = {"code": code, "message": f"refused with\n{code}", "detail": detail or {}}
        self._answer(status, {"error": error}, retry_after)

    def _answer(self, status: int, value: dict[str, Any], retry_after: str | None = None) -> None:
        body = json.dumps(value).encode()
        self._note(status)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(body)

    def _break(self, value: dict[str, Any], *, send_half: bool) -> None:
        body = json.dumps(value).encode()
        self._note(0)
        if send_half:
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % (len(body) + 10)
            )
            self.wfile.write(body)
        self.wfile.flush()
        # With linger 0 the unread data is lost, as if a process or a firewall stopped.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _note(self, status: int) -> None:
        with self.stub.lock:
            self.stub.seen.append((self.command, self.path, status))
            self.stub.peers.append(self.client_address)
            self.stub.headers.append(dict(self.headers.items()))
