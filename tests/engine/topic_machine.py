"""Base of the topic machine: a world, the models of its topics, time and the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.engine.topic_model import TopicModel
from tests.engine.world import World
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.floor import FloorMoved
from topics.engine.now import Now
from topics.engine.topic import Topic
from topics.formats.disk.frames import FrameKind

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
Models = dict[int, TopicModel]
Flags = tuple[bool, bool, bool]
"""A reader wants tags, meta, data."""


class TopicMachine(RuleBasedStateMachine):
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
                    {
                        FrameKind.FLOOR: partial(
                            raise_floors, topic.id, model.start, dict(model.floors)
                        )
                    },
                    nothing,
                )
        return topic

    def _submit(
        self,
        change: Change,
        effects: dict[FrameKind, Callable[[Models], None]],
        commit: Callable[[], None],
    ) -> None:
        self.world.submit(change, effects, commit)

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


def raise_floors(topic_id: int, start: int, floors: dict[str, int], models: Models) -> None:
    model = models[topic_id]
    model.cut(start)
    model.floors = {cause: max(floor, floors[cause]) for cause, floor in model.floors.items()}


def nothing() -> None:
    pass
