"""The records of backups, each restored outside of the simulated disk.

The pages of a restored topic are added to the history as calls, as if a client had read the topic
at the moment of the backup. They have the start and the end of the backup request. So the judge
compares them with all records that other clients received.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.simulation.history import Call
from topics.engine.now import Now
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.formats.api.diff_body import Diff
from topics.storage.backup_restore import restore
from topics.storage.recovery.shard_recovery import ShardReader
from topics.storage.start_progress import StartProgress

RESTORED: Final = "restored"  # the client of these calls
LIMIT: Final = 1000


def readings(backup: Call, data: bytes, folder: Path, shards: int) -> list[Call]:
    """Restore a backup to ``folder``, which is removed afterwards, and read all of its topics.

    Raise what `restore` raises.
    """
    try:
        restore(io.BytesIO(data), folder, as_new=False, with_damage=False)
        return [call for shard in range(shards) for call in _shard(backup, folder, shard, shards)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _shard(backup: Call, folder: Path, shard: int, shards: int) -> Iterator[Call]:
    reader = ShardReader(folder, shard, shards, StartProgress(lambda _: None))
    try:
        reader.open_log(writable=False)
        reader.read(Now(0, 0))
        for name, topic in sorted(reader.engine.topics.items()):
            # As at a start: only the checkpoint contains the head of a topic without records.
            topic.head_seq = max(topic.head_seq, reader.topics.restored_head(topic))
            for body, answer in _pages(topic, reader.engine.store):
                yield Call(
                    *(backup.began, RESTORED, backup.at, "POST", f"/v0/topics/{name}/diff", body),
                    *({}, backup.ended, backup.ended_at, 200, answer),
                )
    finally:
        reader.close()


def _pages(topic: Topic, store: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Return bodies and responses of the diffs that read a topic to its end."""
    seq = 0
    while True:
        body = {"from_seq": seq, "limit": LIMIT, "include_tags": True}
        page = read(topic, Diff(seq, LIMIT, include_tags=True, max_batch_bytes=1 << 30), store)
        yield (
            body,
            {
                "topic": topic.name,
                "epoch": topic.epoch,
                "records": msgspec.json.decode(b"[%b]" % b",".join(map(bytes, page.chunks))),
                "tombstone": None if page.tombstone is None else page.tombstone.as_json(),
                "next_from_seq": page.next_from_seq,
                "head_seq": page.head_seq,
                "earliest_seq": page.earliest_seq,
                "caught_up": page.caught_up,
                "lag": page.head_seq - page.next_from_seq,
            },
        )
        seq = page.next_from_seq
        if page.caught_up:
            return
