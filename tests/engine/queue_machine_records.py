"""Rules of the queue machine for the changes that any topic has: appends, configs and deletes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.engine.queue_machine import NAMES, Effect, Models, QueueMachine
from tests.engine.queue_model import Job, QueueModel
from tests.engine.shard_support import decide_long
from tests.engine.topic_machine_changes import SMALL_SLICES
from tests.support.limits import LIMITS
from topics.engine.changes import (
    append,
    delete_records,
    delete_topic,
    lease_jobs,
    put_topic,
    reservation,
)
from topics.engine.changes.append import Append
from topics.engine.changes.delete_records import RemainingDelete
from topics.engine.queue.claims import jobs_of
from topics.engine.topic import Topic
from topics.errors import TopicFull, TopicNotEmpty
from topics.formats.api.append_body import decode_append
from topics.formats.api.decoding import decode_config
from topics.formats.api.diff_body import decode_delete
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frames import FrameKind
from topics.formats.json_text import json_bytes

Record = dict[str, Any]

TAGS = ["x", "xy", "z"]
RECORDS = st.lists(
    st.fixed_dictionaries(
        {"data": st.sampled_from([1, "data" * 10])},
        optional={
            "tag": st.sampled_from(TAGS),
            "delay_ms": st.sampled_from([0, 1, 5, 30, 300]),
        },
    )
    | st.fixed_dictionaries(
        {"data": st.just(2), "deliver_in": st.sampled_from([-5, 0, 1, 5, 30, 300])}
    ),
    min_size=1,
    max_size=5,
)
CONFIGS: dict[str, list[Any]] = {
    "cap_records": [0, 0, 2, 8],
    "cap_bytes": [0, 0, 400],
    "ttl_ms": [0, 0, 0, 100, 400],
    "discard": ["old", "old", "reject"],
    "durability": ["ephemeral", "disk", "disk", "fsync"],
    "max_deliveries": [0, 1, 2, 3],
    "dead_letter": [None, "dead", "dead"],
    "leases_durable": [True, True, False],
}
PATCHES = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(values) for name, values in CONFIGS.items()}
)
MATCHES = st.sampled_from([*TAGS, ["tag", "Glob", "x*"]])


class QueueRecords(QueueMachine):
    """The calls of writers, and changes of configuration."""

    @initialize(patch=PATCHES)
    def begin(self, patch: dict[str, Any]) -> None:
        self.start()
        self.put("q", patch)

    @rule(name=NAMES, records=RECORDS, is_long=st.sampled_from([False, False, True]))
    def append(self, name: str, records: list[Record], is_long: bool) -> None:
        topic = self.topic(name)
        if topic is None:
            return
        records = [self._at_wall_time(record) for record in records]
        body = decode_append(json_bytes({"records": records}), None, LIMITS)
        if is_long:
            self.commit_all()
        has_room = topic.config.discard == "old" or self._has_room(topic, records)
        try:
            change = (
                decide_long(self.world.engine, topic, body, self.now)
                if is_long
                else append.decide(self.world.engine.table, name, body, self.now)
            )
        except TopicFull:
            assert not has_room
            return
        assert isinstance(change, Append)
        assert has_room
        self._submit_append(change, records)

    def _at_wall_time(self, record: Record) -> Record:
        if "deliver_in" not in record:
            return record
        return {"data": record["data"], "deliver_at": self.now.ts + record["deliver_in"]}

    def _submit_append(self, change: Append, records: list[Record]) -> None:
        topic_id, now = change.topic.id, self.now
        logged = change.topic.config.durability != "ephemeral"
        if not logged:
            self.kept_in_memory.add(topic_id)
        jobs = []
        for seq, record in enumerate(records, change.first_seq):
            shown = _shown(seq, change.ts, record)
            due_ts = record.get("deliver_at", now.ts + record.get("delay_ms", 0))
            due_ts = due_ts if due_ts > now.ts else 0
            jobs.append(Job(seq, change.ts, _size(shown), shown, due_ts, logged))
        assert sum(job.size for job in jobs) == change.size
        held = [replace(job) for job in jobs]
        effect: Effect = lambda models: models[topic_id].append(held, now)  # noqa: E731
        self.submit(
            change,
            {FrameKind.APPEND: effect},
            lambda: self.models[topic_id].append(jobs, self.now),
        )
        reserved = reservation.decide(change.topic)
        if reserved is not None:
            self.submit(reserved, {})

    def _has_room(self, topic: Topic, records: list[Record]) -> bool:
        model, ts = self.models[topic.id], max(self.now.ts, topic.last_ts)
        pending = [
            waiting.change
            for waiting in self.world.pending
            if isinstance(waiting.change, Append) and waiting.change.topic is topic
        ]
        sizes = [
            _size(_shown(topic.next_seq + index, ts, record))
            for index, record in enumerate(records)
        ]
        count = len(model.jobs) + sum(change.count for change in pending) + len(records)
        size = model.bytes + sum(change.size for change in pending) + sum(sizes)
        config = topic.config
        return (not config.cap_records or count <= config.cap_records) and (
            not config.cap_bytes or size <= config.cap_bytes
        )

    @rule(name=NAMES, patch=PATCHES)
    def put(self, name: str, patch: dict[str, Any]) -> None:
        self.topic(name)
        if {"leases_durable", "durability"} & patch.keys() or any(
            isinstance(waiting.change, Append) and waiting.change.resident
            for waiting in self.world.pending
        ):
            self.commit_all()
        is_new = name not in self.world.engine.topics
        change = put_topic.decide(
            self.world.engine.table,
            name,
            decode_config(json_bytes({"type": "queue", **patch})),
            self.now,
        )
        topic, config = change.topic, change.topic.config
        if is_new:
            self.names[name] = topic.id
            self.models[topic.id] = QueueModel(name, config, config)
        self.models[topic.id].decided = config
        now = self.now

        def commit() -> None:
            model = self.models[topic.id]
            count = len(model.jobs)
            model.configure(config)
            if change.changes_limits:
                model.expire(now.ts)
            assert change.dropped == count - len(model.jobs)

        self.submit(change, {FrameKind.TOPIC: self.config_effect(topic, config)}, commit)
        if jobs_of(topic).unlogged is change:
            self.commit_all()
            self._log_leases(topic)

    def _log_leases(self, topic: Topic) -> None:
        """Log the leases that the log lacks, job by job."""
        jobs, model = jobs_of(topic), self.models[topic.id]
        reserved = [jobs for at, jobs in self.reserved if at == topic.id]
        rows = model.kept_rows(self.now, reserved, is_last=False)
        for seq in dict.fromkeys(jobs.listed()):
            change = lease_jobs.log_leases(topic, [seq], self.now)
            is_logged = rows[seq].state not in ("waiting", "dying")
            assert len(change.frames) == is_logged
            if is_logged:
                self.submit(change, {FrameKind.LEASE: _told_row(topic.id, rows[seq])})
        jobs.unlogged = None

    def config_effect(self, topic: Topic, config: TopicConfig) -> Effect:
        """Return the effect of replaying a TOPIC frame that is written now."""
        start = topic.start_seq

        def effect(models: Models) -> None:
            model = models.setdefault(topic.id, QueueModel(topic.name, config, config))
            model.cut(start)
            model.apply_config(config)

        return effect

    @rule(name=NAMES)
    def recheck_dead(self, name: str) -> None:
        """Make dead jobs claimable again, as the mover does after a change of the configuration."""
        topic = self.topic(name)
        if topic is not None:
            jobs_of(topic).recheck_dead()
            self.models[topic.id].recheck_dead()

    @rule(name=NAMES, if_empty=st.sampled_from([True, True, False]))
    def delete(self, name: str, if_empty: bool) -> None:
        topic = self.topic(name)
        try:
            change = delete_topic.decide(self.world.engine.table, name, if_empty, self.now)
        except TopicNotEmpty:
            assert topic is not None
            return
        if topic is None:
            assert change is None
            return
        assert change is not None
        del self.names[name]

        def drop(models: Models) -> None:
            del models[topic.id]

        self.submit(change, {FrameKind.TOPIC_DELETED: drop}, lambda: drop(self.models))

    @rule(name=NAMES, back=st.none() | st.integers(-2, 12), match=st.none() | MATCHES)
    def delete_records(self, name: str, back: int | None, match: Any) -> None:
        topic = self.topic(name)
        if topic is None or (back is None and match is None):
            return
        before = None if back is None else max(topic.head_seq - back, 0)
        selector = decode_delete(json_bytes({"before_seq": before, "match": match}))
        if selector.match is not None and delete_records.must_wait(self.world.engine.table, name):
            self.commit_all()
        rest: RemainingDelete | None = delete_records.remaining_delete(
            self.world.engine.table, name, selector.before_seq, selector.match
        )
        while rest is not None:
            rest = self._delete(rest)
            if rest is not None:
                self.commit_all()

    def _delete(self, rest: RemainingDelete) -> RemainingDelete | None:
        """Delete one slice and return the rest."""
        topic_id = rest.topic.id
        with patch.multiple(delete_records, **SMALL_SLICES):
            change = delete_records.decide(self.world.engine.table, rest, self.now)
        found = self.models[topic_id].matching(change.bound, rest.match)
        seqs = {seq for seq in found if seq >= rest.first}

        def effect(models: Models) -> None:
            model = models[topic_id]
            model.delete(seqs if rest.match is not None else model.matching(change.bound, None))

        self.submit(change, {FrameKind.DELETE: effect}, lambda: self.models[topic_id].delete(seqs))
        return change.rest


def _told_row(topic_id: int, row: Job) -> Effect:
    def effect(models: Models) -> None:
        if row.seq in models[topic_id].jobs:
            models[topic_id].jobs[row.seq] = replace(row)

    return effect


def _shown(seq: int, ts: int, record: Record) -> Record:
    tag = {"$tag": record["tag"]} if "tag" in record else {}
    return {"$seq": seq, "$ts": ts, **tag, "data": record["data"]}


def _size(shown: Record) -> int:
    return len(json_bytes(shown)) + 1
