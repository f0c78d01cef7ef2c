"""Changes of routers: the graph contains committed changes only, and a replay restores the same
graph.
"""

from __future__ import annotations

from dataclasses import replace

import cbor2
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.routing.test_graph import router
from tests.engine.shard_support import body_of, header_of
from topics.engine.changes import router_changes
from topics.engine.changes.replay_dispatch import replay_frame
from topics.engine.changes.router_changes import RouterChange
from topics.engine.now import Now
from topics.engine.replay import Replay
from topics.engine.routing.graph import Router
from topics.engine.shard import ShardEngine
from topics.engine.snapshot import restore_shard, snapshot_shard
from topics.engine.topic_table import TopicTable
from topics.formats.disk.frames import Frame, FrameKind

NOW = Now(1000, 5)


def play(table: TopicTable, frame: Frame) -> None:
    """Replay a frame with the header that it has in the log."""
    replay_frame(Replay(table), header_of(frame), body_of(frame), False)


def contents(table: TopicTable) -> tuple[dict[int, Router], list[str], int]:
    graph = table.routers
    assert {each.name: each for each in graph.by_id.values()} == graph.by_name
    return dict(graph.by_id), [*graph.names("", None)], graph.last_id


def test_a_router_change_enters_the_graph_at_its_commit() -> None:
    engine = ShardEngine()
    change = router_changes.put(engine.table, router(1, "ab"), NOW)
    assert change.sync
    assert [frame.kind for frame in change.frames] == [FrameKind.ROUTER_SET]
    assert not engine.routers.by_name
    change.commit(engine.table)
    assert engine.routers.by_name == {"a->b": router(1, "ab")}
    removal = router_changes.remove(engine.table, [1, 7], NOW)
    assert [frame.kind for frame in removal.frames] == [FrameKind.ROUTERS_GONE]
    assert engine.routers.by_name
    removal.commit(engine.table)
    assert not engine.routers.by_name
    assert engine.table.shard_topic.pending == 0


def test_an_undone_router_change_leaves_no_trace() -> None:
    engine = ShardEngine()
    router_changes.put(engine.table, router(1, "ab"), NOW).commit(engine.table)
    before = contents(engine.table)
    engine.undo(router_changes.put(engine.table, router(2, "cd", "a->b"), NOW))
    engine.undo(router_changes.remove(engine.table, [1], NOW))
    assert contents(engine.table) == before
    assert (engine.table.shard_topic.pending, engine.table.shard_topic.pending_sync) == (0, 0)


steps = st.lists(
    st.tuples(st.sampled_from(["new", "config", "ends", "gone"]), st.integers(0, 3)), max_size=12
)


def change_of(table: TopicTable, step: str, number: int) -> RouterChange | None:
    """Return a valid change of the router with this number, one of four, or None if there
    is none.
    """
    graph, name = table.routers, f"r{number}"
    now = graph.by_name.get(name)
    if step == "gone":
        return None if now is None else router_changes.remove(table, [now.id], NOW)
    if step == "config" and now is not None:
        flipped = not now.config.preserve_tag
        config = type(now.config)(source=now.source, dest=now.dest, preserve_tag=flipped)
        return router_changes.put(table, replace(now, config=config), NOW)
    if step == "ends" and now is not None:
        ends = "cd" if now.source == "a" else "ab"
        return router_changes.put(table, router(graph.last_id + 1, ends, name), NOW)
    return None if now else router_changes.put(table, router(graph.last_id + 1, "ab", name), NOW)


@given(steps)
def test_a_checkpoint_and_all_frames_from_an_earlier_lsn_restore_the_same_graph(
    changes: list[tuple[str, int]],
) -> None:
    """The checkpoint may already cover any number of the frames, and the log may end after any
    frame.
    """
    table, frames = TopicTable(), list[Frame]()
    snapshots, ends = [snapshot_shard(table)], [contents(table)]
    for step, number in changes:
        change = change_of(table, step, number)
        if change is not None:
            frames += change.frames
            change.commit(table)
            snapshots.append(cbor2.loads(cbor2.dumps(snapshot_shard(table))))
            ends.append(contents(table))
    for replay_from in range(len(frames) + 1):
        for known in range(replay_from, len(frames) + 1):
            for end in range(known, len(frames) + 1):
                again = TopicTable()
                restore_shard(again, snapshots[known])
                for frame in frames[replay_from:end]:
                    play(again, frame)
                assert contents(again) == ends[end]
