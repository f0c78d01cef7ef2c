"""A state machine of the actions of clients and of the log, checked against a simple model of the
topics of a shard.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    by_hand,
    eager_merges,
    no_syncs,
    small_extents,
)
from topics.engine.changes import delete_records, delete_topic, put_topic
from topics.engine.changes.append import Append
from topics.engine.topic import Topic
from topics.formats.api.decoding import decode_config
from topics.formats.api.diff_body import TagMatch
from topics.formats.json_text import json_bytes
from topics.storage.wal.log_file import NoSpace, WalFile
from topics.storage.wal.log_progress import LogProgress

NAMES = st.sampled_from(["a", "b", "c"])
TAGS = st.sampled_from([None, "x", "xy", "z"])
MATCHES = [TagMatch("Eq", "x"), TagMatch("Glob", "x"), TagMatch("Eq", "z")]


@dataclass
class Model:
    """One incarnation of a topic, as committed."""

    name: str
    live: dict[int, tuple[Any, str | None, int]] = field(
        default_factory=dict
    )  # seq to data, tag, $ts
    head_seq: int = 0
    cap_records: int = 0
    ttl_ms: int = 0
    resident: set[int] = field(default_factory=set)
    floor: int = 1  # the first seq above all records that a cap or the age has removed
    ttl_floor: int = 1  # the `ttl_floor` of the topic when its age was last applied

    def expire(self, ts: int, ttl_floor: int) -> None:
        self.ttl_floor = ttl_floor
        for seq in [
            seq
            for seq, (_, _, written) in self.live.items()
            if self.ttl_ms and ts - written > self.ttl_ms
        ]:
            self.take(seq)

    def evict(self) -> None:
        while self.cap_records and len(self.live) > self.cap_records:
            self.take(min(self.live))

    def take(self, seq: int) -> None:
        del self.live[seq]
        self.floor = max(self.floor, seq + 1)

    @property
    def earliest_seq(self) -> int:
        return min(self.live, default=self.head_seq + 1)


class ClientMachine(RuleBasedStateMachine):
    """``models`` has the committed topics by id, ``names`` the decided topics by name."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        by_hand(self.patch)
        no_syncs(self.patch)
        eager_merges(self.patch)
        small_extents(self.patch, 5)
        self.folder = Path(tempfile.mkdtemp(prefix="sealing-"))
        self.models: dict[int, Model] = {}
        self.names: dict[str, int] = {}
        self.keys: dict[int, dict[str, tuple[int, int]]] = {}
        self.waiting: list[
            tuple[list[Any], Callable[[], None]]
        ] = []  # pending replies, and their changes of the model
        self.number = 0
        self.damaged: set[Path] = set()
        self.client = Sealer(self.folder / "data")

    def teardown(self) -> None:
        if hasattr(self, "client"):
            with contextlib.suppress(OSError):  # it may have been killed already
                self.client.kill()
            shutil.rmtree(self.folder)
            self.patch.undo()

    # Actions of clients

    @rule(
        name=NAMES,
        count=st.integers(1, 4),
        size=st.sampled_from([1, 30, 200]),
        tag=TAGS,
        key=st.booleans(),
        wait=st.booleans(),
    )
    def append(
        self, name: str, count: int, size: int, tag: str | None, key: bool, wait: bool
    ) -> None:
        self.number += 1
        used = f"k{self.number}" if key else None
        records = [
            {"data": self.number * 10 + index, "tag": tag, "meta": {"m": "x" * size}}
            for index in range(count)
        ]
        outcome, answer = self.client.start(name, key=used, records=records)
        assert isinstance(outcome, Append)
        topic = outcome.topic
        if outcome.created:
            assert name not in self.names
            self._made(topic)
        resident = topic.config.durability == "ephemeral"

        def commit() -> None:
            model = self.models[topic.id]
            for index, seq in enumerate(range(outcome.first_seq, outcome.last_seq + 1)):
                model.live[seq] = records[index]["data"], tag, outcome.ts
                if resident:
                    model.resident.add(seq)
            model.head_seq = outcome.last_seq
            model.evict()
            if used:
                self.keys[topic.id][used] = outcome.first_seq, count

        self._expect(topic, answer, commit, wait)

    def _made(self, topic: Topic) -> None:
        assert topic.id not in self.models
        self.models[topic.id] = Model(topic.name)
        self.keys[topic.id] = {}
        self.names[topic.name] = topic.id

    def _expect(
        self, topic: Topic, answer: list[Any], commit: Callable[[], None], wait: bool
    ) -> None:
        self.waiting.append((answer, commit))
        if wait:
            self._wait()
        self._settle()

    def _wait(self) -> None:
        self.client.commits.flush()
        self.client.wal.flush(sync=True)
        self.client.advance()
        self._settle()

    def _settle(self) -> None:
        """Apply the answered changes to the model, in the order of the decisions."""
        rest = []
        for answer, commit in self.waiting:
            if not answer:
                rest.append((answer, commit))
            elif isinstance(answer[0], LogProgress):
                commit()
        self.waiting = rest

    @rule(
        name=NAMES,
        cap=st.none() | st.sampled_from([0, 3, 8, 20]),
        ttl=st.none() | st.sampled_from([0, 40]),
        durability=st.none() | st.sampled_from(["disk", "disk", "fsync", "memory", "ephemeral"]),
        wait=st.booleans(),
    )
    def put(
        self, name: str, cap: int | None, ttl: int | None, durability: str | None, wait: bool
    ) -> None:
        self._expire(name)
        config = {"cap_records": cap, "ttl_ms": ttl, "durability": durability}
        config = {field: value for field, value in config.items() if value is not None}
        change = put_topic.decide(
            self.client.engine.table, name, decode_config(json_bytes(config)), self.client.now
        )
        topic, decided = change.topic, change.config
        if change.created:
            self._made(topic)

        def commit() -> None:
            model = self.models[topic.id]
            model.cap_records, model.ttl_ms = decided.cap_records, decided.ttl_ms
            model.evict()

        self._expect(topic, self.client.submit(change), commit, wait)

    @rule(
        name=NAMES,
        below=st.none() | st.integers(1, 60),
        match=st.none() | st.sampled_from(MATCHES),
        wait=st.booleans(),
    )
    def delete_records(
        self, name: str, below: int | None, match: TagMatch | None, wait: bool
    ) -> None:
        if name not in self.names or (below is None and match is None):
            return
        model = self.models[self.names[name]]
        change = delete_records.decide(
            self.client.engine.table,
            delete_records.remaining_delete(self.client.engine.table, name, below, match),
            self.client.now,
        )
        bound = model.head_seq + 1 if below is None else min(below, model.head_seq + 1)
        chosen = [
            seq for seq, (_, tag, _) in model.live.items() if seq < bound and matches(match, tag)
        ]

        def commit() -> None:
            live = [seq for seq in chosen if seq in model.live]
            assert change.deleted == len(live)
            for seq in live:
                del model.live[seq]

        self._expect(change.topic, self.client.submit(change), commit, wait)

    @rule(name=NAMES, wait=st.booleans())
    def delete_topic(self, name: str, wait: bool) -> None:
        if name not in self.names:
            return
        change = delete_topic.decide(self.client.engine.table, name, False, self.client.now)
        assert change is not None
        del self.names[name]
        topic = change.topic

        def commit() -> None:
            del self.models[topic.id]

        self._expect(topic, self.client.submit(change), commit, wait)

    @rule(ms=st.sampled_from([1, 20, 60]))
    def later(self, ms: int) -> None:
        self.client.later(ms)

    @rule(name=NAMES)
    def expire(self, name: str) -> None:
        self._expire(name)

    def _expire(self, name: str) -> None:
        if name not in self.names:
            return
        topic, model = self.client.engine.topics[name], self.models[self.names[name]]
        if topic.may_expire:
            change = self.client.engine.expire(topic, self.client.now)
            if change is not None:
                self.client.commits.submit(change, None)
        model.expire(self.client.now.ts, topic.ttl_floor)

    # Actions of the log

    @rule()
    def flush(self) -> None:
        self.client.commits.flush()

    @rule()
    def advance(self) -> None:
        self.client.advance()
        self._settle()

    @precondition(lambda self: self.waiting)
    @rule()
    def fail_without_space(self) -> None:
        """Fail to create the next log file. The pending changes are undone."""
        client = self.client
        client.advance()
        self._settle()
        if not client.commits:
            return
        before = client.wal.next_lsn

        def full(*_: object) -> None:
            raise NoSpace(errno.ENOSPC, "full")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WalFile, "create", full)
            while client.wal.next_lsn == before or not client.wal._new_file:
                outcome, answer = client.start("filler", records=[{"data": "x" * 900}])
                if outcome.created:
                    self._made(outcome.topic)
                self.waiting.append((answer, self._filler(outcome)))
            self._wait()
        self._settle()
        engine = client.engine
        self.names = {topic.name: topic.id for topic in engine.by_id.values()}
        for topic_id in [
            topic_id for topic_id, model in self.models.items() if topic_id not in engine.by_id
        ]:
            del self.models[topic_id]

    def _filler(self, outcome: Append) -> Callable[[], None]:
        def commit() -> None:
            model = self.models[outcome.topic.id]
            model.live[outcome.first_seq] = "x" * 900, None, outcome.ts
            model.head_seq = outcome.last_seq

        return commit


def matches(match: TagMatch | None, tag: str | None) -> bool:
    if match is None:
        return True
    return tag is not None and (
        tag == match.text if match.op == "Eq" else tag.startswith(match.text)
    )
