"""NATS JetStream: one file stream, acknowledged publishes, direct gets and push consumers.

A batch is several publishes in one write. The server acknowledges each of them separately.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from tests.bench.peers.load import MARK, RECORD, Client, Connection, Stream, Subscriber, repeated
from tests.bench.peers.replies import Marks, Reply
from tests.bench.peers.system import NAME, Peer, find, version_of

HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
ERROR, PONG = b"-ERR", b"PONG\r\n"
END_OF_BATCH = b"NATS/1.0 204"


def publish(subject: str, reply_to: str, payload: bytes) -> bytes:
    """Return the bytes of a PUB message."""
    return f"PUB {subject} {reply_to} {len(payload)}\r\n".encode() + payload + b"\r\n"


class Messages:
    """A reply of ``count`` complete messages."""

    def __init__(self, count: int) -> None:
        self.body, self._data, self._count, self._seen, self._at = b"", b"", count, 0, 0

    def feed(self, data: bytes) -> bool:
        """As `Reply.feed`."""
        self._data += data
        while (line := self._data.find(b"\r\n", self._at)) >= 0:
            words = self._data[self._at : line].split()
            assert words[0] != b"-ERR", self._data[self._at : line]
            is_message = words[0] in (b"MSG", b"HMSG")
            end = line + 2 + (int(words[-1]) + 2 if is_message else 0)
            if len(self._data) < end:
                return False
            self._seen, self._at = self._seen + is_message, end
            if is_message:
                self.body = self._data[line + 2 : end - 2]
        if self._seen < self._count:
            return False
        self._data, self._seen, self._at = b"", 0, 0
        return True


class Batch:
    """The messages of one direct get, up to the status that ends them."""

    def __init__(self) -> None:
        self.body, self._data = b"", b""

    def feed(self, data: bytes) -> bool:
        """As `Reply.feed`."""
        self._data += data
        at = self._data.rfind(END_OF_BATCH)
        if at < 0 or self._data.find(b"\r\n\r\n\r\n", at) < 0:
            return False
        self.body, self._data = self._data, b""
        return True


class Nats(Peer):
    """A stream that is synced at each write, or every two minutes."""

    name = "nats"
    groups = frozenset({"append", "read", "live"})
    _inboxes = itertools.count(1)

    @classmethod
    def version(cls) -> str:
        return version_of("nats-server", "--version")

    def launch(self, durability: str) -> None:
        sync = "always" if durability == "fsync" else "2m"
        path = self.data / "conf"
        path.write_text(
            f"listen: 127.0.0.1:{self.address[1]}\nmax_payload: 8MB\nmax_pending: 256MB\n"
            f'jetstream {{ store_dir: "{self.data}", max_mem: 1G, max_file: 100G,'
            f" sync_interval: {sync} }}\n"
        )
        command = find("nats-server"), "-c", str(path)
        self.programs.start("nats", *command, port=self.address[1], cwd=self.data)

    def connect(self) -> Connection:
        connection = Connection(self.address, Marks(PONG, bad=ERROR))
        connection.call(HELLO + b"PING\r\n")
        return connection

    def api(self, subject: str, params: object) -> Any:
        """Call the JetStream API and return its reply."""
        payload = json.dumps(params).encode()
        request = b"SUB api 1\r\n" + publish(f"$JS.API.{subject}", "api", payload)
        reply = json.loads(self.call(request, Messages(1)))
        assert "error" not in reply, reply
        return reply

    def make(self, kind: str, durability: str) -> None:
        config = {
            "name": NAME,
            "subjects": [NAME],
            "storage": "file",
            "num_replicas": 1,
            "allow_direct": True,
        }
        self.api(f"STREAM.CREATE.{NAME}", config)

    def appender(self, records: int) -> Client:
        connection, request = self._with_inbox(records)
        return connection, repeated(request, self.reply(records), records)

    def publisher(self) -> tuple[Connection, bytes]:
        connection, request = self._with_inbox(1)
        connection.reply = self.reply(1)
        return connection, request

    def _with_inbox(self, records: int) -> tuple[Connection, bytes]:
        connection, inbox = self.connect(), f"inbox.{next(self._inboxes)}"
        connection.call(f"SUB {inbox} 1\r\nPING\r\n".encode())
        return connection, publish(NAME, inbox, RECORD) * records

    def reply(self, records: int) -> Reply:
        return Messages(records)

    def count(self) -> int:
        return int(self.api(f"STREAM.INFO.{NAME}", {})["state"]["messages"])

    def read(self, limit: int) -> Iterator[int]:
        remaining, seq, reply = self.count(), 1, Batch()
        connection = self.connect()
        connection.call(b"SUB got 1\r\nPING\r\n")
        while remaining > 0:
            params = json.dumps({"seq": seq, "batch": limit, "next_by_subj": NAME}).encode()
            request = publish(f"$JS.API.DIRECT.GET.{NAME}", "got", params)
            count = connection.call(request, reply).count(MARK)
            assert count, "a direct get without messages"
            seq, remaining = seq + count, remaining - count
            yield count
        connection.close()

    def subscriber(self) -> Subscriber:
        inbox = f"push.{next(self._inboxes)}"
        config = {
            "name": inbox.replace(".", "-"),
            "deliver_subject": inbox,
            "deliver_policy": "new",
            "ack_policy": "none",
            "mem_storage": True,
        }
        params = {"stream_name": NAME, "config": config}
        self.api(f"CONSUMER.CREATE.{NAME}.{config['name']}", params)
        connection = self.connect()
        connection.call(f"SUB {inbox} 1\r\nPING\r\n".encode())
        return Stream(connection.sock)
