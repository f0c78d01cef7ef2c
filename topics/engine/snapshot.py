"""Snapshot: the state of a shard and of each topic in a checkpoint, and its restoration.

All values are plain values (encoding: ``formats/disk/checkpoint.py``). The names of the keys are
stored on disk and never change. Only queues have the key ``queue``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from topics.engine.moved_keys import MovedKeys, Part
from topics.engine.now import Now
from topics.engine.queue.ledger import keeps_leases
from topics.engine.queue.queue_replay import ledger_of, open_ledger
from topics.engine.record_index import IndexEntry
from topics.engine.removal import trim
from topics.engine.replay import Replay, StateMismatch
from topics.engine.routing.derivations import Derivation, set_derivation
from topics.engine.routing.graph import Router
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.disk.checkpoint import KEY_ROW
from topics.formats.disk.frame_bodies import Floors
from topics.formats.ranges import seq_ranges

TOPICS_PER_STEP = 64
KEYS_PER_STEP = 512
SOURCES_PER_STEP = 64


# Creation


def checkpoint_items(
    table: TopicTable,
    known: Mapping[str, Any],
    position_of: Callable[[Topic], int],
    now: Callable[[], Now],
    *,
    is_last: bool,
) -> Iterator[dict[str, Any] | None]:
    """Yield all items of a checkpoint, each to be encoded immediately.

    After a None, other work may run before the next item. ``known`` has additional fields for the
    item of the shard. ``position_of`` returns the LSN that separates the committed changes of a
    topic from the later ones. ``is_last``: nothing is written after this checkpoint, because the
    shard stops.
    """
    yield {**snapshot_shard(table), **known}
    for count, topic in enumerate(topic_items(table), 1):
        yield snapshot_topic(topic, position_of(topic))
        for part in job_items(topic, now(), is_last=is_last):
            yield {"id": topic.id, "jobs": part}
            yield None
        found = key_items(topic, now())
        while some := list(islice(found, KEYS_PER_STEP)):
            if keys := b"".join(key for key in some if key is not None):
                yield {"id": topic.id, "digests": keys}
            yield None
        moved = moved_key_items(topic)
        while parts := list(islice(moved, SOURCES_PER_STEP)):
            yield {"id": topic.id, "moved": parts}
            yield None
        if count % TOPICS_PER_STEP == 0:
            yield None


def snapshot_shard(table: TopicTable) -> dict[str, Any]:
    """Return the state of the shard itself for a checkpoint.

    The routers may be newer than the LSN at which the replay begins. This is safe, because each
    frame about a router contains its complete state, or its removal. So replaying all of these
    frames again gives the same result.
    """
    kept: dict[str, Any] = {
        "last_id": table.last_id,
        "last_epoch": table.last_epoch,
        "reserved_ts": table.reserving_ts,
    }
    if table.routers.last_id:
        kept["last_router_id"] = table.routers.last_id
        kept["routers"] = [router.packed for router in table.routers.by_id.values()]
    return kept


def topic_items(table: TopicTable) -> Iterator[Topic]:
    """Yield the topics for a checkpoint. Topics may be changed, created or deleted between two
    steps.
    """
    for topic_id in list(table.by_id):
        topic = table.by_id.get(topic_id)
        if topic is not None:
            yield topic


def snapshot_topic(topic: Topic, lsn: int) -> dict[str, Any]:
    """Return the committed state of a topic for a checkpoint.

    All frames of the topic below ``lsn`` are committed, and no frame at or above ``lsn`` is. The
    jobs of a queue follow in parts (`job_items`).
    """
    kept = {
        "id": topic.id,
        "name": topic.name,
        "epoch": topic.epoch,
        "config": msgspec.structs.asdict(topic.committed),
        "head": topic.head_seq,
        "start": topic.start_seq,
        "floors": tuple(topic.floors),
        "losses": topic.losses_at_restart(topic.head_seq),
        "damaged": topic.damaged,
        "trimmed": topic.trimmed,
        "last_ts": topic.last_ts,
        "last_write_ts": topic.last_write_ts,
        "reserved": topic.reserved_seq,
        "logged": topic.logged_seq,
        "position": lsn,
        "keys_from": topic.keys_from_seq,
    }
    if topic.jobs is not None:
        kept["queue"] = {"dead_lettered": topic.jobs.dead_lettered}
    if topic.derivations is not None:
        kept["derivations"] = [(router, *at) for router, at in topic.derivations.items()]
    return kept


def job_items(topic: Topic, now: Now, *, is_last: bool = False) -> Iterator[dict[str, Any]]:
    """Yield parts of the jobs, after `snapshot_topic`. The topic may change between two steps.

    Changes of leases are effective before they are committed. So a part may contain the effects of
    frames above the LSN of the topic; see `Ledger`. If such a change is undone, the checkpoint is
    also discarded.

    If leases are not logged, only the checkpoint of a clean shutdown (``is_last``) contains
    deliveries, delays after nacks and errors. If the process is killed before the next checkpoint,
    the next startup restores their state as of that shutdown. After a later checkpoint they are
    lost.
    """
    if topic.jobs is not None:
        ledgers = topic.jobs.ledgers(
            now,
            with_leases=keeps_leases(topic.committed),
            with_counts=is_last and topic.committed.durability != "ephemeral",
        )
        yield from (ledger.pack() for ledger in ledgers)


def key_items(topic: Topic, now: Now) -> Iterator[bytes | None]:
    """Yield the valid idempotency keys that no segment contains, each as a `KEY_ROW`.

    No segment contains a key if no record of its write is left. For each key that is not included,
    None is yielded. The topic may change between two steps.
    """
    for digest, first_seq, count, at_ms in topic.dedupe.rows(
        now.ms, topic.config.idempotency_window_ms
    ):
        at = topic.index.find(first_seq)
        # The write counts as removed if no entry of the index contains its first seq.
        is_deleted = (
            first_seq < topic.start_seq
            or at == len(topic.index)
            or topic.index.entry(at)[0] > first_seq
        )
        if is_deleted:
            yield KEY_ROW.pack(digest, first_seq, count, now.ts - (now.ms - at_ms))
        else:
            yield None


def moved_key_items(topic: Topic) -> Iterator[Part]:
    """Yield the keys of copies, source by source, excluding copies that a restart loses.

    The topic may change between two steps.
    """
    for source, seqs, copies in topic.dedupe.moved.parts() if topic.dedupe.moved else ():
        if topic.resident:
            kept = [
                (seq, copy)
                for seq, copy in zip(seqs, copies, strict=True)
                if not any(first <= copy <= last for first, last in topic.resident)
            ]
            seqs, copies = array("Q", [seq for seq, _ in kept]), array("Q", [at for _, at in kept])
        yield source, seqs.tobytes(), copies.tobytes()


# Restoration


def restore_shard(table: TopicTable, kept: dict[str, Any]) -> None:
    """Restore the shard from a result of `snapshot_shard`."""
    table.last_id = max(table.last_id, kept["last_id"])
    table.last_epoch = max(table.last_epoch, kept["last_epoch"])
    table.reserved_ts = kept["reserved_ts"]
    for packed in kept.get("routers", ()):
        table.routers.put(Router.unpack(packed))
    table.routers.last_id = max(table.routers.last_id, kept.get("last_router_id", 0))


def restore_topic(replay: Replay, kept: dict[str, Any]) -> Topic:
    """Restore a topic from a result of `snapshot_topic`, before any extent or frame.

    The extents and frames then add its records.
    """
    config = replay.config(kept["config"])
    topic = Topic(kept["id"], kept["name"], kept["epoch"], config, kept["reserved"])
    topic.start_seq = kept["start"]
    topic.raise_floors(Floors(*kept["floors"]))
    topic.losses = seq_ranges(kept["losses"])
    topic.damaged = seq_ranges(kept["damaged"])
    topic.trimmed = seq_ranges(kept["trimmed"])
    topic.last_ts, topic.last_write_ts = kept["last_ts"], kept["last_write_ts"]
    # If both are equal, as in most topics, use one int object for both to save memory.
    if topic.last_write_ts == topic.last_ts:
        topic.last_write_ts = topic.last_ts
    topic.logged_seq, topic.keys_from_seq = kept["logged"], kept["keys_from"]
    open_ledger(topic)
    ledger = ledger_of(topic)
    if ledger is not None:
        ledger.dead_lettered = kept["queue"]["dead_lettered"]
    for router, cursor, total in kept.get("derivations", ()):
        set_derivation(topic, router, Derivation(cursor, total))
    replay.note_restored(topic, kept["head"], kept["position"])
    replay.table.add(topic)
    return topic


def restore_jobs(replay: Replay, topic_id: int, part: Mapping[str, Any]) -> None:
    """Restore jobs from a part of `job_items`, after their topic."""
    ledger = ledger_of(replay.table.by_id[topic_id])
    if ledger is not None:
        ledger.unpack(part)


def restore_moved(replay: Replay, topic_id: int, parts: Iterable[Part]) -> None:
    """Restore keys of copies from `moved_key_items`, after their topic."""
    dedupe = replay.table.by_id[topic_id].dedupe
    dedupe.moved = dedupe.moved or MovedKeys()
    for part in parts:
        dedupe.moved.restore(part)


def restore_extent(
    replay: Replay, topic_id: int, extent: IndexEntry, dead_count: int, dead_bytes: int
) -> bool:
    """Restore an extent of the checkpoint, after its topic, in the order of seqs.

    ``extent.size`` is the number of all rendered bytes. ``dead_count`` and ``dead_bytes`` are the
    number and the rendered bytes of the deleted records. Return False if the extent is not used,
    because it has no live records or its topic does not exist. Raise `StateMismatch` if the topic
    already has its seqs.
    """
    first_seq, count, locator, size, ts = extent
    topic = replay.table.by_id.get(topic_id)
    if topic is None:
        return False
    if first_seq <= topic.head_seq:
        raise StateMismatch(f"seq {first_seq} of topic {topic_id} already exists")
    topic.sealed_seq = extent.last_seq
    topic.logged_seq = max(topic.logged_seq, extent.last_seq)
    if extent.last_seq < topic.start_seq or dead_count >= count:
        topic.head_seq = extent.last_seq
        return False
    index, last_write_ts = topic.index, topic.last_write_ts
    topic.commit_records(first_seq, count, locator, ts, size)
    topic.last_write_ts = last_write_ts
    if dead_count:
        index.take(len(index) - 1, dead_count, dead_bytes)
        topic.count -= dead_count
        topic.bytes -= dead_bytes
    trim(topic, len(index) - 1, replay.table.store)
    return index.entry(len(index) - 1)[3] > 0
