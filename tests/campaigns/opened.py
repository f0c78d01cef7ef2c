"""A shard's data opened without a server: recovery, then reads. A hundred times faster than a
start, and it sees the same bytes.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.campaigns.check_jobs import FoundJobs
from tests.support.log import Client
from topics.engine.now import Now
from topics.engine.queue.ledger import JobRow
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.errors import TopicNotFound
from topics.formats.api.diff_body import Diff
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
    keys: dict[str, int] = field(
        default_factory=dict
    )  # idempotency keys, with the first seq that each stands for
    jobs: FoundJobs | None = field(default=None, compare=False)  # of a queue


class Opened:
    """Shard 0 of a data directory of one shard. ``boot`` names the run of the machine: another one
    means that the power was lost.

    Raises `Damaged` or `DataDirectoryDamaged` as a start does.
    """

    def __init__(self, path: Path, *, boot: str = "after a power loss") -> None:
        self._directory = DataDirectory(path, shards=1)
        self._stopped = False
        try:
            now = Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)
            self.client = Client(path, boot=boot, now=now, file_bytes=FILE_BYTES)
        except BaseException:
            self._directory.close()
            raise

    def stop(self) -> None:
        """Close it as an orderly stop does, with a checkpoint, instead of as a kill does."""
        self.client.stop()
        self._stopped = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._stopped:
            self.client.kill()
        self._directory.close()

    def topics(self) -> list[str]:
        return sorted(self.client.engine.topics)

    def read(self, name: str, from_seq: int = 0) -> Found | None:
        """The topic from a cursor to its head, None when there is none."""
        try:
            topic = self.client.engine.topic(name)
        except TopicNotFound:
            return None
        records: dict[int, Any] = {}
        gaps: list[tuple[int, int]] = []
        damaged: list[tuple[int, int]] = []
        cursor = from_seq
        while True:
            page = read(
                topic,
                Diff(from_seq=cursor, limit=1000, include_tags=True),
                self.client.commits.store,
            )
            if page.tombstone is not None:
                told = damaged if page.tombstone.reason == "damaged" else gaps
                told.append((page.tombstone.gap_from, page.tombstone.gap_to))
            for record in json.loads(b"[%b]" % b",".join(map(bytes, page.pieces))):
                records[record["$seq"]] = record
            assert page.next_from_seq > cursor or page.caught_up, (
                f"{name}: the cursor stands still at {cursor}"
            )
            cursor = page.next_from_seq
            if page.caught_up:
                keys = {key: write.first_seq for key, write in topic.dedupe.items()}
                return Found(
                    topic.epoch,
                    topic.head_seq,
                    topic.earliest_seq,
                    topic.count,
                    topic.config,
                    records,
                    gaps,
                    damaged,
                    topic.next_seq,
                    keys,
                    self._jobs(topic),
                )

    def _jobs(self, topic: Topic) -> FoundJobs | None:
        if topic.jobs is None:
            return None
        now = self.client.now
        topic.jobs.advance(now.ms)
        rows: dict[int, JobRow] = {}
        delays: dict[int, int] = {}
        for ledger in topic.jobs.ledgers(now, with_leases=True):
            rows |= ledger.rows
            delays |= ledger.delays
        dead = frozenset({*topic.jobs.dead} | {*topic.jobs.dying})
        return FoundJobs(rows, delays, dead, topic.jobs.dead_lettered)
