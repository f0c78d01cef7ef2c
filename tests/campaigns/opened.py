"""A server's data opened without a server: recovery, then reads. A hundred times faster than a
start, and it sees the same bytes.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.campaigns.check_jobs import FoundJobs
from tests.support.log import Client
from topics.engine.now import Now
from topics.engine.queue.ledger import JobRow
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.errors import TopicNotFound
from topics.formats.api.diff_body import Diff
from topics.formats.names import shard_of
from topics.storage.data_dir import DataDirectory

FILE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Found:
    """One topic, read whole."""

    epoch: Any
    head_seq: int
    earliest_seq: int
    count: int
    config: Any
    records: dict[int, Any]  # by seq
    gaps: list[tuple[int, int]]  # told as lost
    damaged: list[tuple[int, int]]  # told as damaged, which no crash explains
    next_seq: int
    # Idempotency keys, with the first seq that each stands for.
    keys: dict[bytes, int] = field(default_factory=dict)
    jobs: FoundJobs | None = field(default=None, compare=False)  # of a queue
    # And totals, of the routers that feed it.
    cursors: list[tuple[int, int]] = field(default_factory=list)


class Opened:
    """All shards of a data directory. ``boot`` names the run of the machine: another one means that
    the power was lost.

    Raises `Damaged` or `DataDirectoryDamaged` as a start does.
    """

    def __init__(self, path: Path, *, boot: str = "after a power loss") -> None:
        self._directory = DataDirectory(path, shards=1)
        self._stopped = False
        self._clients: list[Client] = []
        now = Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)
        try:
            for shard in range(self.shards):
                own: dict[str, Any] = {"shard": shard, "shards": self.shards, "now": now}
                self._clients.append(Client(path, boot=boot, file_bytes=FILE_BYTES, **own))
        except BaseException:
            self._close()
            raise

    @property
    def shards(self) -> int:
        return self._directory.shards

    def stop(self) -> None:
        """Close it as an orderly stop does, with a checkpoint, instead of as a kill does."""
        for client in self._clients:
            client.stop()
        self._stopped = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if not self._stopped:
            for client in self._clients:
                client.kill()
        self._directory.close()

    def topics(self) -> list[str]:
        return sorted(name for client in self._clients for name in client.engine.topics)

    def read(self, name: str, from_seq: int = 0) -> Found | None:
        """The topic from a cursor to its head, None when there is none."""
        client = self._clients[shard_of(name, self.shards)]
        try:
            topic = client.engine.topic(name)
        except TopicNotFound:
            return None
        records: dict[int, Any] = {}
        gaps: list[tuple[int, int]] = []
        damaged: list[tuple[int, int]] = []
        cursor = from_seq
        while True:
            asked = Diff(from_seq=cursor, limit=1000, include_tags=True)
            page = read(topic, asked, client.commits.store)
            if page.tombstone is not None:
                told = damaged if page.tombstone.reason == "damaged" else gaps
                told.append((page.tombstone.gap_from, page.tombstone.gap_to))
            for record in json.loads(b"[%b]" % b",".join(map(bytes, page.pieces))):
                records[record["$seq"]] = record
            goes_on = page.next_from_seq > cursor or page.caught_up
            assert goes_on, f"{name}: the cursor stands still at {cursor}"
            cursor = page.next_from_seq
            if page.caught_up:
                seen = topic.epoch, topic.head_seq, topic.earliest_seq, topic.count, topic.config
                jobs, cursors = _jobs(topic, client.now), [*(topic.derivations or {}).values()]
                keys = _keys(topic)
                return Found(*seen, records, gaps, damaged, topic.next_seq, keys, jobs, cursors)


def _keys(topic: Topic) -> dict[bytes, int]:
    """Those of clients."""
    moved = topic.dedupe.moved
    copies = {at for *_, seqs in moved.parts() for at in seqs} if moved else set()
    rows = topic.dedupe.rows(0, 1 << 62)
    return {row.digest: row.first_seq for row in rows if row.first_seq not in copies}


def _jobs(topic: Topic, now: Now) -> FoundJobs | None:
    if topic.jobs is None:
        return None
    topic.jobs.advance(now.ms)
    rows: dict[int, JobRow] = {}
    delays: dict[int, int] = {}
    for ledger in topic.jobs.ledgers(now, with_leases=True):
        rows |= ledger.rows
        delays |= ledger.delays
    dead = frozenset({*topic.jobs.dead} | {*topic.jobs.dying})
    return FoundJobs(rows, delays, dead, topic.jobs.dead_lettered)
