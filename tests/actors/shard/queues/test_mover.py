"""Mover: append first, delete second. Records that cannot be moved stay, and the reason is
reported.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.support.moves import FakePeers, datas, run_log, with_fake_peers
from tests.support.shard import ShardHarness
from topics.actors.shard.queues import mover
from topics.actors.shard.queues.mover import MoveResult
from topics.engine.changes import finish_jobs
from topics.engine.moved_keys import copy_key
from topics.errors import NotReady, TopicFull, TopicNotFound, TopicsError
from topics.formats.api.queue_answers import RecordParts
from topics.formats.disk.frames import FrameKind

AWAY = NotReady("away")
FULL = TopicFull("full")


class Move:
    """A move of records of the topic ``q`` in a separate task, and its result."""

    def __init__(
        self,
        harness: ShardHarness,
        seqs: Sequence[int],
        *,
        to: str = "a",
        create: bool | None = None,
    ) -> None:
        self.harness, self.target, self.result = harness, to, MoveResult((), {})
        self.is_over = False
        self.topic = topic = harness.engine.topic("q")
        self.copies = [
            mover.render_copy("redrive", topic, seq, RecordParts(b"", b"%d" % seq, b""), create)
            for seq in seqs
        ]
        harness.loop.context.start(self.run)

    async def run(self) -> None:
        context, remove = self.harness.loop.context, finish_jobs.remove
        self.result = await mover.move(context, self.topic, self.target, self.copies, remove)
        self.is_over = True

    async def outcome(self) -> tuple[list[int], dict[int, type[TopicsError]]]:
        """Let the shard run. Return the moved seqs and the classes of the errors."""
        await run_log(self.harness)
        assert self.is_over
        failures = self.result.failures
        return [*self.result.seqs], {seq: type(failures[seq]) for seq in failures}


def source(harness: ShardHarness, count: int = 3) -> None:
    harness.make("q")
    harness.append("q", *range(1, count + 1))
    harness.synced()
    harness.answers()


async def moving(harness: ShardHarness, *seqs: int, to: str = "a") -> tuple[Move, FakePeers]:
    """Start a move whose copies are in flight to a peer."""
    source(harness)
    peers = with_fake_peers(harness)
    move = Move(harness, seqs, to=to)
    await run_log(harness)
    return move, peers


async def test_records_are_appended_first_and_deleted_second(harness: ShardHarness) -> None:
    move, peers = await moving(harness, 1, 3, to="a7")
    frames = len(harness.log.frames)
    (batch,) = peers.take()
    assert (batch.shard, batch.params.topic, batch.params.with_seqs) == (7, "a7", False)
    epoch = harness.engine.topic("q").epoch
    assert [request["idempotency_key"] for request in batch.requests] == [
        copy_key("redrive", "q", epoch, seq) for seq in (1, 3)
    ]
    batch.answer()
    await wait_all_tasks_blocked()
    assert [frame.kind for frame in [*harness.log.frames.values()][frames:]] == [FrameKind.DELETE]
    assert not move.is_over, "the delete is not written yet"
    assert await move.outcome() == ([1, 3], {})
    assert harness.seqs("q") == [2]


async def test_each_copy_is_appended_or_rejected_individually(harness: ShardHarness) -> None:
    source(harness)
    harness.make("a", cap_records=2, discard="reject")
    assert await Move(harness, [1, 2, 3]).outcome() == ([1, 2], {3: TopicFull})
    assert (datas(harness, "a"), harness.seqs("q")) == ([1, 2], [3])


async def refuse(*_: object) -> OSError:
    return OSError(5, "broken")


async def test_a_copy_that_the_target_already_contains_is_not_appended_again(
    harness: ShardHarness,
) -> None:
    """A crash or a failure of the log prevented the delete. The idempotency key identifies the
    copy.
    """
    source(harness)
    move = Move(harness, [2])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mover, "_delete", refuse)
        assert await move.outcome() == ([], {2: NotReady})
    assert await Move(harness, [2]).outcome() == ([2], {})
    assert (datas(harness, "a"), harness.seqs("q")) == ([2], [1, 3])


async def test_a_target_is_created_only_if_the_copy_allows_it(harness: ShardHarness) -> None:
    source(harness)
    assert await Move(harness, [1], create=False).outcome() == ([], {1: TopicNotFound})
    assert await Move(harness, [1]).outcome() == ([1], {})


async def test_without_a_reply_all_records_stay(harness: ShardHarness) -> None:
    move, peers = await moving(harness, 1, 2)
    peers.take()[0].fail(AWAY)
    assert await move.outcome() == ([], {1: NotReady, 2: NotReady})
    assert harness.seqs("q") == [1, 2, 3]


@pytest.mark.parametrize("is_broken_before", [False, True])
async def test_records_that_the_log_cannot_delete_stay(
    harness: ShardHarness, is_broken_before: bool
) -> None:
    """The target may contain copies of them, as after a missing reply."""
    move, peers = await moving(harness, 1, 2)
    if is_broken_before:
        harness.failed(OSError(5, "broken"))
    peers.take()[0].answer(FULL, None)
    await wait_all_tasks_blocked()
    if not is_broken_before:
        harness.failed(OSError(5, "broken"))
    assert await move.outcome() == ([], {1: TopicFull, 2: NotReady})


async def test_a_held_topic_is_not_changed(harness: ShardHarness) -> None:
    move, peers = await moving(harness, 1)
    context = harness.loop.context
    context.held.hold("q")
    peers.take()[0].answer()
    await run_log(harness)
    assert (harness.seqs("q"), move.is_over) == ([1, 2, 3], False)
    context.release_topic("q")
    assert await move.outcome() == ([1], {})
    assert harness.seqs("q") == [2, 3]


async def test_nothing_is_deleted_from_a_topic_that_is_deleted_during_the_move(
    harness: ShardHarness,
) -> None:
    move, peers = await moving(harness, 1)
    harness.delete("q")
    await run_log(harness)
    frames = len(harness.log.frames)
    peers.take()[0].answer()
    assert await move.outcome() == ([1], {})
    assert len(harness.log.frames) == frames
