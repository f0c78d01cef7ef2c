"""Dead letters: append first, delete second. Jobs that cannot be moved stay and are retried."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.feeds import OnDisk
from tests.support.moves import (
    FakePeers,
    claim,
    datas,
    exhaust,
    make_queue,
    records,
    run_log,
    wake,
    with_fake_peers,
)
from tests.support.shard import ShardHarness
from topics.actors.shard.context import clock
from topics.actors.shard.queues import dead_letters, mover
from topics.actors.shard.queues.dead_letters import RETRY_MAX_S, RETRY_MIN_S
from topics.engine.changes import lease_jobs
from topics.engine.moved_keys import copy_key
from topics.engine.now import Now
from topics.engine.queue import claims
from topics.engine.queue.claims import jobs_of
from topics.engine.removal import cut_to
from topics.engine.topic import Topic
from topics.errors import NotReady, TopicFull, TopicNotFound
from topics.formats.disk.frames import FrameKind

FULL = TopicFull("full")


def dead_and_failing(topic: Topic) -> tuple[list[int], list[int]]:
    return list(jobs_of(topic).dead), list(jobs_of(topic).dead_lettering)


def moved(topic: Topic) -> int:
    return jobs_of(topic).dead_lettered


def kinds(harness: ShardHarness) -> list[FrameKind]:
    return [FrameKind(frame.kind) for _, frame in sorted(harness.log.frames.items())]


async def move(harness: ShardHarness, queue: Topic) -> None:
    """Exhaust the jobs of a queue and let the shard and the log run."""
    exhaust(harness, queue)
    wake(harness, queue)
    await run_log(harness)


async def dying(harness: ShardHarness, *datas: Any, **config: Any) -> tuple[FakePeers, Topic]:
    """Return a queue whose exhausted jobs are being moved to a peer."""
    peers, queue = with_fake_peers(harness), make_queue(harness, "q", *datas, **config)
    await move(harness, queue)
    return peers, queue


# Contents of a copy


async def test_exhausted_jobs_are_moved_to_a_topic_that_is_created_for_them(
    harness: ShardHarness,
) -> None:
    queue = make_queue(harness, "q", "x", "y", max_deliveries=2)
    await move(harness, queue)
    assert [record["data"] for record in records(harness, "dead")] == ["x", "y"]
    assert (harness.seqs("q"), moved(queue)) == ([], 2)
    assert jobs_of(queue).counters(queue.count) == (0, 0, 2, 0)


async def test_a_copy_keeps_tag_data_and_meta_and_names_its_source(harness: ShardHarness) -> None:
    queue = make_queue(harness, "q")
    harness.append(
        "q", records=[{"data": {"n": 1}, "tag": "t", "meta": {"trace": "z"}}, {"data": 2}]
    )
    harness.synced()
    harness.answers()
    await move(harness, queue)
    first, second = records(harness, "dead")
    stamp = {"$dead_letter_from": "q", "$dead_letter_deliveries": 1}
    assert (first["data"], first["$tag"]) == ({"n": 1}, "t")
    assert first["meta"] == {"trace": "z", **stamp, "$dead_letter_src_seq": 1}
    assert (second["data"], second["meta"]) == (2, {**stamp, "$dead_letter_src_seq": 2})


@pytest.mark.parametrize(("auto_create", "create"), [(True, None), (False, False)])
async def test_each_copy_is_a_keyed_append_to_the_shard_of_the_dead_letter_topic(
    harness: ShardHarness, auto_create: bool, create: bool | None
) -> None:
    peers, queue = await dying(harness, "x", "y", dead_letter="dead7", auto_create=auto_create)
    (batch,) = peers.take()
    assert (batch.shard, batch.params.topic, batch.params.prefixes) == (7, "dead7", None)
    assert [request["idempotency_key"] for request in batch.requests] == [
        copy_key("dead_letter", "q", queue.epoch, seq) for seq in (1, 2)
    ]
    assert [request["create"] for request in batch.requests] == [create, create]


async def test_a_copy_may_exceed_the_limits_of_clients(harness: ShardHarness) -> None:
    """The stamp of a copy makes it longer than the source record."""
    meta = {f"k{number}": "x" * 240 for number in range(64)}
    queue = make_queue(harness, "q")
    harness.append("q", records=[{"data": "y" * (900 << 10), "meta": meta}])
    harness.synced()
    harness.answers()
    await move(harness, queue)
    (record,) = records(harness, "dead")
    assert record["meta"].items() >= meta.items()


# Order of the steps


async def test_a_move_is_logged_first_then_the_copy_is_appended_then_the_job_deleted(
    harness: ShardHarness,
) -> None:
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", "x")
    exhaust(harness, queue)
    before = len(kinds(harness))
    wake(harness, queue)
    await wait_all_tasks_blocked()
    assert kinds(harness)[before:] == [FrameKind.LEASE]
    assert not peers.unanswered
    harness.log.write()
    harness.advance()
    await wait_all_tasks_blocked()
    assert not peers.unanswered, "the frame is not synced yet"
    await run_log(harness)
    assert kinds(harness)[before:] == [FrameKind.LEASE], "the copy is not appended yet"
    assert (harness.seqs("q"), dead_and_failing(queue)) == ([1], ([], [1]))
    (batch,) = peers.take()
    batch.answer()
    assert moved(queue) == 0, "the delete is not written yet"
    await run_log(harness)
    assert kinds(harness)[before:] == [FrameKind.LEASE, FrameKind.DELETE]
    assert (harness.seqs("q"), moved(queue)) == ([], 1)


async def test_a_move_of_an_ephemeral_queue_writes_no_frame(harness: ShardHarness) -> None:
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", "x", durability="ephemeral")
    before = len(kinds(harness))
    await move(harness, queue)
    (batch,) = peers.take()
    batch.answer()
    await run_log(harness)
    assert (moved(queue), len(kinds(harness))) == (1, before)


async def test_batches_are_moved_one_after_another(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BATCH_JOBS", 2)
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", *range(5))
    exhaust(harness, queue)
    sizes = []
    for _ in range(3):
        wake(harness, queue)
        wake(harness, queue)
        await run_log(harness)
        (batch,) = peers.take()
        sizes.append(len(batch.requests))
        batch.answer()
        await run_log(harness)
    assert (sizes, moved(queue), peers.unanswered) == ([2, 2, 1], 5, [])


async def test_a_batch_is_limited_in_bytes(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "COPIES_BYTES", 150)
    peers, _ = await dying(harness, "x" * 60, "y" * 60, "z" * 60)
    assert [len(batch.requests) for batch in peers.take()] == [2]


async def test_a_shard_that_does_not_reply_stops_only_the_moves_to_its_topics(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MOVES_MAX", 1)
    peers = with_fake_peers(harness)
    targets = {"a": "dead1", "b": "dead1", "c": "dead2"}
    queues = {name: make_queue(harness, name, "x", dead_letter=to) for name, to in targets.items()}
    for queue in queues.values():
        await move(harness, queue)
    first, other = peers.take()
    assert (first.shard, other.shard) == (1, 2)
    first.answer()
    await run_log(harness)
    (next_batch,) = peers.take()
    assert next_batch.shard == 1
    next_batch.answer()
    await run_log(harness)
    assert [moved(queue) for queue in queues.values()] == [1, 1, 0]


# Jobs that cannot be moved


def reject_as_missing(batch: Any) -> None:
    batch.answer(TopicNotFound("dead"))


def reject_as_full(batch: Any) -> None:
    batch.answer(FULL)


def fail_as_disconnected(batch: Any) -> None:
    batch.fail(NotReady("away"))


@pytest.mark.parametrize(
    ("reject", "expected"),
    [
        (reject_as_missing, ([1], [])),
        (reject_as_full, ([1], [])),
        (fail_as_disconnected, ([], [1])),
    ],
)
async def test_a_rejected_job_stays_and_is_retried_after_a_pause(
    harness: ShardHarness,
    autojump_clock: MockClock,
    reject: Callable[[Any], None],
    expected: tuple[list[int], list[int]],
) -> None:
    peers, queue = await dying(harness, "x")
    with capture_logs() as logged:
        for wait_s in (RETRY_MIN_S, 2 * RETRY_MIN_S, 4 * RETRY_MIN_S):
            (batch,) = peers.take()
            reject(batch)
            await wait_all_tasks_blocked()
            assert (dead_and_failing(queue), harness.seqs("q")) == (expected, [1])
            wake(harness, queue)
            await trio.sleep(wait_s - 0.01)
            await run_log(harness)
            assert not peers.unanswered, "there is no retry before the pause has ended"
            await trio.sleep(0.02)
            await run_log(harness)
    assert [line["event"] for line in logged] == ["dead letters not moved"], (
        "the failure is logged once"
    )
    (batch,) = peers.take()
    batch.answer()
    await run_log(harness)
    assert moved(queue) == 1


async def test_a_batch_with_an_unknown_outcome_is_retried_first_and_separately(
    harness: ShardHarness, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of other copies would evict its keys from the target."""
    monkeypatch.setattr(dead_letters, "BATCH_JOBS", 3)
    monkeypatch.setattr(dead_letters, "MOVES_MAX", 1)
    peers = with_fake_peers(harness)
    queue, other = make_queue(harness, "q", *range(6)), make_queue(harness, "other", "x")
    for topic in (queue, other):
        await move(harness, topic)
    (batch,) = peers.take()
    batch.answer(None, FULL, NotReady("away"))
    await run_log(harness)
    assert dead_and_failing(queue) == ([4, 5, 6, 2], [3])
    frames = len(kinds(harness))
    for _ in range(2):
        await trio.sleep(RETRY_MAX_S + 0.01)
        await run_log(harness)
        (batch,) = peers.take()
        assert keys_of(batch) == [copy_key("dead_letter", "q", queue.epoch, 3)]
        batch.fail(NotReady("away"))
    assert len(kinds(harness)) == frames, "the retries write no frame"
    await trio.sleep(RETRY_MAX_S + 0.01)
    await run_log(harness)
    (batch,) = peers.take()
    batch.answer()
    found = []
    for _ in range(3):
        await run_log(harness)
        for batch in peers.take():
            found += [key.rstrip(".").rpartition(":")[2] for key in keys_of(batch)]
            batch.answer()
    assert found == ["1", "4", "5", "6", "2"], "the batch of the other queue is moved in between"


def keys_of(batch: Any) -> list[str]:
    return [request["idempotency_key"] for request in batch.requests]


@pytest.mark.parametrize("config", [{"ttl_ms": 10**9}, {"dead_letter": "dead2"}])
async def test_a_batch_with_an_unknown_outcome_is_retried_unless_its_rule_changes(
    harness: ShardHarness, autojump_clock: MockClock, config: dict[str, Any]
) -> None:
    peers, queue = await dying(harness, "x", dead_letter="dead1")
    peers.take()[0].fail(NotReady("away"))
    harness.put("q", **config)
    await run_log(harness)
    assert dead_and_failing(queue) == ([], [] if "dead_letter" in config else [1])
    assert not claim(harness, queue)
    wake(harness, queue)
    await trio.sleep(RETRY_MIN_S + 0.01)
    await run_log(harness)
    assert [batch.shard for batch in peers.take()] == [2 if "dead_letter" in config else 1]


async def test_a_backup_waits_until_the_outcome_of_a_batch_is_known(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    """The attempt that determines the outcome does not wait for the backup."""
    peers, queue = await dying(harness, "x", "y")
    moves, held = harness.loop.context.moves, list[bool]()
    peers.take()[0].answer(None, NotReady("away"))
    await run_log(harness)
    assert dead_and_failing(queue) == ([], [2])
    moves.hold(lambda: held.append(True))
    await run_log(harness)
    assert not held
    await trio.sleep(RETRY_MAX_S + 0.01)
    await run_log(harness)
    (batch,) = peers.take()
    batch.answer()
    await run_log(harness)
    assert (held, queue.count, moves._in_flight) == ([True], 0, 0)


@pytest.mark.parametrize("outcome", ["appended", "refused", "deleted", "another rule"])
async def test_a_backup_waits_for_a_batch_that_a_restart_has_found(
    tmp_path: Path,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
) -> None:
    """The backup waits from the start on. The first attempt cannot read the records."""
    harness = ShardHarness(tmp_path, nursery)
    peers, moves, held = with_fake_peers(harness), harness.loop.context.moves, list[bool]()
    queue = make_queue(harness, "q", "x")
    exhaust(harness, queue)
    lease_jobs.begin_dead_lettering(queue, 1, harness.loop.context.clock()).uncount_pending()
    assert dead_and_failing(queue) == ([], [1])

    def unreadable(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(claims, "dead", unreadable)
        await harness.loop.services.dead_letters.run()
        await wait_all_tasks_blocked()
    moves.hold(lambda: held.append(True))
    await run_log(harness)
    assert (held, peers.take()) == ([], [])
    await trio.sleep(RETRY_MAX_S + 0.01)
    await run_log(harness)
    (batch,) = peers.take()
    if outcome == "deleted":
        harness.delete("q")
    elif outcome == "another rule":
        harness.put("q", dead_letter=None)
    await run_log(harness)
    batch.answer(*[FULL] * (outcome != "appended"))
    await run_log(harness)
    assert (held, moves._in_flight) == ([True], 0)
    moves.release()


async def test_the_pause_between_attempts_is_bounded(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", "x")
    exhaust(harness, queue)
    wake(harness, queue)
    for _ in range(9):
        await run_log(harness)
        (batch,) = peers.take()
        batch.answer(FULL)
        await trio.sleep(RETRY_MAX_S + 0.01)
    await run_log(harness)
    assert len(peers.unanswered) == 1


async def test_the_jobs_of_a_batch_that_fit_are_moved_and_the_others_stay(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    harness.make("dead", cap_records=2, discard="reject")
    queue = make_queue(harness, "q", *range(4))
    await move(harness, queue)
    assert (datas(harness, "dead"), harness.seqs("q"), moved(queue)) == ([0, 1], [3, 4], 2)
    harness.put("dead", cap_records=9)
    await run_log(harness)
    harness.answers()
    await trio.sleep(RETRY_MIN_S + 0.01)
    await run_log(harness)
    assert (datas(harness, "dead"), harness.seqs("q"), moved(queue)) == ([0, 1, 2, 3], [], 4)


async def test_a_missing_dead_letter_topic_is_not_created_if_the_queue_forbids_it(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    queue = make_queue(harness, "q", "x", auto_create=False)
    await move(harness, queue)
    assert "dead" not in harness.engine.topics
    assert dead_and_failing(queue) == ([1], [])
    harness.make("dead", durability="ephemeral")
    await trio.sleep(RETRY_MIN_S + 0.01)
    await run_log(harness)
    assert (datas(harness, "dead"), moved(queue)) == (["x"], 1)


async def test_a_log_failure_before_the_copy_puts_the_jobs_back(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", "x")
    exhaust(harness, queue)
    wake(harness, queue)
    harness.failed(OSError(5, "broken"))
    assert dead_and_failing(queue) == ([1], [])
    await trio.sleep(3 * RETRY_MAX_S)
    assert not peers.unanswered, "no move begins after the log has failed"


async def test_a_log_failure_after_the_copy_keeps_the_batch(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    peers, queue = await dying(harness, "x")
    (batch,) = peers.take()
    batch.answer()
    harness.failed(OSError(5, "broken"))
    assert (dead_and_failing(queue), moved(queue), harness.seqs("q")) == (([], [1]), 0, [1])
    await trio.sleep(3 * RETRY_MAX_S)


async def test_records_that_are_temporarily_unreadable_are_retried(
    harness: ShardHarness, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", "x")
    exhaust(harness, queue)

    def dead(*_: object) -> Any:
        raise OSError(24, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(claims, "dead", dead)
        wake(harness, queue)
    await trio.sleep(RETRY_MIN_S + 0.01)
    await run_log(harness)
    assert len(peers.unanswered) == 1


# Changes during a move


async def test_a_changed_config_makes_dead_jobs_claimable(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    peers, notified = with_fake_peers(harness), list[Topic]()
    harness.loop.services.dead_letters._note_claimable = notified.append
    queue = make_queue(harness, "q", "x")
    await move(harness, queue)
    (batch,) = peers.take()
    batch.answer(FULL)
    harness.put("q", dead_letter=None)
    await run_log(harness)
    assert (dead_and_failing(queue), notified) == (([], []), [queue])
    assert claim(harness, queue) == [1]
    await trio.sleep(2 * RETRY_MAX_S)
    await run_log(harness)
    assert not peers.unanswered


async def test_a_config_changed_during_a_move_applies_when_the_jobs_are_rejected(
    harness: ShardHarness,
) -> None:
    peers, notified = with_fake_peers(harness), list[Topic]()
    harness.loop.services.dead_letters._note_claimable = notified.append
    queue = make_queue(harness, "q", "x", "y")
    await move(harness, queue)
    harness.put("q", max_deliveries=2)
    await run_log(harness)
    (batch,) = peers.take()
    batch.answer(FULL, None)
    await run_log(harness)
    assert (dead_and_failing(queue), moved(queue), notified[-1:]) == (([], []), 1, [queue])
    assert claim(harness, queue) == [1]


async def test_jobs_deleted_during_a_move_are_neither_copied_nor_counted(
    harness: ShardHarness,
) -> None:
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", *range(3))
    exhaust(harness, queue)
    wake(harness, queue)
    cut_to(queue, 2, harness.engine.store)  # As an eviction by age does
    await run_log(harness)
    (batch,) = peers.take()
    assert [request["records"][0]["data"] for request in batch.requests] == [1, 2]
    harness.delete_records("q", before_seq=3)
    await run_log(harness)
    batch.answer()
    await run_log(harness)
    assert (moved(queue), harness.engine.topic("q").count) == (1, 0)


@pytest.mark.parametrize("when", ["before the copy", "before the delete", "while it waits"])
async def test_a_queue_deleted_during_a_move_is_not_changed(
    harness: ShardHarness, autojump_clock: MockClock, when: str
) -> None:
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", "x")
    exhaust(harness, queue)
    wake(harness, queue)
    if when == "before the copy":
        harness.delete("q")
        await run_log(harness)
    else:
        await run_log(harness)
        (batch,) = peers.take()
        if when == "while it waits":
            batch.answer(FULL)
        harness.delete("q")
        await run_log(harness)
        if when == "before the delete":
            batch.answer()
    await run_log(harness)
    await trio.sleep(2 * RETRY_MAX_S)
    await run_log(harness)
    assert not peers.unanswered
    recreated = make_queue(harness, "q", "y")
    exhaust(harness, recreated)
    wake(harness, recreated)
    await run_log(harness)
    (batch,) = peers.take()
    assert batch.requests[0]["idempotency_key"] == copy_key("dead_letter", "q", recreated.epoch, 1)
    assert recreated.epoch != queue.epoch


async def test_no_frame_of_a_queue_follows_its_delete(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete that the log has rejected is retried at the end of an iteration."""
    peers, retries = with_fake_peers(harness), harness.loop.services.retries
    queue = make_queue(harness, "q", "x")
    exhaust(harness, queue)
    wake(harness, queue)
    monkeypatch.setattr(retries, "on_due", lambda: harness.delete("q"))
    retries.is_due = True
    await run_log(harness)
    assert kinds(harness)[-1] is FrameKind.TOPIC_DELETED
    assert not peers.unanswered


async def test_a_held_topic_is_not_changed(harness: ShardHarness) -> None:
    peers, context = with_fake_peers(harness), harness.loop.context
    queue = make_queue(harness, "q", "x")
    exhaust(harness, queue)
    context.held.hold("q")
    frames = len(kinds(harness))
    wake(harness, queue)
    await run_log(harness)
    assert (len(kinds(harness)), peers.unanswered) == (frames, [])
    context.release_topic("q")
    await run_log(harness)
    assert len(peers.unanswered) == 1


# Restarts


async def test_moves_that_a_restart_has_found_continue_at_the_start(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    harness = ShardHarness(tmp_path, nursery)
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", "x")
    make_queue(harness, "idle", "y")
    exhaust(harness, queue)
    await harness.loop.services.dead_letters.run()
    await run_log(harness)
    assert [batch.params.topic for batch in peers.take()] == ["dead"]


async def test_dead_jobs_of_a_queue_without_a_dead_letter_topic_are_claimable(
    harness: ShardHarness,
) -> None:
    """A restart may find such jobs from an earlier config."""
    queue = make_queue(harness, "q", "x")
    exhaust(harness, queue)
    harness.put("q", dead_letter=None)
    wake(harness, queue)
    await wait_all_tasks_blocked()
    assert dead_and_failing(queue) == ([], [])
    assert claim(harness, queue) == [1]
    await run_log(harness)


@pytest.mark.parametrize("cut", ["_append", "_delete"])
@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("window_ms", [120_000, 0])
@pytest.mark.parametrize("down_days", [0, 10])
async def test_a_crash_during_a_move_neither_loses_nor_duplicates_a_job(
    tmp_path: Path,
    nursery: trio.Nursery,
    cut: str,
    window_ms: int,
    down_days: int,
    is_stopped: bool,
) -> None:
    """The frame of the move is in the log, and the copies may be appended or not. One job is acked
    in the meantime.
    """
    first = OnDisk(tmp_path, nursery, now=clock())
    first.put("q", type="queue", max_deliveries=1, dead_letter="dead")
    first.put("dead", idempotency_window_ms=window_ms)
    await first.settled()
    first.append("q", "x", "y")
    await first.settled()
    reached: list[object] = []

    async def never_return(*found: object) -> None:
        reached.append(found)
        await trio.sleep_forever()

    patched = pytest.MonkeyPatch()
    patched.setattr(mover, cut, never_return)
    exhaust(first, first.engine.queue("q"))
    wake(first, first.engine.queue("q"))
    while not reached:
        await trio.lowlevel.checkpoint()
    patched.undo()
    await first.settled()
    first.delete_records("dead", before_seq=2)
    await first.settled()
    await first.end()
    if is_stopped:
        first.loop.services.sealing.write_last()

    now = clock()
    second = OnDisk(tmp_path, nursery, now=Now(now.ts + down_days * 86_400_000, now.ms))
    assert second.seqs("dead") == ([2] if cut == "_delete" else [])
    queue = second.engine.queue("q")
    assert dead_and_failing(queue) == ([], [1, 2])
    await second.loop.services.dead_letters.run()
    while queue.count:
        await trio.lowlevel.checkpoint()
    await second.settled()
    assert datas(second, "dead") == (["y"] if cut == "_delete" else ["x", "y"])
    assert moved(queue) == 2
    copy = records(second, "dead")[-1]
    assert copy["meta"]["$dead_letter_deliveries"] == 1
    await second.end()


async def test_a_stopping_shard_begins_no_further_batch(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BATCH_JOBS", 1)
    peers, queue = await dying(harness, "x", "y")
    harness.loop.context.is_stopping = True
    (batch,) = peers.take()
    batch.answer()
    await run_log(harness)
    assert (moved(queue), peers.unanswered) == (1, [])
