"""beanstalkd: jobs in one tube. A batch is that many commands in one write."""

from __future__ import annotations

import re

from tests.bench.peers.load import RECORD, Client, Connection, Script, Step
from tests.bench.peers.replies import Marks, Reply
from tests.bench.peers.system import Peer, find, version_of

LINE = b"\r\n"
PUT = b"put 100 0 60 %d\r\n%b\r\n" % (len(RECORD), RECORD)
RESERVE = b"reserve-with-timeout 0\r\n"
FULL, MISSING = b"OUT_OF_MEMORY", b"NOT_FOUND"
_JOB = re.compile(rb"RESERVED (\d+) \d+\r\n")


class Reserved:
    """The replies to ``count`` reserves: two lines for a job, one line if the tube is empty."""

    def __init__(self, count: int) -> None:
        self.body, self._data, self._count = b"", b"", count

    def feed(self, data: bytes) -> bool:
        """As `Reply.feed`."""
        self._data += data
        jobs = len(_JOB.findall(self._data))
        if self._data.count(LINE) < self._count + jobs or not self._data.endswith(LINE):
            return False
        self.body, self._data = self._data, b""
        return True


class Beanstalkd(Peer):
    """A beanstalkd with a log that is synced at each write, or every 50 ms."""

    name = "beanstalkd"
    groups = frozenset({"append", "queue"})

    @classmethod
    def version(cls) -> str:
        return version_of("beanstalkd", "-v")

    def launch(self, durability: str) -> None:
        sync_ms, port = "0" if durability == "fsync" else "50", self.address[1]
        command = find("beanstalkd"), "-l", "127.0.0.1", "-p", str(port), "-b", str(self.data)
        self.programs.start("beanstalkd", *command, "-f", sync_ms, port=port, cwd=self.data)

    def connect(self) -> Connection:
        return Connection(self.address, Marks(LINE))

    def request(self, records: int) -> bytes:
        return PUT * records

    def reply(self, records: int) -> Reply:
        return Marks(LINE, records, bad=FULL)

    def count(self) -> int:
        stats = self.call(b"stats-tube default\r\n", Marks(b"\n\r\n"))
        return sum(map(int, re.findall(rb"current-jobs-(?:ready|reserved): (\d+)", stats)))

    def worker(self, number: int, batch: int) -> Client:
        return self.connect(), work(batch)


def work(batch: int) -> Script:
    """Reserve and delete jobs until the tube is empty."""
    claimed, done = Reserved(batch), 0
    while jobs := _JOB.findall((yield Step(RESERVE * batch, claimed, done))):
        request = b"".join(b"delete %b\r\n" % job for job in jobs)
        yield Step(request, Marks(LINE, len(jobs), bad=MISSING))
        done = len(jobs)
