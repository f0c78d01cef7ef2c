"""Keys and names of a shard against a dict: appends, puts, deletes, commits in any order the log
allows, a log that fails, clocks that step. Records and restarts are in `test_topic_machine`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.shard_support import Desk
from topics.engine import shard
from topics.engine.changes.append import Append, InFlightDuplicate
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.put_topic import PutTopic
from topics.engine.changes.reservation import Reservation
from topics.engine.dedupe import DedupeEntry
from topics.engine.now import Now
from topics.engine.topic import Topic
from topics.errors import TopicExistsIncompatible, TopicNotEmpty, TopicNotFound

NAMES = st.sampled_from(["a", "b"])
KEYS = st.sampled_from(["k1", "k2", "k3"])
CLASSES = ["ephemeral", "memory", "disk", "fsync"]
DEFAULT_WINDOW_MS = 120_000


@dataclass
class Model:
    """One incarnation of a topic, as committed."""

    name: str
    head_seq: int = 0
    keys: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # first seq, count, at_ms
    window_ms: int = DEFAULT_WINDOW_MS
    created: bool = False
    deleted: bool = False


@settings(max_examples=200, stateful_step_count=60)
class Shard(RuleBasedStateMachine):
    """``models`` holds what is committed, by topic id; ``names``, ``windows`` and ``next_seqs``
    what is decided.
    """

    @initialize()
    def begin(self) -> None:
        self.desk = Desk()
        self.models: dict[int, Model] = {}
        self.names: dict[str, int] = {}
        self.windows: dict[int, int] = {}
        self.next_seqs: dict[int, int] = {}
        self.last_ts: dict[int, int] = {}
        self.pending_window: dict[int, int] = {}  # by id() of the change
        self.epochs: list[int] = []

    # What clients do

    @rule(
        name=NAMES,
        count=st.sampled_from([1, 2, 3, 2100]),
        key=st.none() | KEYS,
        create=st.none() | st.booleans(),
    )
    def append(self, name: str, count: int, key: str | None, create: bool | None) -> None:
        known = self._known_key(name, key)
        if name not in self.names and create is False:
            with pytest.raises(TopicNotFound):
                self.desk.append(name, *range(count), key=key, create=create)
            return
        outcome = self.desk.append(name, *range(count), key=key, create=create)
        if isinstance(known, Change):
            assert outcome == InFlightDuplicate(known)  # type: ignore[arg-type]
        elif known is not None:
            assert isinstance(outcome, DedupeEntry)
            assert (outcome.first_seq, outcome.record_count) == known
        else:
            assert isinstance(outcome, Append)
            self._expect_append(outcome, name, count, key)

    def _known_key(self, name: str, key: str | None) -> Change | tuple[int, int] | None:
        topic_id = self.names.get(name)
        if topic_id is None or key is None:
            return None
        for change in self.desk.pending:
            if isinstance(change, Append) and change.topic.id == topic_id and change.key == key:
                return change
        found = self.models[topic_id].keys.get(key)
        if found is None or self.desk.now.ms - found[2] >= self.windows[topic_id]:
            return None
        return found[:2]

    def _expect_append(self, change: Append, name: str, count: int, key: str | None) -> None:
        topic = change.topic
        assert change.created == (name not in self.names)
        if change.created:
            self._made(name, topic.id, topic.epoch)
        assert change.first_seq == self.next_seqs[topic.id]
        self.next_seqs[topic.id] += count
        self.last_ts[topic.id] = max(self.last_ts.get(topic.id, 0), self.desk.now.ts)
        assert change.ts == self.last_ts[topic.id]
        assert change.key == (key if self.windows[topic.id] else None)

    def _made(self, name: str, topic_id: int, epoch: int) -> None:
        assert topic_id not in self.models, "an id is never used again"
        assert all(epoch > earlier for earlier in self.epochs), "an epoch is never used again"
        self.epochs.append(epoch)
        self.models[topic_id] = Model(name)
        self.names[name] = topic_id
        self.windows[topic_id] = DEFAULT_WINDOW_MS
        self.next_seqs[topic_id] = 1

    @rule(
        name=NAMES,
        durability=st.none() | st.sampled_from(CLASSES),
        window_ms=st.none() | st.sampled_from([0, 50, 1000]),
    )
    def put(self, name: str, durability: str | None, window_ms: int | None) -> None:
        config: dict[str, Any] = {} if durability is None else {"durability": durability}
        config |= {} if window_ms is None else {"idempotency_window_ms": window_ms}
        change = self.desk.put(name, **config)
        assert isinstance(change, PutTopic)
        assert change.created == (name not in self.names)
        topic_id = change.topic.id
        if change.created:
            self._made(name, topic_id, change.topic.epoch)
        if window_ms is not None:
            if window_ms > self.windows[topic_id]:
                keys = self.models[topic_id].keys
                for key in [
                    key for key in keys if self.desk.now.ms - keys[key][2] >= self.windows[topic_id]
                ]:
                    del keys[key]
            self.windows[topic_id] = window_ms
        self.pending_window[id(change)] = self.windows[topic_id]

    @rule(name=NAMES)
    def put_another_type(self, name: str) -> None:
        if name in self.names:
            with pytest.raises(TopicExistsIncompatible):
                self.desk.put(name, type="queue", ttl_ms=1)

    @rule(name=NAMES, if_empty=st.booleans())
    def delete(self, name: str, if_empty: bool) -> None:
        topic_id = self.names.get(name)
        try:
            change = self.desk.delete(name, if_empty=if_empty)
        except TopicNotEmpty:
            assert if_empty
            assert topic_id is not None
            assert self.next_seqs[topic_id] > 1
            return
        assert (change is None) == (topic_id is None)
        if topic_id is not None:
            assert not if_empty or self.next_seqs[topic_id] == 1
            del self.names[name]

    # What time does

    @rule(ms=st.sampled_from([1, 30, 50, 1000, 200_000]))
    def wait(self, ms: int) -> None:
        self.desk.later(ms)

    @rule(ts=st.integers(-5000, 5000))
    def step_the_wall_clock(self, ts: int) -> None:
        self.desk.now = Now(self.desk.now.ts + ts, self.desk.now.ms)

    # What the log does

    @precondition(lambda self: self.desk.pending)
    @rule(data=st.data())
    def commit_one(self, data: st.DataObject) -> None:
        """What waits for a write only may come before what waits for a sync; all that is synced has
        been written.
        """
        written = next((change for change in self.desk.pending if not change.sync), None)
        first = self.desk.pending[0]
        chosen = data.draw(st.sampled_from([first] if written is None else [first, written]))
        for earlier in self.desk.pending[: self.desk.pending.index(chosen)]:
            assert isinstance(earlier, Reservation) or earlier.topic is not chosen.topic, (
                "changes of a topic keep their order"
            )
        self._commit(chosen)

    @rule()
    def commit_all(self) -> None:
        while self.desk.pending:
            self._commit(self.desk.pending[0])

    def _commit(self, change: Change) -> None:
        self.desk.pending.remove(change)
        self.desk.pending.insert(0, change)
        assert self.desk.commit_next() is change
        model = self.models[change.topic.id]
        if isinstance(change, Append):
            model.created = True
            assert change.resident is None or change.last_seq <= change.topic.reserved_seq, (
                "a restart gives its seqs to nobody"
            )
            model.head_seq = change.last_seq
            if change.key is not None and self.windows[change.topic.id]:
                model.keys[change.key] = (change.first_seq, change.count, self.desk.now.ms)
        elif isinstance(change, PutTopic):
            model.created = True
            model.window_ms = self.pending_window.pop(id(change))
        elif isinstance(change, DeleteTopic):
            model.deleted = True

    @precondition(lambda self: not self._a_window_is_shrinking())
    @rule()
    def fail(self) -> None:
        self.desk.undo()
        self.pending_window.clear()
        self.names = {
            model.name: topic_id
            for topic_id, model in self.models.items()
            if model.created and not model.deleted
        }
        for topic_id, model in self.models.items():
            self.next_seqs[topic_id], self.windows[topic_id] = model.head_seq + 1, model.window_ms

    def _a_window_is_shrinking(self) -> bool:
        """Keys that a shorter window has let go do not come back when it is undone: a key less, but
        only while the disk is full.
        """
        return any(
            isinstance(change, PutTopic)
            and change.before is not None
            and change.before.idempotency_window_ms > self.windows[change.topic.id]
            for change in self.desk.pending
        )

    # What is always true

    @invariant()
    def the_engine_is_the_model(self) -> None:
        engine = self.desk.engine
        assert {name: topic.id for name, topic in engine.topics.items()} == self.names
        assert set(engine.by_id) == set(self.names.values())
        for name, topic_id in self.names.items():
            topic, model = engine.topics[name], self.models[topic_id]
            assert (topic.head_seq, topic.next_seq) == (model.head_seq, self.next_seqs[topic_id])
            assert topic.config.idempotency_window_ms == self.windows[topic_id]
            assert not topic.deleted
            pending = [
                change
                for change in self.desk.pending
                if change.topic is topic and not isinstance(change, Reservation)
            ]
            assert topic.pending_bytes == sum(
                change.size for change in pending if isinstance(change, Append)
            )
            assert topic.pending_keys == {
                change.key: change
                for change in pending
                if isinstance(change, Append) and change.key
            }
            assert topic.reserved_seq <= topic.reserving_seq
            assert topic.reserving_seq <= max(
                [
                    topic.reserved_seq,
                    *(self._ceiling(change, topic) for change in self.desk.pending),
                ]
            )
            assert (topic.pending, topic.pending_sync) == (
                len(pending),
                sum(change.sync for change in pending),
            )

    @staticmethod
    def _ceiling(change: Change, topic: Topic) -> int:
        return (
            change.ceiling
            if isinstance(change, Append | Reservation) and change.topic is topic
            else 0
        )


TestShard = pytest.mark.slow(Shard.TestCase)


def test_keys_of_idle_topics_are_swept_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "SWEEP_TOPICS", 4)
    monkeypatch.setattr(shard, "SWEEP_KEYS", 2)
    desk, names = Desk(), [f"t{number}" for number in range(10)]
    for name in names:
        desk.append(name, 1, key="a")
        desk.later(DEFAULT_WINDOW_MS // 2)
        desk.append(name, 2, key="b")
    desk.commit()
    assert desk.engine.sweep_keys(desk.now._replace(ms=0)) == []
    desk.later(2 * DEFAULT_WINDOW_MS)
    topics = [desk.engine.topic(name) for name in names]
    swept: list[Topic] = []
    while any(len(topic.dedupe) for topic in topics):
        some = desk.engine.sweep_keys(desk.now)
        assert len(some) <= 4
        swept += some
    assert {topic.name for topic in swept} == {*names}
    assert desk.engine.sweep_keys(desk.now) == []
