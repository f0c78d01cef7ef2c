"""Offline directory: the topics of a data directory that no server has.

    with OfflineDirectory(path) as directory:
        for piece in directory.topics["orders"].pieces():
            for page in PieceReader(piece).pages():
                ...

The directory is locked for reading meanwhile: no server can take it, other readers can.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from topics.engine.now import Now
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig
from topics.formats.names import shard_of
from topics.storage.data_dir import held_for_reading
from topics.storage.disk import Damaged
from topics.storage.offline.files import Findings
from topics.storage.offline.pieces import PIECE_RECORDS, Piece, pieces_of
from topics.storage.offline.shard import OfflineShard


class OfflineTopic:
    """One topic, as the files have it."""

    def __init__(self, shard: OfflineShard, topic: Topic) -> None:
        self._shard, self._topic = shard, topic
        self.name, self.epoch = topic.name, topic.epoch
        self.config: TopicConfig = topic.committed
        self.earliest_seq, self.head_seq = topic.earliest_seq, topic.head_seq
        self.sealed_seq = topic.sealed_seq  # above it, records stand in the log alone
        self.count = topic.count

    def pieces(
        self,
        first_seq: int = 1,
        last_seq: int | None = None,
        *,
        max_records: int = PIECE_RECORDS,
    ) -> Iterator[Piece]:
        """The live records from ``first_seq`` to ``last_seq``, by default all, in the order of
        seqs.
        """
        last = self.head_seq if last_seq is None else min(last_seq, self.head_seq)
        return pieces_of(self._shard, self._topic, first_seq, last, max_records)


class OfflineDirectory:
    """The topics of a data directory, by name; ``names``: those that are wanted, None for all.

    What the ttl of a topic takes is decided by ``now_ts``, by default the clock. With
    ``ignore_damage`` what can be read is there, and ``damage`` tells the rest.

    Raises ``NotADataDirectory``, ``DataDirectoryInUse``, ``DataDirectoryDamaged``, ``Damaged`` or
    ``OSError``.
    """

    def __init__(
        self,
        path: Path,
        *,
        names: Collection[str] | None = None,
        now_ts: int | None = None,
        ignore_damage: bool = False,
    ) -> None:
        self.path, self._findings = path, Findings(ignore=ignore_damage)
        now = Now(time.time_ns() // 1_000_000 if now_ts is None else now_ts, 0)
        self.topics: dict[str, OfflineTopic] = {}
        with ExitStack() as opened:
            shards = opened.enter_context(held_for_reading(path))
            wanted = range(shards) if names is None else {shard_of(name, shards) for name in names}
            for number in sorted(wanted):
                self._open_shard(number, shards, now, opened)
            if names is not None:
                self.topics = {n: topic for n, topic in self.topics.items() if n in names}
            self._opened = opened.pop_all()

    def _open_shard(self, number: int, shards: int, now: Now, opened: ExitStack) -> None:
        try:
            shard = OfflineShard(self.path, number, shards, now, self._findings)
        except Damaged as damage:
            self._findings.add(damage)
            return
        opened.callback(shard.close)
        self.topics |= {topic.name: OfflineTopic(shard, topic) for topic in shard.topics()}

    @property
    def damage(self) -> list[Damaged]:
        """What was ignored."""
        return self._findings.damage

    def close(self) -> None:
        """Close all files, and let servers have the directory."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()
