"""Charges of topics against the caps of the server: at least what they hold, and never above the
cap.

The state machine writes, configures, deletes, undoes and expires topics with and without their own
caps in any order, alongside another shard that holds an arbitrary amount. After each step it
compares the charges with counted values. No topic has more bytes than it is charged for, whichever
of its pending changes are committed. The count of the shard is the sum of the charges. A topic
without pending changes is charged for exactly its bytes, or at most for its own cap.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.engine.shard_support import EngineHarness, body
from tests.support.quota import Caps
from topics.engine.changes import append, put_topic
from topics.engine.changes.append import Append
from topics.engine.topic import Topic
from topics.errors import NotReady, Throttled, TopicFull, TopicNotFound, TopicsError
from topics.formats.api.topic_config import TopicConfigPatch


class Capped(Caps):
    """A shard of a server with caps."""

    def __init__(self, max_topics: int = 1000, max_bytes: int = 1 << 40) -> None:
        self.harness = EngineHarness()
        super().__init__(self.harness.engine, max_topics, max_bytes)

    def size(self, name: str) -> int:
        topic = self.harness.engine.topic(name)
        return topic.bytes + topic.pending_bytes


def refusal(call: Any, *args: Any, **fields: Any) -> dict[str, Any]:
    with pytest.raises(Throttled) as raised:
        call(*args, **fields)
    return raised.value.detail


def test_a_new_topic_takes_a_slot_and_a_committed_delete_frees_it() -> None:
    shard = Capped(max_topics=2)
    shard.harness.put("a")
    shard.harness.append("b", 1)
    detail = {"limit": "max_topics", "max": 2}
    assert refusal(shard.harness.put, "c") == refusal(shard.harness.append, "c", 1) == detail
    table, now = shard.harness.engine.table, shard.harness.now
    assert refusal(append.make_topic, table, "c", body(), now) == detail
    shard.harness.put("a", cap_records=5)
    shard.harness.append("b", 2)
    shard.harness.commit()
    shard.harness.delete("a")
    assert refusal(shard.harness.put, "c") == detail, "the delete may still fail"
    shard.harness.commit()
    shard.harness.put("c")
    assert sorted(shard.harness.engine.topics) == ["b", "c"]
    assert shard.topics.own == 2


def test_a_write_above_the_byte_cap_is_rejected_completely() -> None:
    shard = Capped(max_bytes=300)
    shard.harness.append("a", "x" * 100)
    shard.harness.commit()
    held, head = shard.held, shard.harness.engine.topic("a").next_seq
    detail = {"limit": "max_total_bytes", "max": 300}
    assert refusal(shard.harness.append, "a", 1, "x" * 300) == detail
    assert refusal(shard.harness.append, "new", 1, "x" * 300) == detail, "no topic is created"
    assert refusal(shard.harness.decide_long, "a", 1, "x" * 300) == detail
    assert (shard.held, shard.harness.engine.topic("a").next_seq) == (held, head)
    assert [*shard.harness.engine.topics] == ["a"]
    shard.harness.append("a", 2)


def test_a_full_topic_is_reported_before_a_full_server() -> None:
    shard = Capped(max_topics=1, max_bytes=100)
    shard.harness.put("a", cap_bytes=10, discard="reject")
    shard.harness.commit()
    for call in (shard.harness.append, shard.harness.decide_long):
        with pytest.raises(TopicFull):
            call("a", "x" * 200)
    with pytest.raises(TopicNotFound):
        shard.harness.append("b", 1, create=False)


def test_only_changes_that_need_no_capacity_succeed_while_another_shard_is_unknown() -> None:
    shard = Capped()
    shard.harness.append("a", "x" * 100, key="k")
    shard.harness.put("b", cap_bytes=80)
    shard.harness.append("b", "x" * 100)
    shard.harness.append("b", 1, 2)
    shard.harness.commit()
    charge = shard.harness.engine.topic("b").charge
    shard.replayed = 0.5
    with pytest.raises(NotReady) as raised:
        shard.harness.put("c")
    assert raised.value.detail == {"reason": "recovering", "replay_progress": 0.5}
    for name in "ca":
        with pytest.raises(NotReady):
            shard.harness.append(name, 2)
    assert shard.quota.bytes_left_for(shard.harness.engine.topic("a")) == 0
    shard.harness.append("a", "x" * 100, key="k")
    shard.harness.put("a", cap_records=9)
    shard.harness.delete_records("b", before_seq=9)
    shard.harness.commit()
    shard.harness.delete("b")
    shard.harness.commit()
    assert charge > 0
    assert shard.held == (1, shard.size("a"))


def test_a_streamed_append_reserves_bytes_when_it_creates_its_topic() -> None:
    shard = Capped(max_bytes=1000)
    create = partial(append.make_topic, shard.harness.engine.table)
    assert refusal(create, "a", body(), shard.harness.now, None, 1001)["limit"] == "max_total_bytes"
    assert shard.held == (0, 0)
    change = create("a", body(), shard.harness.now, None, 900)
    shard.harness.pending.append(change)
    shard.harness.commit()
    assert shard.held == (1, 900)
    refusal(shard.harness.append, "b", "x" * 100)
    write = shard.harness.decide_long("a", "x" * 200)
    assert shard.bytes.own == write.size
    shard.harness.engine.undo(write)
    shard.harness.engine.table.release_reserved_bytes(write.topic)
    assert shard.held == (1, 0)


def test_reserved_bytes_stay_reserved_when_a_longer_write_is_rejected() -> None:
    shard = Capped(max_bytes=1000)
    change = append.make_topic(
        shard.harness.engine.table, "a", body(), shard.harness.now, None, 500
    )
    shard.harness.pending.append(change)
    shard.harness.commit()
    shard.bytes.others = 480
    refusal(shard.harness.decide_long, "a", "x" * 600)
    assert shard.bytes.own == 500
    shard.harness.engine.table.release_reserved_bytes(change.topic)
    assert shard.bytes.own == 0


def test_a_slot_reserved_by_another_shard_is_available_above_the_cap() -> None:
    shard = Capped(max_topics=3)
    shard.topics.others = 3
    refusal(shard.harness.put, "a")
    engine, now = shard.harness.engine, shard.harness.now
    change = put_topic.decide(engine.table, "a", TopicConfigPatch(), now, has_slot=True)
    assert shard.topics.own == 1
    engine.undo(change)
    assert shard.topics.own == 0


def test_a_start_counts_the_existing_topics_and_bytes() -> None:
    harness = EngineHarness()
    harness.append("a", "x" * 30)
    harness.append("b", 1)
    harness.commit()
    caps = Caps(harness.engine)
    assert caps.held == (2, sum(topic.bytes for topic in harness.engine.topics.values()))
    harness.delete("a")
    harness.commit()
    assert caps.held == (1, harness.engine.topic("b").bytes)


def test_a_topic_may_take_the_free_bytes_unless_its_own_cap_evicts() -> None:
    shard = Capped(max_bytes=1000)
    shard.harness.put("free")
    shard.harness.put("small", cap_bytes=100)
    shard.harness.put("large", cap_bytes=5000)
    shard.bytes.others = 800
    topic = shard.harness.engine.topic
    assert shard.quota.bytes_left_for(topic("free")) == 200
    assert shard.quota.bytes_left_for(topic("small")) is None
    assert shard.quota.bytes_left_for(topic("large")) == 200
    assert not shard.quota.cap.is_nearly_full
    shard.bytes.others = 1100
    assert shard.quota.bytes_left_for(topic("free")) == 0
    assert shard.quota.cap.is_nearly_full


NAMES = st.sampled_from("ab")
SIZES = st.lists(st.sampled_from([1, 30, 90, 400]), min_size=1, max_size=3)
MAX_BYTES = 3000


class Charges(RuleBasedStateMachine):
    """The state machine that the module docstring describes."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = Capped(max_topics=2, max_bytes=MAX_BYTES)
        self.harness = self.shard.harness

    def attempt(self, call: Any, *args: Any, **fields: Any) -> None:
        """Make a call and check that a rejected call changes no charge."""
        before = self.shard.held
        try:
            call(*args, **fields)
        except TopicsError:
            assert self.shard.held == before

    @rule(name=NAMES, sizes=SIZES, key=st.sampled_from([None, "k"]))
    def append(self, name: str, sizes: list[int], key: str | None) -> None:
        self.attempt(self.harness.append, name, *["x" * size for size in sizes], key=key)

    @rule(name=NAMES, sizes=SIZES)
    def append_long(self, name: str, sizes: list[int]) -> None:
        topic = self.harness.engine.topics.get(name)
        if topic is not None and not topic.pending:
            self.attempt(lambda: self.harness.pending.append(self._long(name, sizes)))

    def _long(self, name: str, sizes: list[int]) -> Append:
        return self.harness.decide_long(name, *["x" * size for size in sizes])

    @rule(
        name=NAMES,
        cap_bytes=st.sampled_from([0, 100, 500, 1500]),
        cap_records=st.sampled_from([0, 3]),
        ttl_ms=st.sampled_from([0, 50]),
        discard=st.sampled_from(["old", "reject"]),
        durability=st.sampled_from(["disk", "fsync", "ephemeral"]),
    )
    def put(self, name: str, **config: Any) -> None:
        self.attempt(self.harness.put, name, **config)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.harness.delete(name)

    @rule(name=NAMES, back=st.integers(0, 3))
    def delete_records(self, name: str, back: int) -> None:
        topic = self.harness.engine.topics.get(name)
        if topic is not None:
            self.harness.delete_records(name, before_seq=max(topic.head_seq + 1 - back, 1))

    @rule(ms=st.sampled_from([10, 60]))
    def time(self, ms: int) -> None:
        self.harness.later(ms)
        for topic in [*self.harness.engine.topics.values()]:
            self.harness.engine.expire(topic, self.harness.now)

    @rule(size=st.sampled_from([0, 500, 2500, 4000]))
    def others_hold(self, size: int) -> None:
        if self.shard.bytes.own + size <= MAX_BYTES:
            self.shard.bytes.others = size

    @precondition(lambda self: self.harness.pending)
    @rule()
    def commit_one(self) -> None:
        self.harness.commit_next()

    @rule()
    def commit_all(self) -> None:
        self.harness.commit()

    @rule()
    def fail(self) -> None:
        self.harness.undo()

    @invariant()
    def the_cap_holds(self) -> None:
        assert self.shard.bytes.total() <= MAX_BYTES
        assert self.shard.topics.total() <= 2

    @invariant()
    def charges_equal_counted_values(self) -> None:
        topics = self._topics()
        assert self.shard.bytes.own == sum(topic.charge for topic in topics)
        assert self.shard.topics.own == len(topics)
        for topic in topics:
            cap_bytes = self._largest_cap(topic)
            # Bytes reserved up to a cap stay charged until a change without the cap is settled.
            most = max(topic.bytes, cap_bytes) + topic.pending_bytes
            assert topic.bytes <= topic.charge <= most
            if not topic.pending and not cap_bytes:
                assert topic.charge == topic.bytes

    @staticmethod
    def _largest_cap(topic: Topic) -> int:
        return max(topic.config.cap_bytes, topic.committed.cap_bytes)

    def _topics(self) -> list[Topic]:
        """Return the existing topics, and the deleted topics whose delete is not committed."""
        pending = {change.topic.id: change.topic for change in self.harness.pending}
        leaving = [topic for topic in pending.values() if topic.deleted and topic.pending]
        return [*self.harness.engine.by_id.values(), *leaving]


TestCharges = Charges.TestCase
TestCharges.settings = settings(max_examples=60, stateful_step_count=40)
