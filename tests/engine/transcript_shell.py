"""The transcript shell: one shard whose log is a list, driven by lines of text.

    put TOPIC FIELD=VALUE ...            create or configure a topic
    append TOPIC DATA ... FIELD=VALUE    append records; ``key``, ``node``, ``tag``, ``create``
    delete TOPIC before=SEQ tag=TAG      delete records; ``tag=PREFIX*`` matches a prefix
    drop TOPIC if_empty=true             delete the topic
    skip TOPIC COUNT                     skip seqs, as for lost records of a router's source
    read TOPIC FROM FIELD=VALUE          ``limit``, ``node``, ``epoch``, ``until``, ``tags``
    state TOPIC                          the state that ``GET`` returns
    wait MS                              advance both clocks
    hold                                 keep the following changes pending
    commit                               commit all pending changes and end ``hold``
    fail                                 undo all pending changes and end ``hold``
    seal                                 seal the current log into a segment
    kill | power                         restart after a SIGKILL, or after a power failure

Changes that are not held are committed as soon as they are decided, and synced if their class
requires it. `queue_shell` adds the commands of queues. Values are JSON or plain words.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from tests.engine.shard_support import advance
from tests.engine.world import World
from tests.support.limits import LIMITS
from topics.engine.changes import append, delete_records, delete_topic, put_topic, reservation
from topics.engine.changes.append import InFlightDuplicate
from topics.engine.changes.change import Change
from topics.engine.changes.delete_records import DeleteRecords
from topics.engine.dedupe import DedupeEntry
from topics.engine.now import Now
from topics.engine.page import Page
from topics.engine.reading import read
from topics.errors import TopicsError
from topics.formats.api.append_body import decode_append
from topics.formats.api.decoding import decode_config
from topics.formats.api.diff_body import Diff, decode_delete
from topics.formats.json_text import json_bytes

START = Now(ts=1_000_000, ms=0)


class Shell:
    """Execute transcript lines one after another."""

    def __init__(self) -> None:
        self.world, self.now = World(), START
        self._holds = False

    def answer(self, line: str) -> list[str]:
        """Execute a command and return the lines of its output."""
        command, *words = shlex.split(line)
        try:
            return list(self._commands()[command](*words))
        except TopicsError as error:
            return [f"error {error.code}"]

    def _commands(self) -> dict[str, Callable[..., Iterator[str]]]:
        return {
            "put": self._put,
            "append": self._append,
            "delete": self._delete,
            "drop": self._drop,
            "skip": self._skip,
            "read": self._read,
            "state": self._state,
            "wait": self._wait,
            "hold": self._hold,
            "commit": self._commit,
            "fail": self._fail,
            "seal": self._seal,
            "kill": lambda: self._start(power=False),
            "power": lambda: self._start(power=True),
        }

    # Changes

    def _put(self, name: str, *words: str) -> Iterator[str]:
        is_new = name not in self.world.engine.topics
        change = put_topic.decide(
            self.world.engine.table, name, decode_config(json_bytes(fields_of(words))), self.now
        )
        self.submit(change)
        yield "created" if is_new else "configured" if change.frames else "unchanged"

    def _append(self, name: str, *words: str) -> Iterator[str]:
        fields = fields_of(words)
        more: dict[str, Any] = {
            name: fields.pop(name) for name in ("tag", "delay_ms") if name in fields
        }
        if "deliver_in" in fields:
            more["deliver_at"] = self.now.ts + fields.pop("deliver_in")
        body: dict[str, Any] = {"records": [{"data": each, **more} for each in values_of(words)]}
        body["idempotency_key"] = fields.pop("key", None)
        self.expire(name)
        request = decode_append(json_bytes({**body, **fields}), None, LIMITS)
        outcome = append.decide(self.world.engine.table, name, request, self.now)
        if isinstance(outcome, InFlightDuplicate):
            yield f"follows {_seqs(outcome.leader.first_seq, outcome.leader.count)}"
        elif isinstance(outcome, DedupeEntry):
            yield f"deduplicated {_seqs(outcome.first_seq, outcome.record_count)}"
        else:
            yield _seqs(outcome.first_seq, outcome.count)
            self.submit(outcome)
            reserved = reservation.decide(outcome.topic)
            if reserved is not None:
                self.submit(reserved)

    def _delete(self, name: str, *words: str) -> Iterator[str]:
        fields = fields_of(words)
        body: dict[str, Any] = {}
        if "before" in fields:
            body["before_seq"] = fields["before"]
        if "tag" in fields:
            tag = str(fields["tag"])
            body["match"] = ["tag", "Glob" if tag.endswith("*") else "Eq", tag]
        selector = decode_delete(json_bytes(body))
        self.expire(name)
        change = delete_records.decide(
            self.world.engine.table,
            delete_records.remaining_delete(
                self.world.engine.table, name, selector.before_seq, selector.match
            ),
            self.now,
        )
        self.submit(change)
        yield "pending" if self._holds else f"deleted {change.deleted}"

    def _drop(self, name: str, *words: str) -> Iterator[str]:
        change = delete_topic.decide(
            self.world.engine.table, name, fields_of(words).get("if_empty", False), self.now
        )
        if change is None:
            yield "no such topic"
            return
        self.submit(change)
        yield "dropped"

    def _skip(self, name: str, count: str) -> Iterator[str]:
        self.expire(name)
        topic = self.world.engine.topic(name)
        change = advance(topic, int(count), self.now)
        self.submit(change)
        assert change.skipped is not None, "some seqs are skipped"
        yield _seqs(change.skipped.first, change.trimmed)

    def submit(self, change: Change) -> None:
        self.world.submit(change, {}, lambda: None)
        if not self._holds:
            self._commit_all()

    def _commit_all(self) -> None:
        world = self.world
        while world.pending:
            change = world.commit_next(self.now)
            if change.topic.floor_due and not change.topic.deleted:
                self.expire(change.topic.name)

    def expire(self, name: str) -> None:
        topic = self.world.engine.topics.get(name)
        if topic is not None and topic.may_expire:
            change = self.world.engine.expire(topic, self.now)
            if change is not None:
                self.submit(change)

    # Queries

    def _read(self, name: str, from_seq: str, *words: str) -> Iterator[str]:
        fields = fields_of(words)
        topic = self.world.engine.topic(name)
        self.expire(name)
        view = Diff(
            from_seq=int(from_seq),
            limit=fields.get("limit", 1000),
            nodes=frozenset([fields["node"]] if "node" in fields else ()),
            include_tags=fields.get("tags", False),
            epoch=topic.epoch - 1 if fields.get("epoch") == "earlier" else None,
            until_seq=fields.get("until"),
        )
        yield from _shown(read(topic, view, self.world))

    def _state(self, name: str) -> Iterator[str]:
        topic = self.world.engine.topic(name)
        self.expire(name)
        yield (
            f"count {topic.count}, earliest {topic.earliest_seq}, head {topic.head_seq}, "
            f"evict_floor {topic.evict_floor}"
        )

    # The environment of the shard

    def _wait(self, ms: str) -> Iterator[str]:
        self.now = Now(self.now.ts + int(ms), self.now.ms + int(ms))
        return iter(())

    def _hold(self) -> Iterator[str]:
        self._holds = True
        return iter(())

    def _commit(self) -> Iterator[str]:
        self._holds = False
        waiting = [pending.change for pending in self.world.pending]
        self._commit_all()
        yield f"committed {len(waiting)} changes"
        for change in waiting:
            if isinstance(change, DeleteRecords):
                yield f"deleted {change.deleted}"

    def _fail(self) -> Iterator[str]:
        self._holds = False
        world, lost = self.world, self.world.pending[::-1]
        if lost:
            frames = lost[-1].change.frames
            world.cut(lost[-1].end - sum(frame.length for frame in frames))
        world.pending.clear()
        for pending in lost:
            world.engine.undo(pending.change)
        yield f"undone {len(lost)} changes"

    def _seal(self) -> Iterator[str]:
        self.world.next_file()
        self.world.seal_next()
        return iter(())

    def _start(self, *, power: bool) -> Iterator[str]:
        """Restart and replay the surviving log."""
        world = self.world
        if power:
            world.cut(world.synced)
        for frame in world.restart(self.now, None, power=power):
            world.write(frame)
        world.synced = world.position
        self._holds = False
        return iter(())


def fields_of(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the words of the form NAME=VALUE."""
    pairs = (word.split("=", 1) for word in words if "=" in word)
    return {name: _value(text) for name, text in pairs}


def values_of(words: tuple[str, ...]) -> list[Any]:
    """Return the words that are plain values."""
    return [_value(word) for word in words if "=" not in word]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _seqs(first_seq: int, count: int) -> str:
    return f"seq {first_seq}" if count == 1 else f"seqs {first_seq} to {first_seq + count - 1}"


def _shown(page: Page) -> Iterator[str]:
    if page.tombstone is not None:
        gap = page.tombstone
        yield f"tombstone {gap.gap_from} to {gap.gap_to}, {gap.reason}"
    records = json.loads(b"[" + b",".join(page.chunks) + b"]")
    for record in records:
        extra = "".join(f" {name}={record[name]}" for name in ("$node", "$tag") if name in record)
        yield f"{record['$seq']}: {json.dumps(record['data'])}{extra}"
    yield f"next_from_seq {page.next_from_seq}{', caught up' if page.caught_up else ''}"
