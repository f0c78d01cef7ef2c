"""What the rules cost without I/O: ``python -m tests.bench.engine [--seconds 0.5]``.

Appends as a shard handles them: decode the body, decide, encode the frames, commit, whereby the log
is a list that is dropped. Beside each row, in the same run and on the same bodies: ``json.loads``
and a list that grows, about the least that a Python program could do. ``x peer`` is the rate as a
multiple of the peer's: above 1 the shard is faster. Then reads, whose peer is ``json.dumps`` of the
same records, and the memory of the index, measured as what the process allocates; at most 40 bytes
a record are allowed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from tests.support.limits import LIMITS
from topics.engine.changes import append, reservation
from topics.engine.changes.append import Append
from topics.engine.locators import in_log
from topics.engine.now import Now
from topics.engine.reading import read
from topics.engine.shard import ShardEngine
from topics.formats.api.append_body import decode_append
from topics.formats.api.diff_body import Diff
from topics.formats.disk.frames import FrameKind, encode_frame
from topics.formats.disk.records import RecordsView

DATA = {"type": "resize", "url": "s3://bucket/some/path.png", "w": 256, "pad": "x" * 126}
ROUNDS = 5
INDEX_RECORDS = 200_000
READ_LIMIT = 1000


class Bench:
    """A shard's engine whose log is forgotten."""

    def __init__(self) -> None:
        self.engine = ShardEngine()
        self.next_lsn = 0
        self.locators: dict[int, RecordsView] = {}
        self.ms = itertools.count(1)

    def records(self, locator: int) -> RecordsView:
        return self.locators[locator]

    def append(self, body: bytes, key: str | None = None, *, keep: bool = False) -> None:
        now = Now(1_748_450_000_000, next(self.ms) // 100)
        change = append.decide(self.engine.table, "topic", decode_append(body, key, LIMITS), now)
        assert isinstance(change, Append)
        reserved = reservation.decide(change.topic)
        locator = in_log(self.next_lsn)
        for frame in (*change.frames, *(reserved.frames if reserved else ())):
            if frame.kind == FrameKind.APPEND:
                locator = in_log(self.next_lsn)
                if keep:
                    self.locators[locator] = RecordsView(
                        frame.flags,
                        frame.record_count,
                        frame.ext_len,
                        memoryview(b"".join(frame.parts)),
                    )
            encode_frame(frame, self.next_lsn, 0, 7)
            self.next_lsn += frame.length
        self.engine.commit(change, locator, now)
        if reserved is not None:
            self.engine.commit(reserved, in_log(0), now)


def rate(work: Callable[[], object], seconds: float) -> float:
    """Calls a second, the best of some rounds."""
    best = 0.0
    for _ in range(ROUNDS):
        calls, began = 0, time.perf_counter()
        while (now := time.perf_counter()) < began + seconds / ROUNDS:
            work()
            calls += 1
        best = max(best, calls / (now - began))
    return best


def line(name: str, per_s: float, peer_per_s: float, records: int) -> None:
    print(
        f"{name:<34}{per_s:>12,.0f}{per_s * records:>14,.0f}{per_s / peer_per_s:>9.2f}", flush=True
    )


def body_of(count: int, **fields: str) -> bytes:
    return json.dumps({"records": [{"data": DATA, **fields}] * count}).encode()


def loads_and_keep(body: bytes, kept: list[object]) -> None:
    """The peer of an append."""
    kept.append(json.loads(body))
    if len(kept) * len(body) > 1 << 26:
        kept.clear()


def appends(seconds: float) -> None:
    for batch in (1, 100, 1000, 10_000):
        body = body_of(batch)
        peer_per_s = rate(partial(loads_and_keep, body, []), seconds)
        line(
            f"append of {batch:,}", rate(partial(Bench().append, body), seconds), peer_per_s, batch
        )
        if batch == 1:
            line("append of 1 with a key", rate(keyed(body), seconds), peer_per_s, 1)
            line(
                "append of 1 with tag and node",
                rate(partial(Bench().append, body_of(1, tag="t-7", node="n")), seconds),
                peer_per_s,
                1,
            )


def keyed(body: bytes) -> Callable[[], None]:
    """Appends with a key each, to a topic whose window is full: one key comes, one goes."""
    bench, numbers = Bench(), itertools.count()
    bench.append(body)
    topic = bench.engine.topic("topic")
    topic.config = msgspec.structs.replace(topic.config, idempotency_window_ms=1000)
    for number in itertools.islice(numbers, 110_000):
        bench.append(body, f"key-{number}")
    return lambda: bench.append(body, f"key-{next(numbers)}")


def reads(seconds: float) -> None:
    peer_per_s = rate(
        lambda: json.dumps([{"$seq": 1, "$ts": 1_748_450_000_000, "data": DATA}] * READ_LIMIT),
        seconds,
    )
    for batch in (1, 100, 1000):
        bench = Bench()
        body = body_of(batch)
        for _ in range(max(10 * READ_LIMIT // batch, 1)):
            bench.append(body, keep=True)
        topic = bench.engine.topic("topic")
        cursors = itertools.cycle(range(0, 9 * READ_LIMIT, READ_LIMIT))

        def one(bench: Any = bench, cursors: itertools.cycle[int] = cursors) -> None:
            asked = Diff(from_seq=next(cursors), limit=READ_LIMIT)
            page = read(bench.engine.topics["topic"], asked, bench)
            assert page.count == READ_LIMIT
            b",".join(page.pieces)

        assert topic.count >= 10 * READ_LIMIT
        line(
            f"read of {READ_LIMIT:,}, written by {batch:,}",
            rate(one, seconds),
            peer_per_s,
            READ_LIMIT,
        )


def index() -> None:
    """Bytes that the process holds more after many commits."""
    for batch in (1, 100, 1000):
        bench = Bench()
        body = json.dumps({"records": [{"data": 1}] * batch}).encode()
        bench.append(body)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(INDEX_RECORDS // batch):
            bench.append(body)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(
            f"index, written by {batch:<5,}{(after - before) / INDEX_RECORDS:>12.2f} bytes a"
            " record (at most 40)",
            flush=True,
        )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    chosen = options.parse_args()
    print(f"{'':<34}{'requests/s':>12}{'records/s':>14}{'x peer':>9}")
    appends(chosen.seconds)
    reads(chosen.seconds)
    index()


if __name__ == "__main__":
    main()
