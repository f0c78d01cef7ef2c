"""Durable Streams: the Node server that stores files. It always syncs, and reads have no limit."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.bench.peers.load import MARK, RECORD, Stream, Subscriber
from tests.bench.peers.replies import Http, http
from tests.bench.peers.system import NAME, NPM, NotFound, Peer, event_stream, find

PACKAGE = NPM / "node_modules/@durable-streams/server/package.json"
PROGRAM = (
    "import { DurableStreamTestServer } from '@durable-streams/server';"
    "const [port, dataDir] = process.argv.slice(1);"
    "await new DurableStreamTestServer("
    "{ port: +port, host: '127.0.0.1', compression: false, dataDir }).start();"
)
PATH = f"/v1/stream/{NAME}"


class DurableStreams(Peer):
    """One stream of JSON."""

    name = "durable-streams"
    groups = frozenset({"append", "read", "live"})
    classes = frozenset({"fsync"})

    @classmethod
    def version(cls) -> str:
        find("node")
        if not PACKAGE.exists():
            raise NotFound(
                f"@durable-streams/server is not in {NPM}; DURABLE_STREAMS names its folder"
            )
        return str(json.loads(PACKAGE.read_text())["version"])

    def launch(self, durability: str) -> None:
        port = str(self.address[1])
        command = find("node"), "--input-type=module", "-e", PROGRAM, port, str(self.data)
        self.programs.start("node", *command, port=self.address[1], cwd=NPM)

    def make(self, kind: str, durability: str) -> None:
        self.call(http("PUT", PATH), Http())

    def request(self, records: int) -> bytes:
        return http(
            "POST", PATH, RECORD if records == 1 else b"[%b]" % b",".join([RECORD] * records)
        )

    def count(self) -> int:
        return sum(self.read(0))

    def read(self, limit: int) -> Iterator[int]:
        connection, offset, reply = self.connect(), "-1", Http()
        while count := connection.call(http("GET", f"{PATH}?offset={offset}"), reply).count(MARK):
            offset = reply.field(b"stream-next-offset").decode()
            yield count
        connection.close()

    def subscriber(self) -> Subscriber:
        return Stream(event_stream(self.connect(), f"{PATH}?offset=now&live=sse").sock)
