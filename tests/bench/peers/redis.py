"""Redis and its HTTP interface, webdis: streams (XADD) that are read with XRANGE and XREAD.

A batch is a pipeline to Redis. It is one EVAL to webdis, which has no pipelines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tests.bench.peers.load import MARK, RECORD, Connection, Stream, Subscriber
from tests.bench.peers.replies import Http, Marks, Reply, http
from tests.bench.peers.system import NAME, Peer, event_stream, find, free_port, version_of

KEY = NAME.encode()
LINE = b"\r\n"
ERROR = b"-"
ID = re.compile(rb"\d{13}-\d+")
RECORD_END = MARK + b'"}\r\n'
ADD_ALL = b"for i=1,#ARGV do redis.call('XADD',KEYS[1],'*','d',ARGV[i]) end return #ARGV"
READ = b"return cjson.encode(redis.call('XRANGE',KEYS[1],ARGV[1],'+','COUNT',ARGV[2]))"


def command(*words: bytes) -> bytes:
    """Return the bytes of a command in the RESP protocol."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class Page:
    """The reply to XRANGE or XREAD: ``*N`` entries. The last bytes of an entry are its record."""

    def __init__(self) -> None:
        self.body, self._data = b"", b""

    def feed(self, data: bytes) -> bool:
        """As `Reply.feed`."""
        self._data += data
        if self._data in (b"*0\r\n", b"*-1\r\n"):
            self.body, self._data = b"", b""
            return True
        found = re.match(rb"(?:\*1\r\n\*2\r\n\$\d+\r\n\w+\r\n)?\*(\d+)\r\n\*2\r\n\$", self._data)
        if found is None or not self._data.endswith(RECORD_END):
            return False
        if self._data.count(RECORD_END) < int(found[1]):
            return False
        self.body, self._data = self._data, b""
        return True


class Redis(Peer):
    """A Redis with an append-only file that is synced at each write or once a second."""

    name = "redis"
    groups = frozenset({"append", "read", "live"})

    @classmethod
    def version(cls) -> str:
        return version_of("redis-server", "--version")

    def launch(self, durability: str) -> None:
        self.launch_redis(self.address[1], durability)

    def launch_redis(self, port: int, durability: str) -> None:
        """Start Redis without snapshots and rewrites of its file, which would disturb the runs."""
        sync = "always" if durability == "fsync" else "everysec"
        options = (
            *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.data)),
            *("--save", "", "--appendonly", "yes", "--appendfsync", sync),
            *("--auto-aof-rewrite-percentage", "0", "--loglevel", "warning"),
        )
        self.programs.start("redis", find("redis-server"), *options, port=port, cwd=self.data)

    def request(self, records: int) -> bytes:
        return command(b"XADD", KEY, b"*", b"d", RECORD) * records

    def reply(self, records: int) -> Reply:
        return Marks(LINE, 2 * records, bad=ERROR)

    def connect(self) -> Connection:
        return Connection(self.address, Marks(LINE, bad=ERROR))

    def count(self) -> int:
        return int(self.call(command(b"XLEN", KEY), Marks(LINE, bad=ERROR))[1:])

    def read(self, limit: int) -> Iterator[int]:
        connection, start, reply = self.connect(), b"-", Page()
        while True:
            request_bytes = command(b"XRANGE", KEY, start, b"+", b"COUNT", b"%d" % limit)
            page = connection.call(request_bytes, reply)
            if not page:
                break
            start = b"(" + ID.findall(page[-500:])[-1]
            yield page.count(MARK)
        connection.close()

    def subscriber(self) -> Subscriber:
        return Follower(self.connect())


class Follower:
    """A subscriber that requests the entries after the last one and waits (XREAD BLOCK)."""

    def __init__(self, connection: Connection) -> None:
        self.sock, self._connection = connection.sock, connection
        connection.reply = Page()
        self._request_after(b"$")

    def _request_after(self, last: bytes) -> None:
        self._connection.send(command(b"XREAD", b"BLOCK", b"0", b"STREAMS", KEY, last))

    def take(self) -> int:
        """As `Subscriber.take`."""
        if not self._connection.take():
            return 0
        page = self._connection.reply.body
        self._request_after(ID.findall(page[-500:])[-1])
        return page.count(MARK)


class Webdis(Redis):
    """webdis with a Redis. Subscribers receive the messages of PUBLISH, which are not stored."""

    name = "webdis"
    batch_max = 1000

    @classmethod
    def version(cls) -> str:
        find("webdis")
        return f"on Redis {super().version()}"

    def launch(self, durability: str) -> None:
        redis_port, port = free_port(), self.address[1]
        self.launch_redis(redis_port, durability)
        config = {
            "redis_host": "127.0.0.1",
            "redis_port": redis_port,
            "http_host": "127.0.0.1",
            "http_port": port,
            "threads": 2,
            "pool_size": 20,
            "daemonize": False,
            "database": 0,
            "http_max_request_size": 1 << 27,
            "verbosity": 1,
            "logfile": str(self.data / "webdis.log"),
        }
        path = self.data / "webdis.json"
        path.write_text(json.dumps(config))
        self.programs.start("webdis", find("webdis"), str(path), port=port, cwd=self.data)

    def connect(self) -> Connection:
        return Connection(self.address, Http(bad=b"[false"))

    def request(self, records: int) -> bytes:
        if records == 1:
            return webdis_request(b"XADD", KEY, b"*", b"d", RECORD)
        return webdis_request(b"EVAL", ADD_ALL, b"1", KEY, *[RECORD] * records)

    def reply(self, records: int) -> Reply:
        return Http(bad=b"[false")

    def publisher(self) -> tuple[Connection, bytes]:
        return self.connect(), webdis_request(b"PUBLISH", KEY, RECORD)

    def count(self) -> int:
        body = self.call(webdis_request(b"XLEN", KEY), self.reply(1))
        return int(json.loads(body)["XLEN"])

    def read(self, limit: int) -> Iterator[int]:
        connection, start = self.connect(), b"-"
        while True:
            request_bytes = webdis_request(b"EVAL", READ, b"1", KEY, start, b"%d" % limit)
            page = connection.call(request_bytes)
            ids = ID.findall(page[-500:])
            if not ids:
                break
            start = b"(" + ids[-1]
            yield page.count(MARK)
        connection.close()

    def subscriber(self) -> Subscriber:
        path = f"/SUBSCRIBE/{NAME}"
        return Stream(event_stream(self.connect(), path, b'["subscribe"').sock)


def webdis_request(*words: bytes) -> bytes:
    """Return a POST whose body is the command, with slashes between its words."""
    safe = (w.replace(b"%", b"%25").replace(b"/", b"%2F").replace(b"+", b"%2B") for w in words)
    return http("POST", "/", b"/".join(safe), "application/x-www-form-urlencoded")
