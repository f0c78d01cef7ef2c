"""This checkout's server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.bench.peers.load import MARK, Client, Script, Step, Stream, Subscriber, append
from tests.bench.peers.replies import Http, http
from tests.bench.peers.system import NAME, System, event_stream
from tests.bench.processes import server_of
from topics import __version__

_SEQ = re.compile(rb'"\$seq":(\d+)')
PATH = f"/v0/topics/{NAME}"


class Topics(System):
    """The server of this checkout, or of the checkout ``root``."""

    name = "topics"
    root: Path | None = None
    groups = frozenset({"append", "read", "live", "queue"})

    @classmethod
    def version(cls) -> str:
        return __version__

    def start(self, durability: str) -> None:
        self._server = server_of(self.root, self.folder / "topics")
        self._server.start()
        self.address = self._server.address

    def stop(self) -> None:
        self._server.kill()

    def pids(self) -> dict[str, int]:
        return self._server.roles()

    def make(self, kind: str, durability: str) -> None:
        body = json.dumps({"type": kind, "durability": durability})
        self.call(http("PUT", PATH, body.encode()), Http())

    def request(self, records: int) -> bytes:
        return append(NAME, records)

    def count(self) -> int:
        response = self.call(http("GET", f"{PATH}?touch=false"), Http())
        return int(json.loads(response)["count"])

    def read(self, limit: int) -> Iterator[int]:
        connection, from_seq, is_caught_up = self.connect(), 0, False
        while not is_caught_up:
            body = b'{"from_seq":%d,"limit":%d}' % (from_seq, limit)
            page = connection.call(http("POST", f"{PATH}/diff", body))
            # The records are not decoded, as with all other servers.
            end = page[page.rindex(b"]") :]
            found = re.search(rb'"next_from_seq":(\d+)', page[-1000:])
            assert found is not None, end
            from_seq = int(found[1])
            is_caught_up = b'"caught_up":true' in page[-1000:]
            yield page.count(MARK)
        connection.close()

    def subscriber(self) -> Subscriber:
        body = b'{"topics":{"%b":{"tail":true}}}' % NAME.encode()
        url = json.loads(self.call(http("POST", "/v0/watch", body), Http()))["stream_url"]
        connection = event_stream(self.connect(), url, b"event: caught-up\n")
        return Stream(connection.sock)

    def worker(self, number: int, batch: int) -> Client:
        return self.connect(), work(f"worker-{number}", batch)


class Before(Topics):
    """Another checkout, with which this one is compared."""

    name = "before"


def work(node: str, batch: int) -> Script:
    """Claim and acknowledge jobs until the queue is empty."""
    reply, name = Http(), node.encode()
    claim = http("POST", f"{PATH}/claim", b'{"node":"%b","max":%d}' % (name, batch))
    done = 0
    while seqs := _SEQ.findall((yield Step(claim, reply, done))):
        acked = b'{"node":"%b","seqs":[%b]}' % (name, b",".join(seqs))
        response = yield Step(http("POST", f"{PATH}/ack", acked), reply)
        assert b'"acked":%d' % len(seqs) in response, response
        done = len(seqs)
