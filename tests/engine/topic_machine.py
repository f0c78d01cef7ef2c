"""Base of the topic machine: a world, the models of its topics, time and the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.engine.shard_machine import ShardMachine
from tests.engine.topic_model import TopicModel
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_records import RemainingDelete
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
"""Whether the reader requests tags, meta and data."""


class TopicMachine(ShardMachine):
    """The base class. ``models`` holds the committed topics by id, ``names`` the decided topics."""

    models: Models

    @initialize()
    def begin(self) -> None:
        self.start()
        self.held: tuple[Append, Callable[[], None]] | None = (
            None  # A decided streamed append, and the function that submits it
        )
        self.rests: list[RemainingDelete] = []  # The rests of deletes in progress
        self.number = 0

    # Access to topics

    def _fresh(self, name: str) -> Topic | None:
        """Return the topic after its expired records are removed, as before every response."""
        topic = self.world.engine.topics.get(name)
        if topic is None:
            return None
        if topic.may_expire:
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

    # Time

    @rule(ts=st.sampled_from([1, 4, 6, 30, 51, -3, -60]))
    def time_passes(self, ts: int) -> None:
        self.now = Now(self.now.ts + ts, self.now.ms + abs(ts))


def raise_floors(topic_id: int, start: int, floors: dict[str, int], models: Models) -> None:
    model = models[topic_id]
    model.cut(start)
    model.floors = {cause: max(floor, floors[cause]) for cause, floor in model.floors.items()}


def nothing() -> None:
    pass
