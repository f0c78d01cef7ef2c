"""Base of the state machines of topics and of queues: a world, its log, checkpoints and
restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.engine.world import World
from topics.engine.changes.floor import FloorMoved
from topics.engine.now import Now
from topics.engine.snapshot import snapshot_shard, snapshot_topic, topic_items
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frames import Frame

# A few long runs, which are the same each time.
LONG = settings(
    stateful_step_count=200,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    suppress_health_check=[*HealthCheck],
)


class ShardMachine(RuleBasedStateMachine):
    """The base class. ``models`` holds the committed state by topic id, ``names`` the decided
    topics.
    """

    models: dict[int, Any]

    def start(self) -> None:
        """Set up the state before the first rule runs."""
        self.world = World()
        self.now = Now(1_000_000, 5_000)
        self.models = {}
        self.names: dict[str, int] = {}
        self.checkpoint: dict[str, Any] | None = None
        self.checkpointing: dict[str, Any] | None = None
        self.kept_in_memory: set[int] = set()
        self.unlogged: set[int] = (
            set()
        )  # Topics with a floor that readers saw and that the log lacks

    def config_effect(self, topic: Topic, config: TopicConfig) -> Callable[[Any], None]:
        """Return the effect of replaying a TOPIC frame that is written now."""
        raise NotImplementedError

    def restart_world(self, power: bool) -> list[Frame]:
        """Restart the world, and the models from its log. Return the frames that the start has to
        write.
        """
        raise NotImplementedError

    # The log

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
        """Undo all pending changes because the log cannot be written.

        Expired records that readers saw as removed stay removed.
        """
        world, waiting = self.world, self.world.pending
        self.unlogged |= {
            pending.change.topic.id for pending in waiting if isinstance(pending.change, FloorMoved)
        }
        world.cut(world.written)
        for pending in reversed(waiting):
            world.engine.undo(pending.change)
        world.pending = []
        self.names = {topic.name: topic.id for topic in world.engine.topics.values()}
        self.models = {topic_id: self.models[topic_id] for topic_id in world.engine.by_id}
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
        extents = set(world.extents) - world.released
        made: dict[str, Any] = {"replay_from": world.sealed, "extents": extents}
        made |= {"topics": [], "jobs": []}
        made["steps"] = self.keep_topics(made)
        self.checkpointing = made

    def keep_topics(self, made: dict[str, Any]) -> Iterator[Topic]:
        """Yield between the steps of a checkpoint. Other rules may run between two steps."""
        for topic in topic_items(self.world.engine.table):
            made["topics"].append(snapshot_topic(topic, self.world.settled_position(topic)))
            yield topic

    @precondition(lambda self: self.checkpointing is not None)
    @rule()
    def step_of_checkpoint(self) -> None:
        world, made = self.world, self.checkpointing
        assert made is not None
        if next(made["steps"], None) is not None:
            return
        del made["steps"]
        self.commit_all()  # The log is synced up to here, so none of these frames can fail
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
        is_wanted=st.sampled_from([True, False, False]),
        old=st.sampled_from([True] + [False] * 4),
    )
    def restart(self, power: bool, share: int, is_wanted: bool, old: bool) -> None:
        """Crash and restart.

        ``power``: it is a power failure, which loses everything that is not synced. ``share``:
        tenths of the unpromised frames that survive. ``old``: the checkpoint is lost and the
        complete log is replayed.
        """
        if not is_wanted:
            return
        world = self.world
        least = world.synced if power else max(world.synced, world.written)
        ends = [least, *(logged.header.end for logged in world.log if logged.header.end > least)]
        world.cut(ends[len(ends) * share // 11])
        if old:
            self.checkpoint = None
        self.checkpointing = None
        for frame in self.restart_world(power):
            topic = world.engine.by_id[frame.topic_id]
            world.write(frame, self.config_effect(topic, topic.config))
        world.synced = world.position
