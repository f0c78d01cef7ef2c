"""Topics that shrink, against a list of records: caps, age, deletes, classes, clocks, sealing,
checkpoints and restarts in any order.

``TOPIC_MACHINE_EXAMPLES=20000 python -m pytest tests/engine/test_topic_machine.py`` looks longer,
`topic_walk` goes further.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.shard_support import LIMITS, decide_long
from tests.engine.topic_model import Record, TopicModel
from tests.engine.world import World
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.floor import FloorMoved
from topics.engine.now import Now
from topics.engine.reading import read
from topics.engine.snapshot import snapshot_shard, snapshot_topic, topics_to_keep
from topics.engine.topic import Topic
from topics.errors import TopicFull, TopicNotEmpty
from topics.formats.api.append_body import AppendBody, decode_append
from topics.formats.api.decoding import decode_config
from topics.formats.api.delete_body import decode_delete
from topics.formats.api.diff_body import Diff
from topics.formats.api.topic_config import TopicConfig, merge
from topics.formats.disk.frames import FrameKind
from topics.formats.json_text import json_bytes

NAMES = st.sampled_from(["a", "a", "a", "b"])
TAGS = ["x", "xy", "xyz", 'é"', ""]
RECORDS = st.lists(
    st.fixed_dictionaries(
        {"data": st.sampled_from([1, "data" * 10])},
        optional={
            "tag": st.sampled_from(TAGS),
            "node": st.sampled_from(["n", "m"]),
            "meta": st.just({"k": 1}),
        },
    ),
    min_size=1,
    max_size=6,
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "cap_records": st.sampled_from([0, 0, 2, 8, 20]),
        "cap_bytes": st.sampled_from([0, 0, 400, 1500]),
        "ttl_ms": st.sampled_from([0, 0, 20, 100]),
        "discard": st.sampled_from(["old", "reject"]),
        "durability": st.sampled_from(["ephemeral", "disk", "disk", "fsync"]),
        "dedupe_node": st.booleans(),
    },
)
MATCHES = st.sampled_from(
    [
        *TAGS,
        *(["tag", "Eq", tag] for tag in TAGS),
        *(["tag", "Glob", f"{tag}*"] for tag in TAGS),
        ["tag", "Eq", "x*"],
    ]
)
EXAMPLES = int(os.environ.get("TOPIC_MACHINE_EXAMPLES", "60"))
Models = dict[int, TopicModel]
Flags = tuple[bool, bool, bool]
"""A reader wants tags, meta, data."""


class Retention(RuleBasedStateMachine):
    """``models`` holds what is committed, by topic id; ``names`` what is decided."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.now = Now(1_000_000, 0)
        self.models: Models = {}
        self.names: dict[str, int] = {}
        self.checkpoint: dict[str, Any] | None = None
        self.checkpointing: dict[str, Any] | None = None
        self.kept_in_memory: set[int] = set()
        self.untold: set[int] = (
            set()
        )  # topics of which a floor was shown, and the frame that tells of it was lost
        self.held: tuple[Append, Callable[[], None]] | None = (
            None  # a streamed append that is decided, and how it is submitted
        )
        self.number = 0

    # Ways in

    def _fresh(self, name: str) -> Topic | None:
        """The topic after what is too old has gone, as before every answer."""
        topic = self.world.engine.topics.get(name)
        if topic is None:
            return None
        if topic.is_perishable:
            self.models[topic.id].expire(self.now.ts)
            change = self.world.engine.expire(topic, self.now)
            if change is not None:
                model = self.models[topic.id]
                self._submit(
                    change,
                    {FrameKind.FLOOR: partial(_raise, topic.id, model.start, dict(model.floors))},
                    _nothing,
                )
        return topic

    def _submit(
        self,
        change: Change,
        effects: dict[FrameKind, Callable[[Models], None]],
        commit: Callable[[], None],
    ) -> None:
        self.world.submit(change, effects, commit)

    @rule(name=NAMES, records=RECORDS, node=st.none() | st.just("n"))
    def append(self, name: str, records: list[dict[str, Any]], node: str | None) -> None:
        if self._is_taken(name):
            return
        topic = self._fresh(name)
        decided = self._decide(
            topic, records, node, lambda body: self.world.engine.append(name, body, self.now)
        )
        if decided is not None:
            _, submit = decided
            submit()

    @precondition(lambda self: self.held is None)
    @rule(name=NAMES, records=RECORDS, node=st.none() | st.just("n"))
    def begin_long(self, name: str, records: list[dict[str, Any]], node: str | None) -> None:
        """Its records are being written: until then the topic is its own, but for its readers."""
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
        """What writes to this topic waits behind a streamed append."""
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
        """There is no room for its records."""
        assert self.held is not None
        (change, _), self.held = self.held, None
        self.world.engine.undo(change)

    @rule(name=NAMES, records=RECORDS, ts=st.sampled_from([1, 51, 101]))
    def no_room_midway(self, name: str, records: list[dict[str, Any]], ts: int) -> None:
        """A disk is full while a streamed append is under way, and what readers moved meanwhile
        cannot be told to the log.
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
        """The change and what submits it; None when it is refused."""
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
            reservation = self.world.engine.reserve(change.topic)
            if reservation is not None:
                self._submit(reservation, {}, _nothing)

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
        change = self.world.engine.put(name, decode_config(json_bytes(patch)), self.now)
        topic = change.topic
        topic_id, config = topic.id, topic.config
        if before is None:
            self.names[name] = topic_id
            self.models[topic_id] = TopicModel(name, config, topic.epoch)
        assert config == merge(name, before and change.before, decode_config(json_bytes(patch)))
        self._submit(
            change,
            {FrameKind.TOPIC: self._told(topic, config)},
            lambda: self.models[topic_id].configure(config),
        )

    def _told(self, topic: Topic, config: TopicConfig) -> Callable[[Models], None]:
        """What a replay makes of a TOPIC frame that is written now."""
        model = self.models[topic.id].copy()
        head, losses = topic.next_seq - 1, model.losses_at_restart

        def effect(models: Models) -> None:
            told = models.setdefault(topic.id, TopicModel(topic.name, config, topic.epoch))
            told.losses, told.head = list(losses), max(told.head, head)
            _raise(topic.id, model.start, model.floors, models)
            told.configure(config)

        return effect

    @rule(name=NAMES, if_empty=st.booleans())
    def delete(self, name: str, if_empty: bool) -> None:
        if self._is_taken(name):
            return
        topic = self._fresh(name)
        try:
            change = self.world.engine.delete(name, if_empty, self.now)
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
        asked = decode_delete(json_bytes({"before_seq": before, "match": match}))
        if asked.match is not None and self.world.engine.delete_must_wait(name):
            self.commit_all()
        topic_id, head = topic.id, topic.head_seq
        bound = head + 1 if before is None else min(before, head + 1)
        seqs = self.models[topic_id].matching(bound, asked.match)
        change = self.world.engine.delete_records(name, asked.before_seq, asked.match, self.now)

        def effect(models: Models) -> None:
            models[topic_id].delete(
                seqs if match is not None else models[topic_id].matching(bound, None)
            )

        def commit() -> None:
            assert change.deleted == self.models[topic_id].delete(seqs)

        self._submit(change, {FrameKind.DELETE: effect}, commit)

    @rule(
        name=NAMES,
        back=st.integers(0, 40),
        limit=st.sampled_from([1, 2, 5, 1000]),
        nodes=st.sets(st.sampled_from(["n", "m"])),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        epoch=st.sampled_from([None, None, 0, 1]),
        hidden=st.sampled_from([0, 0, 1, 3, 12]),
        until=st.sampled_from([None, None, 0, 1, 5, 20]),
    )
    def read(
        self,
        name: str,
        back: int,
        limit: int,
        nodes: set[str],
        flags: Flags,
        epoch: int | None,
        hidden: int,
        until: int | None,
    ) -> None:
        """``hidden``: so many seqs below the head the reader is not to know of. ``until``: so many
        below the head it does not want.
        """
        topic = self._fresh(name)
        if topic is not None:
            head = topic.head_seq
            until_seq = None if until is None else max(head - until, 0)
            bounds = max(head - hidden, 0), until_seq
            self._check_read(
                topic,
                max(head + 1 - back, 0),
                limit,
                nodes,
                flags,
                epoch,
                reasons=True,
                bounds=bounds,
            )

    def _check_read(
        self,
        topic: Topic,
        from_seq: int,
        limit: int,
        nodes: set[str],
        flags: Flags,
        epoch: int | None,
        *,
        reasons: bool,
        bounds: tuple[int | None, int | None] = (None, None),
    ) -> None:
        model = self.models[topic.id]
        asked_epoch = None if epoch is None else topic.epoch + epoch
        tags, meta, data = flags
        head, until = bounds
        asked = Diff(
            from_seq,
            limit,
            frozenset(nodes),
            tags,
            meta,
            epoch=asked_epoch,
            include_data=data,
            until_seq=until,
        )
        page = read(topic, asked, self.world, head_seq=head)
        recreated = epoch == 1 or (epoch is None and from_seq > model.head)
        head = model.head if head is None else head
        expected = model.read(
            from_seq, limit, nodes, recreated, flags, head, head if until is None else until
        )
        assert page.head_seq == head
        assert page.earliest_seq == min(model.start, head + 1)
        assert msgspec.json.decode(b"[%b]" % b",".join(map(bytes, page.pieces))) == expected.records
        assert (page.count, page.scanned) == (len(expected.records), expected.scanned)
        assert page.next_from_seq == expected.next_from_seq
        found = page.tombstone and (
            page.tombstone.gap_from,
            page.tombstone.gap_to,
            page.tombstone.reason,
        )
        assert (
            found == expected.tombstone
            if reasons
            else (found and found[:2]) == (expected.tombstone and expected.tombstone[:2])
        )

    # What time and the log do

    @rule(ts=st.sampled_from([1, 4, 6, 30, 51, -3, -60]))
    def time_passes(self, ts: int) -> None:
        self.now = Now(self.now.ts + ts, self.now.ms + abs(ts))

    @precondition(lambda self: self.world.pending)
    @rule()
    def commit_one(self) -> None:
        self.world.commit_next(self.now)

    @rule()
    def commit_all(self) -> None:
        while self.world.pending:
            self.world.commit_next(self.now)

    @precondition(lambda self: self.world.pending)
    @rule()
    def fail(self) -> None:
        """The log could not be written: nothing that waits has happened, but what was shown as
        gone.
        """
        engine, waiting = self.world.engine, self.world.pending
        self.untold |= {
            pending.change.topic.id for pending in waiting if isinstance(pending.change, FloorMoved)
        }
        self.world.cut(
            min(
                pending.end - sum(frame.length for frame in pending.change.frames)
                for pending in waiting
            )
        )
        for pending in reversed(waiting):
            engine.undo(pending.change)
        self.world.pending = []
        self.names = {topic.name: topic.id for topic in engine.topics.values()}
        self.models = {topic_id: self.models[topic_id] for topic_id in engine.by_id}
        self.checkpointing = None

    @rule()
    def next_file(self) -> None:
        self.commit_all()
        self.world.next_file()

    @precondition(lambda self: self.world.sealed < self.world.base or self.world.log)
    @rule(now=st.booleans())
    def seal(self, now: bool) -> None:
        if now or self.world.sealed == self.world.base:
            self.next_file()
        self.world.seal_next()

    # Checkpoints and restarts

    @precondition(lambda self: self.checkpointing is None)
    @rule()
    def begin_checkpoint(self) -> None:
        world = self.world
        self.checkpointing = {
            "replay_from": world.sealed, "extents": set(world.extents) - world.released, "topics": [],
            "steps": topics_to_keep(world.engine.table),
        }  # fmt: skip

    @precondition(lambda self: self.checkpointing is not None)
    @rule()
    def step_of_checkpoint(self) -> None:
        world, made = self.world, self.checkpointing
        assert made is not None
        topic = next(made["steps"], None)
        if topic is not None:
            made["topics"].append(snapshot_topic(topic, world.settled_position(topic)))
            return
        del made["steps"]
        self.commit_all()  # the log is synced up to here, so nothing of it can fail any more
        world.synced = world.position
        self.checkpoint = made | {
            "position": world.position,
            "engine": snapshot_shard(world.engine.table),
        }
        self.checkpointing = None

    @rule()
    def whole_checkpoint(self) -> None:
        if self.checkpointing is None:
            self.begin_checkpoint()
        while self.checkpointing is not None:
            self.step_of_checkpoint()

    @rule(
        power=st.booleans(),
        share=st.integers(0, 10),
        often=st.sampled_from([True, False, False]),
        old=st.sampled_from([True] + [False] * 4),
    )
    def restart(self, power: bool, share: int, often: bool, old: bool) -> None:
        """``share`` of what nobody was promised is still there. Without the ``checkpoint``, all of
        the log is replayed: ``old``.
        """
        if not often:
            return
        world = self.world
        written = (
            world.pending[0].end - sum(f.length for f in world.pending[0].change.frames)
            if world.pending
            else world.position
        )
        least = world.synced if power else max(world.synced, written)
        ends = [least, *(logged.header.end for logged in world.log if logged.header.end > least)]
        world.cut(ends[len(ends) * share // 11])
        if old:
            self.checkpoint = None
        frames = world.restart(self.now, self.checkpoint, power=power)
        self.checkpointing = self.held = None
        self._models_again(power)
        self._check_everything()
        for frame in frames:
            topic = world.engine.by_id[frame.topic_id]
            world.write(frame, self._told(topic, topic.config))
        world.synced = world.position

    def _check_everything(self) -> None:
        engine = self.world.engine
        self.names = {topic.name: topic.id for topic in engine.topics.values()}
        assert self.names == {model.name: topic_id for topic_id, model in self.models.items()}
        for topic_id, topic in engine.by_id.items():
            model = self.models[topic_id]
            if self.checkpoint is not None and topic_id in self.kept_in_memory | self.untold:
                # A checkpoint knows what went because of records in memory, and which of these were
                # deleted; the log may not. It knows floors that were shown and that the log could
                # not be told of, too.
                assert topic.start_seq >= model.start
                model.cut(topic.start_seq)
                model.losses, model.floors["loss"] = list(topic.losses), topic.loss_floor
                model.floors["cap"] = max(model.floors["cap"], topic.cap_floor)
                if topic_id in self.untold:
                    model.floors["ttl"] = max(model.floors["ttl"], topic.ttl_floor)
            near = {
                seq + off for record in model.records for seq in (record.seq,) for off in (-1, 0, 1)
            }
            for from_seq in sorted({0, topic.head_seq - 1, topic.head_seq, *near}):
                if 0 <= from_seq <= topic.head_seq:
                    self._check_read(
                        topic, from_seq, 1000, set(), (True, True, True), 0, reasons=False
                    )
            assert topic.evict_floor == max(model.floors.values())
            # A frame may tell of a floor a little later than it moved: another cause may then have
            # taken the same records.
            model.floors = {
                "cap": topic.cap_floor,
                "ttl": topic.ttl_floor,
                "loss": topic.loss_floor,
            }

    def _models_again(self, power: bool) -> None:
        models: Models = {}
        for logged in self.world.log:
            if logged.effect is not None:
                logged.effect(models)
        for topic_id, model in models.items():
            reserved = self._reserved(topic_id)
            durability = model.config.durability
            if (
                durability == "ephemeral" or (power and durability != "fsync")
            ) and model.head < reserved:
                model.lose(model.head + 1, reserved)
            model.settle()
        self.models = models

    def _reserved(self, topic_id: int) -> int:
        kinds = (FrameKind.TOPIC, FrameKind.SEQS_RESERVED)
        headers = [logged.header for logged in self.world.log]
        return max(
            header.first_seq
            for header in headers
            if header.topic_id == topic_id and header.kind in kinds
        )

    # What is always true

    @invariant()
    def the_engine_is_the_model(self) -> None:
        engine = self.world.engine
        assert {name: topic.id for name, topic in engine.topics.items()} == self.names
        for topic_id in self.names.values():
            topic, model = engine.by_id[topic_id], self.models[topic_id]
            assert (topic.head_seq, topic.count, topic.bytes) == (
                model.head,
                model.count,
                model.bytes,
            )
            assert topic.start_seq == topic.earliest_seq == model.start
            assert (topic.cap_floor, topic.ttl_floor, topic.loss_floor) == tuple(
                model.floors[cause] for cause in ("cap", "ttl", "loss")
            )
            assert topic.evict_floor <= topic.start_seq
            assert topic.committed == model.config
            assert list(topic.losses) == model.losses
            assert not topic.committed.cap_records or topic.count <= topic.committed.cap_records
            assert topic.index.totals(0, len(topic.index)) == (topic.count, topic.bytes)
            if self.world.pending == []:
                held = [self.held[0]] if self.held and self.held[0].topic is topic else []
                count, size = (
                    sum(change.count for change in held),
                    sum(change.size for change in held),
                )
                assert (topic.pending, topic.pending_bytes, topic.next_seq) == (
                    len(held),
                    size,
                    topic.head_seq + 1 + count,
                )


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


def _raise(topic_id: int, start: int, floors: dict[str, int], models: Models) -> None:
    model = models[topic_id]
    model.cut(start)
    model.floors = {cause: max(floor, floors[cause]) for cause, floor in model.floors.items()}


def _drop(models: Models, topic_id: int) -> None:
    del models[topic_id]


def _nothing() -> None:
    pass


@pytest.mark.slow
class TestRetention(Retention.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=EXAMPLES, stateful_step_count=50)
