"""Rules of the topic machine for changes: appends (also streamed ones), configs and deletes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.engine.shard_support import advance, decide_long
from tests.engine.topic_machine import (
    CONFIGS,
    MATCHES,
    NAMES,
    RECORDS,
    Models,
    TopicMachine,
    nothing,
    raise_floors,
)
from tests.engine.topic_model import Record, TopicModel, joined
from tests.support.limits import LIMITS
from topics.engine.changes import append, delete_records, delete_topic, put_topic, reservation
from topics.engine.changes.append import Append
from topics.engine.changes.delete_records import RemainingDelete
from topics.engine.topic import Topic
from topics.errors import TopicFull, TopicNotEmpty
from topics.formats.api.append_body import AppendBody, decode_append
from topics.formats.api.decoding import decode_config
from topics.formats.api.diff_body import decode_delete
from topics.formats.api.topic_config import TopicConfig, merge
from topics.formats.disk.frames import FrameKind
from topics.formats.json_text import json_bytes

SMALL_SLICES: dict[str, Any] = {
    "SLICE_RECORDS": 3,
    "SLICE_ENTRIES": 2,
    "SLICE_SEARCH_MAX": 70,
    "SLICE_JOBS": 3,
    "RUN_SHARE": 2,
    "WINDOW_MIN_SEQS": 4,
    "WINDOW_MAX_SEQS": 8,
}


class TopicChanges(TopicMachine):
    """Changes that clients request."""

    @rule(name=NAMES, records=RECORDS, node=st.none() | st.just("n"))
    def append(self, name: str, records: list[dict[str, Any]], node: str | None) -> None:
        if self._is_taken(name):
            return
        topic = self._fresh(name)
        decided = self._decide(
            topic,
            records,
            node,
            lambda body: append.decide(self.world.engine.table, name, body, self.now),
        )
        if decided is not None:
            _, submit = decided
            submit()

    @precondition(lambda self: self.held is None)
    @rule(name=NAMES, records=RECORDS, node=st.none() | st.just("n"))
    def begin_long(self, name: str, records: list[dict[str, Any]], node: str | None) -> None:
        """Decide a streamed append. While its records are written, only reads of the topic are
        served.
        """
        topic = self.world.engine.topics.get(name)
        if topic is None:
            return
        if topic.pending:
            self.commit_all()
        self._fresh(name)
        self.held = self._decide(
            topic, records, node, lambda body: decide_long(self.world.engine, topic, body, self.now)
        )

    def _is_taken(self, name: str) -> bool:
        """Return whether a streamed append makes other writes to this topic wait."""
        return self.held is not None and self.names.get(name) == self.held[0].topic.id

    @precondition(lambda self: self.held is not None)
    @rule()
    def submit_long(self) -> None:
        assert self.held is not None
        (_, submit), self.held = self.held, None
        submit()

    @precondition(lambda self: self.held is not None)
    @rule()
    def fail_long(self) -> None:
        """Undo the streamed append because the disk has no space for its records."""
        assert self.held is not None
        (change, _), self.held = self.held, None
        self.world.engine.undo(change)

    @rule(name=NAMES, records=RECORDS, ts=st.sampled_from([1, 51, 101]))
    def no_room_midway(self, name: str, records: list[dict[str, Any]], ts: int) -> None:
        """Fail the log during a streamed append, after readers saw records expire.

        The disk is full, so that the log cannot record the moved floor.
        """
        if self.held is None:
            self.begin_long(name, records, None)
        if self.held is not None:
            self.time_passes(ts)
            self._fresh(self.held[0].topic.name)
            if self.world.pending:
                self.fail()

    def _decide(
        self,
        topic: Topic | None,
        records: list[dict[str, Any]],
        node: str | None,
        decide: Callable[[AppendBody], Any],
    ) -> tuple[Append, Callable[[], None]] | None:
        """Return the change and the function that submits it, or None if the append is rejected."""
        self.number += 1
        body = decode_append(json_bytes({"records": records, "node": node}), None, LIMITS)
        config = topic.config if topic else TopicConfig()
        has_room = topic is None or self._has_room(topic, records, node)
        try:
            change = decide(body)
        except TopicFull:
            assert topic is not None
            assert config.discard == "reject"
            assert not has_room
            return None
        assert isinstance(change, Append)
        assert config.discard == "old" or has_room
        topic_id, name = change.topic.id, change.topic.name
        logged = config.durability != "ephemeral"
        if not logged:
            self.kept_in_memory.add(topic_id)
        made = [
            Record(shown["$seq"], change.ts, shown, len(json_bytes(shown)) + 1, logged)
            for shown in (
                _shown(change.first_seq + index, change.ts, record, node)
                for index, record in enumerate(records)
            )
        ]
        assert sum(record.size for record in made) == change.size
        if change.created:
            self.names[name] = topic_id
            self.models[topic_id] = TopicModel(name, config, change.topic.epoch)
        effects: dict[FrameKind, Callable[[Models], None]] = {
            FrameKind.APPEND: lambda models: models[topic_id].append(
                [replace(record, live=True) for record in made]
            ),
            FrameKind.TOPIC: lambda models: models.update(
                {topic_id: TopicModel(name, config, change.topic.epoch)}
            ),
        }

        def submit() -> None:
            self._submit(change, effects, lambda: self.models[topic_id].append(made))
            reserved = reservation.decide(change.topic)
            if reserved is not None:
                self._submit(reserved, {}, nothing)

        return change, submit

    def _has_room(self, topic: Topic, records: list[dict[str, Any]], node: str | None) -> bool:
        model, ts = self.models[topic.id], max(self.now.ts, topic.last_ts)
        pending = [
            waiting.change
            for waiting in self.world.pending
            if isinstance(waiting.change, Append) and waiting.change.topic is topic
        ]
        sizes = [
            len(json_bytes(_shown(topic.next_seq + index, ts, record, node))) + 1
            for index, record in enumerate(records)
        ]
        count = model.count + sum(change.count for change in pending) + len(records)
        size = model.bytes + sum(change.size for change in pending) + sum(sizes)
        config = topic.config
        return (not config.cap_records or count <= config.cap_records) and (
            not config.cap_bytes or size <= config.cap_bytes
        )

    @rule(name=NAMES, patch=CONFIGS)
    def put(self, name: str, patch: dict[str, Any]) -> None:
        if self._is_taken(name):
            return
        self._fresh(name)
        if any(
            isinstance(waiting.change, Append) and waiting.change.resident
            for waiting in self.world.pending
        ):
            self.commit_all()
        before = self.world.engine.topics.get(name)
        now, table, fields = self.now, self.world.engine.table, decode_config(json_bytes(patch))
        planned = put_topic.plan(table, name, fields, now)
        is_calm = not self.world.pending
        change = put_topic.decide(table, name, fields, now)
        assert (planned.config, planned.epoch is None) == (change.config, change.created)
        topic = change.topic
        topic_id, config = topic.id, topic.config
        if before is None:
            self.names[name] = topic_id
            self.models[topic_id] = TopicModel(name, config, topic.epoch)
        old = None if before is None else change.before
        assert config == merge(name, old, decode_config(json_bytes(patch)))

        def commit() -> None:
            model = self.models[topic_id]
            count = len(model.live)
            model.configure(config)
            if change.changes_limits:
                model.expire(now.ts)
            assert change.dropped == count - len(model.live)
            assert change.dropped == planned.dropped or not is_calm

        self._submit(change, {FrameKind.TOPIC: self.config_effect(topic, config)}, commit)

    def config_effect(self, topic: Topic, config: TopicConfig) -> Callable[[Models], None]:
        """Return the effect of replaying a TOPIC frame that is written now."""
        model = self.models[topic.id].copy()
        head, losses = topic.next_seq - 1, model.losses_at_restart

        def effect(models: Models) -> None:
            replayed = models.setdefault(topic.id, TopicModel(topic.name, config, topic.epoch))
            replayed.losses, replayed.head = list(losses), max(replayed.head, head)
            replayed.trimmed = joined([*replayed.trimmed, *model.trimmed])
            raise_floors(topic.id, model.start, model.floors, models)
            replayed.configure(config)

        return effect

    @rule(name=NAMES, count=st.integers(1, 5))
    def trim(self, name: str, count: int) -> None:
        """Skip seqs, as a router does for lost records of its source."""
        topic = None if self._is_taken(name) else self._fresh(name)
        if topic is None:
            return
        change = advance(topic, count, self.now)
        topic_id, skipped = topic.id, change.skipped
        assert skipped is not None, "some seqs are skipped"
        self._submit(
            change,
            {FrameKind.FORWARD: lambda models: models[topic_id].trim_again(*skipped)},
            lambda: self.models[topic_id].trim(*skipped),
        )

    @rule(name=NAMES, if_empty=st.booleans())
    def delete(self, name: str, if_empty: bool) -> None:
        if self._is_taken(name):
            return
        topic = self._fresh(name)
        try:
            change = delete_topic.decide(self.world.engine.table, name, if_empty, self.now)
        except TopicNotEmpty:
            assert topic is not None
            assert self.models[topic.id].count or topic.next_seq > topic.head_seq + 1
            return
        if topic is None:
            assert change is None
            return
        assert change is not None
        del self.names[name]
        topic_id = topic.id
        self._submit(
            change,
            {FrameKind.TOPIC_DELETED: lambda models: _drop(models, topic_id)},
            lambda: _drop(self.models, topic_id),
        )

    @rule(name=NAMES, back=st.none() | st.integers(-5, 30), match=st.none() | MATCHES)
    def delete_records(self, name: str, back: int | None, match: Any) -> None:
        if self._is_taken(name):
            return
        topic = self._fresh(name)
        if topic is None or (back is None and match is None):
            return
        before = None if back is None else max(topic.head_seq - back, 0)
        selector = decode_delete(json_bytes({"before_seq": before, "match": match}))
        if selector.match is not None and delete_records.must_wait(self.world.engine.table, name):
            self.commit_all()
        self._delete(
            delete_records.remaining_delete(
                self.world.engine.table, name, selector.before_seq, selector.match
            )
        )

    @precondition(lambda self: self.rests)
    @rule()
    def delete_more(self) -> None:
        """Continue a delete if its topic still exists."""
        topic, *_ = rest = self.rests.pop(0)
        if self.world.engine.by_id.get(topic.id) is not topic or self._is_taken(topic.name):
            return
        if rest.match is not None and delete_records.must_wait(self.world.engine.table, topic.name):
            self.commit_all()
        self._delete(rest)

    def _delete(self, rest: RemainingDelete) -> None:
        """Delete one slice. In the log and in segments it may remove fewer records than remain."""
        topic_id, model = rest.topic.id, self.models[rest.topic.id]
        with patch.multiple(delete_records, **SMALL_SLICES):
            change = delete_records.decide(self.world.engine.table, rest, self.now)
        assert change.rest is None or change.bound > rest.first, "each slice advances"
        seqs = {seq for seq in model.matching(change.bound, rest.match) if seq >= rest.first}
        assert rest.match is None or len(seqs) <= 4 * SMALL_SLICES["SLICE_RECORDS"]

        def effect(models: Models) -> None:
            found = models[topic_id].matching(change.bound, None)
            models[topic_id].delete(found if rest.match is None else seqs)

        def commit() -> None:
            assert change.deleted == self.models[topic_id].delete(seqs)
            if change.rest is not None:
                self.rests.append(change.rest)

        self._submit(change, {FrameKind.DELETE: effect}, commit)


def _shown(seq: int, ts: int, record: dict[str, Any], node: str | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"$seq": seq, "$ts": ts}
    if (stamped := record.get("node", node)) is not None:
        shown["$node"] = stamped
    if "tag" in record:
        shown["$tag"] = record["tag"]
    shown["data"] = record["data"]
    if "meta" in record:
        shown["meta"] = record["meta"]
    return shown


def _drop(models: Models, topic_id: int) -> None:
    del models[topic_id]
