"""The history: requests, responses and events of the server in one ordered list.

Every entry has the number of the moment at which it was recorded (``began``, ``ended``,
``number``). All numbers come from one counter, so ``a.ended < b.began`` means that ``a`` had ended
when ``b`` began. Times (``at``) are seconds of the monotonic clock since the start of the run. They
are only used in reports and for time limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import msgspec


class Call(msgspec.Struct, tag=True):
    """A request and its response. ``status`` is None without a response: the request may have been
    executed, may be executed until the receiving process dies, or may never be executed.
    """

    began: int
    client: str
    at: float
    method: str  # HTTP method
    path: str  # with the query
    body: Any = None  # the JSON of the request
    headers: dict[str, str] = {}  # only the relevant ones: Idempotency-Key, Authorization
    ended: int = 0  # 0: in progress at the end of the run
    ended_at: float = 0.0
    status: int | None = None
    answer: Any = None  # the JSON of the response


class StreamEvent(msgspec.Struct, tag=True):
    """An event of a stream. ``call``: ``began`` of the call that opened it."""

    number: int
    call: int
    client: str
    at: float
    event: str
    id: str = ""
    data: Any = None


class ServerEvent(msgspec.Struct, tag=True):
    """An event of the server, caused from outside or by the server itself.

    kill      the process ``who`` ("front", "shard 0", "everything") died; the machine continues
    power     the machine lost its power: every process died, and unsynced data may be lost
    stop      all processes were requested to stop, and have stopped
    start     all processes were started; after a kill, ``who`` is restarted automatically
    clock     the wall clock jumped by ``value`` s
    fault     the disk of ``who`` refuses calls, fails or hangs, as ``how`` describes
    repaired  the disk works again
    key       the key ``who`` was "added" or "removed": ``how``
    damaged   a shard has detected damage of its data and stays down
    corrupt   files of a shard were corrupted, and its start was refused
    quiet     only "final" sends requests from now on; all faults have ended, all processes run
    """

    number: int
    at: float
    what: str
    who: str = ""
    how: str = ""
    value: float = 0.0
    wall: float = 0.0  # the wall clock, s


Entry: TypeAlias = Call | StreamEvent | ServerEvent


class History:
    """The history. ``now`` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self.entries: list[Entry] = []
        self._now, self._wall, self._began, self._count = now, wall, now(), 0

    def tick(self) -> int:
        """Return the number of this moment."""
        self._count += 1
        return self._count

    @property
    def at(self) -> float:
        """Return the seconds since the start of the run."""
        return round(self._now() - self._began, 6)

    def record_request(
        self, client: str, method: str, path: str, body: Any, **headers: str
    ) -> Call:
        """Record a request that is sent."""
        call = Call(self.tick(), client, self.at, method, path, deepcopy(body), headers)
        self.entries.append(call)
        return call

    def record_response(self, call: Call, status: int | None, answer: Any) -> None:
        """Record a response, or None if it will never arrive."""
        call.ended, call.ended_at, call.status, call.answer = self.tick(), self.at, status, answer

    def record_stream_event(self, call: Call, event: str, id: str, data: Any) -> None:
        """Record an event of the stream that ``call`` opened."""
        self.entries.append(
            StreamEvent(self.tick(), call.began, call.client, self.at, event, id, data)
        )

    def record_server_event(
        self, what: str, who: str = "", how: str = "", value: float = 0.0
    ) -> None:
        """Record an event of the world."""
        wall = round(self._wall(), 6)
        self.entries.append(ServerEvent(self.tick(), self.at, what, who, how, value, wall))


def save(path: Path, entries: Iterable[Entry]) -> None:
    """Write one line of JSON for each entry."""
    path.write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))


def load(path: Path) -> list[Entry]:
    """Read a file that `save` has written."""
    return [msgspec.json.decode(line, type=Entry) for line in path.read_bytes().splitlines()]
