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
from tests.support.shard import Desk
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


def kinds(desk: Desk) -> list[FrameKind]:
    return [FrameKind(frame.kind) for _, frame in sorted(desk.log.frames.items())]


async def move(desk: Desk, queue: Topic) -> None:
    """Exhaust the jobs of a queue and let the shard and the log run."""
    exhaust(desk, queue)
    wake(desk, queue)
    await run_log(desk)


async def dying(desk: Desk, *datas: Any, **config: Any) -> tuple[FakePeers, Topic]:
    """Return a queue whose exhausted jobs are being moved to a peer."""
    peers, queue = with_fake_peers(desk), make_queue(desk, "q", *datas, **config)
    await move(desk, queue)
    return peers, queue


# Contents of a copy


async def test_exhausted_jobs_are_moved_to_a_topic_that_is_created_for_them(desk: Desk) -> None:
    queue = make_queue(desk, "q", "x", "y", max_deliveries=2)
    await move(desk, queue)
    assert [record["data"] for record in records(desk, "dead")] == ["x", "y"]
    assert (desk.seqs("q"), moved(queue)) == ([], 2)
    assert jobs_of(queue).counters(queue.count) == (0, 0, 2, 0)


async def test_a_copy_keeps_tag_data_and_meta_and_names_its_source(desk: Desk) -> None:
    queue = make_queue(desk, "q")
    desk.append("q", records=[{"data": {"n": 1}, "tag": "t", "meta": {"trace": "z"}}, {"data": 2}])
    desk.synced()
    desk.answers()
    await move(desk, queue)
    first, second = records(desk, "dead")
    stamp = {"$dead_letter_from": "q", "$dead_letter_deliveries": 1}
    assert (first["data"], first["$tag"]) == ({"n": 1}, "t")
    assert first["meta"] == {"trace": "z", **stamp, "$dead_letter_src_seq": 1}
    assert (second["data"], second["meta"]) == (2, {**stamp, "$dead_letter_src_seq": 2})


@pytest.mark.parametrize(("auto_create", "create"), [(True, None), (False, False)])
async def test_each_copy_is_a_keyed_append_to_the_shard_of_the_dead_letter_topic(
    desk: Desk, auto_create: bool, create: bool | None
) -> None:
    peers, queue = await dying(desk, "x", "y", dead_letter="dead7", auto_create=auto_create)
    (asked,) = peers.take()
    assert (asked.shard, asked.params.topic, asked.params.prefixes) == (7, "dead7", None)
    assert [request["idempotency_key"] for request in asked.requests] == [
        copy_key("dead_letter", "q", queue.epoch, seq) for seq in (1, 2)
    ]
    assert [request["create"] for request in asked.requests] == [create, create]


async def test_a_copy_may_exceed_the_limits_of_clients(desk: Desk) -> None:
    """Its stamp makes it longer."""
    meta = {f"k{number}": "x" * 240 for number in range(64)}
    queue = make_queue(desk, "q")
    desk.append("q", records=[{"data": "y" * (900 << 10), "meta": meta}])
    desk.synced()
    desk.answers()
    await move(desk, queue)
    (record,) = records(desk, "dead")
    assert record["meta"].items() >= meta.items()


# Order of the steps


async def test_a_move_is_logged_first_then_the_copy_is_appended_then_the_job_deleted(
    desk: Desk,
) -> None:
    peers = with_fake_peers(desk)
    queue = make_queue(desk, "q", "x")
    exhaust(desk, queue)
    before = len(kinds(desk))
    wake(desk, queue)
    await wait_all_tasks_blocked()
    assert kinds(desk)[before:] == [FrameKind.LEASE]
    assert not peers.asked
    desk.log.write()
    desk.advance()
    await wait_all_tasks_blocked()
    assert not peers.asked, "the frame is not synced yet"
    await run_log(desk)
    assert kinds(desk)[before:] == [FrameKind.LEASE], "the copy is not there yet"
    assert (desk.seqs("q"), dead_and_failing(queue)) == ([1], ([], [1]))
    (asked,) = peers.take()
    asked.answer()
    assert moved(queue) == 0, "the delete is not written yet"
    await run_log(desk)
    assert kinds(desk)[before:] == [FrameKind.LEASE, FrameKind.DELETE]
    assert (desk.seqs("q"), moved(queue)) == ([], 1)


async def test_a_move_of_an_ephemeral_queue_writes_no_frame(desk: Desk) -> None:
    peers = with_fake_peers(desk)
    queue = make_queue(desk, "q", "x", durability="ephemeral")
    before = len(kinds(desk))
    await move(desk, queue)
    (asked,) = peers.take()
    asked.answer()
    await run_log(desk)
    assert (moved(queue), len(kinds(desk))) == (1, before)


async def test_batches_are_moved_one_after_another(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BATCH_JOBS", 2)
    peers = with_fake_peers(desk)
    queue = make_queue(desk, "q", *range(5))
    exhaust(desk, queue)
    sizes = []
    for _ in range(3):
        wake(desk, queue)
        wake(desk, queue)
        await run_log(desk)
        (asked,) = peers.take()
        sizes.append(len(asked.requests))
        asked.answer()
        await run_log(desk)
    assert (sizes, moved(queue), peers.asked) == ([2, 2, 1], 5, [])


async def test_a_batch_is_limited_in_bytes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "COPIES_BYTES", 150)
    peers, _ = await dying(desk, "x" * 60, "y" * 60, "z" * 60)
    assert [len(asked.requests) for asked in peers.take()] == [2]


async def test_a_shard_that_does_not_reply_stops_only_the_moves_to_its_topics(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MOVES_MAX", 1)
    peers = with_fake_peers(desk)
    targets = {"a": "dead1", "b": "dead1", "c": "dead2"}
    queues = {name: make_queue(desk, name, "x", dead_letter=to) for name, to in targets.items()}
    for queue in queues.values():
        await move(desk, queue)
    first, other = peers.take()
    assert (first.shard, other.shard) == (1, 2)
    first.answer()
    await run_log(desk)
    (next_one,) = peers.take()
    assert next_one.shard == 1
    next_one.answer()
    await run_log(desk)
    assert [moved(queue) for queue in queues.values()] == [1, 1, 0]


# Jobs that cannot be moved


def refuse_by_name(asked: Any) -> None:
    asked.answer(TopicNotFound("dead"))


def refuse_as_full(asked: Any) -> None:
    asked.answer(FULL)


def be_away(asked: Any) -> None:
    asked.fail(NotReady("away"))


@pytest.mark.parametrize(
    ("refuse", "stays"),
    [(refuse_by_name, ([1], [])), (refuse_as_full, ([1], [])), (be_away, ([], [1]))],
)
async def test_a_rejected_job_stays_and_is_retried_after_a_pause(
    desk: Desk,
    autojump_clock: MockClock,
    refuse: Callable[[Any], None],
    stays: tuple[list[int], list[int]],
) -> None:
    peers, queue = await dying(desk, "x")
    with capture_logs() as logged:
        for wait_s in (RETRY_MIN_S, 2 * RETRY_MIN_S, 4 * RETRY_MIN_S):
            (asked,) = peers.take()
            refuse(asked)
            await wait_all_tasks_blocked()
            assert (dead_and_failing(queue), desk.seqs("q")) == (stays, [1])
            wake(desk, queue)
            await trio.sleep(wait_s - 0.01)
            await run_log(desk)
            assert not peers.asked, "not before its time"
            await trio.sleep(0.02)
            await run_log(desk)
    assert [line["event"] for line in logged] == ["dead letters not moved"], "it is said once"
    (asked,) = peers.take()
    asked.answer()
    await run_log(desk)
    assert moved(queue) == 1


async def test_a_batch_with_an_unknown_outcome_is_retried_first_and_separately(
    desk: Desk, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of other copies would evict its keys from the target."""
    monkeypatch.setattr(dead_letters, "BATCH_JOBS", 3)
    monkeypatch.setattr(dead_letters, "MOVES_MAX", 1)
    peers = with_fake_peers(desk)
    queue, other = make_queue(desk, "q", *range(6)), make_queue(desk, "other", "x")
    for topic in (queue, other):
        await move(desk, topic)
    (asked,) = peers.take()
    asked.answer(None, FULL, NotReady("away"))
    await run_log(desk)
    assert dead_and_failing(queue) == ([4, 5, 6, 2], [3])
    frames = len(kinds(desk))
    for _ in range(2):
        await trio.sleep(RETRY_MAX_S + 0.01)
        await run_log(desk)
        (asked,) = peers.take()
        assert keys_of(asked) == [copy_key("dead_letter", "q", queue.epoch, 3)]
        asked.fail(NotReady("away"))
    assert len(kinds(desk)) == frames, "the log knows of them"
    await trio.sleep(RETRY_MAX_S + 0.01)
    await run_log(desk)
    (asked,) = peers.take()
    asked.answer()
    found = []
    for _ in range(3):
        await run_log(desk)
        for asked in peers.take():
            found += [key.rstrip(".").rpartition(":")[2] for key in keys_of(asked)]
            asked.answer()
    assert found == ["1", "4", "5", "6", "2"], "the other queue comes between"


def keys_of(asked: Any) -> list[str]:
    return [request["idempotency_key"] for request in asked.requests]


@pytest.mark.parametrize("config", [{"ttl_ms": 10**9}, {"dead_letter": "dead2"}])
async def test_a_batch_with_an_unknown_outcome_is_retried_unless_its_rule_changes(
    desk: Desk, autojump_clock: MockClock, config: dict[str, Any]
) -> None:
    peers, queue = await dying(desk, "x", dead_letter="dead1")
    peers.take()[0].fail(NotReady("away"))
    desk.put("q", **config)
    await run_log(desk)
    assert dead_and_failing(queue) == ([], [] if "dead_letter" in config else [1])
    assert not claim(desk, queue)
    wake(desk, queue)
    await trio.sleep(RETRY_MIN_S + 0.01)
    await run_log(desk)
    assert [asked.shard for asked in peers.take()] == [2 if "dead_letter" in config else 1]


async def test_a_backup_waits_until_the_outcome_of_a_batch_is_known(
    desk: Desk, autojump_clock: MockClock
) -> None:
    """The attempt that determines the outcome does not wait for the backup."""
    peers, queue = await dying(desk, "x", "y")
    moves, held = desk.loop.context.moves, list[bool]()
    peers.take()[0].answer(None, NotReady("away"))
    await run_log(desk)
    assert dead_and_failing(queue) == ([], [2])
    moves.hold(lambda: held.append(True))
    await run_log(desk)
    assert not held
    await trio.sleep(RETRY_MAX_S + 0.01)
    await run_log(desk)
    (asked,) = peers.take()
    asked.answer()
    await run_log(desk)
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
    desk = Desk(tmp_path, nursery)
    peers, moves, held = with_fake_peers(desk), desk.loop.context.moves, list[bool]()
    queue = make_queue(desk, "q", "x")
    exhaust(desk, queue)
    lease_jobs.begin_dead_lettering(queue, 1, desk.loop.context.clock()).uncount_pending()
    assert dead_and_failing(queue) == ([], [1])

    def unreadable(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(claims, "dead", unreadable)
        await desk.loop.services.dead_letters.run()
        await wait_all_tasks_blocked()
    moves.hold(lambda: held.append(True))
    await run_log(desk)
    assert (held, peers.take()) == ([], [])
    await trio.sleep(RETRY_MAX_S + 0.01)
    await run_log(desk)
    (asked,) = peers.take()
    if outcome == "deleted":
        desk.delete("q")
    elif outcome == "another rule":
        desk.put("q", dead_letter=None)
    await run_log(desk)
    asked.answer(*[FULL] * (outcome != "appended"))
    await run_log(desk)
    assert (held, moves._in_flight) == ([True], 0)
    moves.release()


async def test_the_pause_between_attempts_is_bounded(desk: Desk, autojump_clock: MockClock) -> None:
    peers = with_fake_peers(desk)
    queue = make_queue(desk, "q", "x")
    exhaust(desk, queue)
    wake(desk, queue)
    for _ in range(9):
        await run_log(desk)
        (asked,) = peers.take()
        asked.answer(FULL)
        await trio.sleep(RETRY_MAX_S + 0.01)
    await run_log(desk)
    assert len(peers.asked) == 1


async def test_the_jobs_of_a_batch_that_fit_are_moved_and_the_others_stay(
    desk: Desk, autojump_clock: MockClock
) -> None:
    desk.make("dead", cap_records=2, discard="reject")
    queue = make_queue(desk, "q", *range(4))
    await move(desk, queue)
    assert (datas(desk, "dead"), desk.seqs("q"), moved(queue)) == ([0, 1], [3, 4], 2)
    desk.put("dead", cap_records=9)
    await run_log(desk)
    desk.answers()
    await trio.sleep(RETRY_MIN_S + 0.01)
    await run_log(desk)
    assert (datas(desk, "dead"), desk.seqs("q"), moved(queue)) == ([0, 1, 2, 3], [], 4)


async def test_a_missing_dead_letter_topic_is_not_created_if_the_queue_forbids_it(
    desk: Desk, autojump_clock: MockClock
) -> None:
    queue = make_queue(desk, "q", "x", auto_create=False)
    await move(desk, queue)
    assert "dead" not in desk.engine.topics
    assert dead_and_failing(queue) == ([1], [])
    desk.make("dead", durability="ephemeral")
    await trio.sleep(RETRY_MIN_S + 0.01)
    await run_log(desk)
    assert (datas(desk, "dead"), moved(queue)) == (["x"], 1)


async def test_a_log_failure_before_the_copy_puts_the_jobs_back(
    desk: Desk, autojump_clock: MockClock
) -> None:
    peers = with_fake_peers(desk)
    queue = make_queue(desk, "q", "x")
    exhaust(desk, queue)
    wake(desk, queue)
    desk.failed(OSError(5, "broken"))
    assert dead_and_failing(queue) == ([1], [])
    await trio.sleep(3 * RETRY_MAX_S)
    assert not peers.asked, "the shard cannot write any more"


async def test_a_log_failure_after_the_copy_keeps_the_batch(
    desk: Desk, autojump_clock: MockClock
) -> None:
    peers, queue = await dying(desk, "x")
    (asked,) = peers.take()
    asked.answer()
    desk.failed(OSError(5, "broken"))
    assert (dead_and_failing(queue), moved(queue), desk.seqs("q")) == (([], [1]), 0, [1])
    await trio.sleep(3 * RETRY_MAX_S)


async def test_records_that_are_temporarily_unreadable_are_retried(
    desk: Desk, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = with_fake_peers(desk)
    queue = make_queue(desk, "q", "x")
    exhaust(desk, queue)

    def dead(*_: object) -> Any:
        raise OSError(24, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(claims, "dead", dead)
        wake(desk, queue)
    await trio.sleep(RETRY_MIN_S + 0.01)
    await run_log(desk)
    assert len(peers.asked) == 1


# Changes during a move


async def test_a_changed_config_makes_dead_jobs_claimable(
    desk: Desk, autojump_clock: MockClock
) -> None:
    peers, told = with_fake_peers(desk), list[Topic]()
    desk.loop.services.dead_letters._note_claimable = told.append
    queue = make_queue(desk, "q", "x")
    await move(desk, queue)
    (asked,) = peers.take()
    asked.answer(FULL)
    desk.put("q", dead_letter=None)
    await run_log(desk)
    assert (dead_and_failing(queue), told) == (([], []), [queue])
    assert claim(desk, queue) == [1]
    await trio.sleep(2 * RETRY_MAX_S)
    await run_log(desk)
    assert not peers.asked


async def test_a_config_changed_during_a_move_applies_when_the_jobs_are_rejected(
    desk: Desk,
) -> None:
    peers, told = with_fake_peers(desk), list[Topic]()
    desk.loop.services.dead_letters._note_claimable = told.append
    queue = make_queue(desk, "q", "x", "y")
    await move(desk, queue)
    desk.put("q", max_deliveries=2)
    await run_log(desk)
    (asked,) = peers.take()
    asked.answer(FULL, None)
    await run_log(desk)
    assert (dead_and_failing(queue), moved(queue), told[-1:]) == (([], []), 1, [queue])
    assert claim(desk, queue) == [1]


async def test_jobs_deleted_during_a_move_are_neither_copied_nor_counted(desk: Desk) -> None:
    peers = with_fake_peers(desk)
    queue = make_queue(desk, "q", *range(3))
    exhaust(desk, queue)
    wake(desk, queue)
    cut_to(queue, 2, desk.engine.store)  # As their age would
    await run_log(desk)
    (asked,) = peers.take()
    assert [request["records"][0]["data"] for request in asked.requests] == [1, 2]
    desk.delete_records("q", before_seq=3)
    await run_log(desk)
    asked.answer()
    await run_log(desk)
    assert (moved(queue), desk.engine.topic("q").count) == (1, 0)


@pytest.mark.parametrize("when", ["before the copy", "before the delete", "while it waits"])
async def test_a_queue_deleted_during_a_move_is_not_changed(
    desk: Desk, autojump_clock: MockClock, when: str
) -> None:
    peers = with_fake_peers(desk)
    queue = make_queue(desk, "q", "x")
    exhaust(desk, queue)
    wake(desk, queue)
    if when == "before the copy":
        desk.delete("q")
        await run_log(desk)
    else:
        await run_log(desk)
        (asked,) = peers.take()
        if when == "while it waits":
            asked.answer(FULL)
        desk.delete("q")
        await run_log(desk)
        if when == "before the delete":
            asked.answer()
    await run_log(desk)
    await trio.sleep(2 * RETRY_MAX_S)
    await run_log(desk)
    assert not peers.asked
    again = make_queue(desk, "q", "y")
    exhaust(desk, again)
    wake(desk, again)
    await run_log(desk)
    (asked,) = peers.take()
    assert asked.requests[0]["idempotency_key"] == copy_key("dead_letter", "q", again.epoch, 1)
    assert again.epoch != queue.epoch


async def test_no_frame_of_a_queue_follows_its_delete(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete that the log has rejected is retried at the end of an iteration."""
    peers, retries = with_fake_peers(desk), desk.loop.services.retries
    queue = make_queue(desk, "q", "x")
    exhaust(desk, queue)
    wake(desk, queue)
    monkeypatch.setattr(retries, "on_due", lambda: desk.delete("q"))
    retries.is_due = True
    await run_log(desk)
    assert kinds(desk)[-1] is FrameKind.TOPIC_DELETED
    assert not peers.asked


async def test_a_held_topic_is_not_changed(desk: Desk) -> None:
    peers, context = with_fake_peers(desk), desk.loop.context
    queue = make_queue(desk, "q", "x")
    exhaust(desk, queue)
    context.held.hold("q")
    frames = len(kinds(desk))
    wake(desk, queue)
    await run_log(desk)
    assert (len(kinds(desk)), peers.asked) == (frames, [])
    context.release_topic("q")
    await run_log(desk)
    assert len(peers.asked) == 1


# Restarts


async def test_moves_that_a_restart_has_found_continue_at_the_start(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    desk = Desk(tmp_path, nursery)
    peers = with_fake_peers(desk)
    queue = make_queue(desk, "q", "x")
    make_queue(desk, "idle", "y")
    exhaust(desk, queue)
    await desk.loop.services.dead_letters.run()
    await run_log(desk)
    assert [asked.params.topic for asked in peers.take()] == ["dead"]


async def test_dead_jobs_of_a_queue_without_a_dead_letter_topic_are_claimable(desk: Desk) -> None:
    """A restart may find such jobs from an earlier config."""
    queue = make_queue(desk, "q", "x")
    exhaust(desk, queue)
    desk.put("q", dead_letter=None)
    wake(desk, queue)
    await wait_all_tasks_blocked()
    assert dead_and_failing(queue) == ([], [])
    assert claim(desk, queue) == [1]
    await run_log(desk)


@pytest.mark.parametrize("cut", ["_append", "_delete"])
@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("window_ms", [120_000, 0])
@pytest.mark.parametrize("down_days", [0, 10])
async def test_a_crash_during_a_move_neither_loses_nor_doubles_a_job(
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

    async def be_killed(*found: object) -> None:
        reached.append(found)
        await trio.sleep_forever()

    patched = pytest.MonkeyPatch()
    patched.setattr(mover, cut, be_killed)
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
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BATCH_JOBS", 1)
    peers, queue = await dying(desk, "x", "y")
    desk.loop.context.is_stopping = True
    (asked,) = peers.take()
    asked.answer()
    await run_log(desk)
    assert (moved(queue), peers.asked) == (1, [])
