"""Payloads: records that no log held, written to the source's log once for all routers that need
them.

    log --a PAYLOAD frame--> written: all who wait go on, and find it
     '--the log cannot, or some of the records went meanwhile--> they look again
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from topics.actors.shard.context import ShardContext
from topics.actors.shard.routing.batches import Batch, Missing
from topics.engine.topic import Topic
from topics.formats.api.delete_body import TagMatch
from topics.storage.wal.progress import Progress

KEPT_MAX: Final = 64

BatchKey: TypeAlias = tuple[int, int, TagMatch | None]
"""Topic id, seq behind which the records begin, and which of them are wanted."""


class Payloads:
    """Of all sources of a shard, the newest last."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._logged: dict[BatchKey, Batch] = {}
        self._waiting: dict[BatchKey, list[Callable[[bool], object]]] = {}

    def find(self, key: BatchKey) -> Batch | None:
        """What is left of a payload for these records, if it still stands."""
        topic_id, seen, match = key
        for (logged_id, from_seq, wanted), batch in self._logged.items():
            if (
                logged_id == topic_id
                and wanted == match
                and from_seq <= seen < batch.to_seq
                and batch.last_lsn >= self._context.wal.oldest_lsn
            ):
                return batch if from_seq == seen else batch.behind(seen)
        return None

    def log(
        self, topic: Topic, missing: Missing, key: BatchKey, then: Callable[[bool], object]
    ) -> None:
        """Write the records, unless that is under way; ``then`` is told whether to look for them,
        or else to wait a while.
        """
        context = self._context
        if key in self._waiting:
            self._waiting[key].append(then)
            return
        if context.room.refusal(grows=True) is not None:
            then(False)
            return
        change = context.engine.log_payload(topic, missing.first_seq, missing.ts, missing.records)
        waiting = self._waiting[key] = [then]

        def settle(result: Progress | OSError) -> None:
            is_logged = not isinstance(result, OSError)
            if self._waiting.get(key) is waiting:  # none of the records has gone since
                del self._waiting[key]
                if is_logged:
                    self._keep(key, missing.logged(context.wal.shard, change.lsn))
            for call in waiting:
                call(is_logged)

        context.commits.submit(change, settle)

    def _keep(self, key: BatchKey, batch: Batch) -> None:
        self._logged[key] = batch
        while len(self._logged) > KEPT_MAX:
            del self._logged[next(iter(self._logged))]

    def forget(self, topic_id: int) -> None:
        """Records of the topic have gone: what was logged of it may hold some of them."""
        for payloads in (self._logged, self._waiting):
            for key in [key for key in payloads if key[0] == topic_id]:
                del payloads[key]
