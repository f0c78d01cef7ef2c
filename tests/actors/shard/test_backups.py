"""Backups in shards: pins and holds, and what ends them. A backup waits for moves in flight, and
no move begins before all shards have cut.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.routing import RoutedShards
from topics.actors.shard import backups
from topics.actors.shard.sealing import sealing
from topics.errors import NotReady, Throttled, TopicsError
from topics.formats.disk.backup_archive import ArchiveFile
from topics.formats.wire import calls
from topics.formats.wire.calls import BackupParams
from topics.storage.data_dir import DataDirectory

WAIT_S = 30.0


@pytest.fixture
async def routed(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RoutedShards]:
    """Three shards: a, d, e are in the first, c, g, l in the second, b, f, k in the third."""
    monkeypatch.setattr(sealing, "ROUND_INTERVAL_S", 0.01)
    DataDirectory(tmp_path, shards=3).close()
    found = RoutedShards(tmp_path, nursery)
    yield found
    await found.close()


async def call_shard(shards: RoutedShards, call: Any, shard: int, number: int = 1) -> Any:
    with trio.fail_after(WAIT_S):
        return await shards.call(call, BackupParams(number), shard=shard)


async def call_all_shards(shards: RoutedShards, call: Any) -> list[Any]:
    found = [await call_shard(shards, call, shard) for shard in range(shards.count)]
    assert not any(isinstance(each, TopicsError) for each in found), found
    return found


async def until(is_so: Any) -> None:
    with trio.fail_after(WAIT_S):
        while not is_so():  # noqa: ASYNC110 - the actions of other tasks set no event
            await trio.sleep(0.002)


def is_pinned(shards: RoutedShards, shard: int) -> bool:
    return shards.loops[shard].services.sealing.reclaim.pin is not None


@pytest.mark.slow
async def test_a_backup_runs_from_its_begin_to_its_end(routed: RoutedShards) -> None:
    await routed.make("a")
    await routed.write("a", [{"data": 1}])
    begun = await call_all_shards(routed, calls.BACKUP_BEGIN)
    names = [ArchiveFile._make(row).name for one in begun for row in one.files]
    assert names[0] == "meta"
    assert [name.split("/")[:2] for name in names[1:]] == [
        ["checkpoint", f"{shard:02d}"] for shard in range(3)
    ]
    await call_all_shards(routed, calls.BACKUP_HOLD)
    cuts = await call_all_shards(routed, calls.BACKUP_CUT)
    log = routed.loops[0].context.wal
    assert cuts[0].lsn == log.next_lsn
    await routed.write("a", [{"data": 2}])  # Writes never stop
    found = await call_all_shards(routed, calls.BACKUP_FILES)
    (file,) = [ArchiveFile._make(row) for row in found[0].files]
    assert file.name.startswith("wal/00/")
    assert (file.offset, file.length) == (0, log.files_between(0, cuts[0].lsn)[0][1])
    assert file.size > file.length
    assert log.synced_lsn >= cuts[0].lsn
    await call_all_shards(routed, calls.BACKUP_END)
    assert not any(is_pinned(routed, shard) for shard in range(3))
    assert isinstance(await call_shard(routed, calls.BACKUP_END, 0), NotReady)


@pytest.mark.slow
async def test_an_incremental_backup_writes_no_checkpoint_if_there_is_one(
    routed: RoutedShards,
) -> None:
    await routed.make("a")
    checkpoints = routed.loops[0].services.sealing.checkpoints
    for number in (1, 2):
        with trio.fail_after(WAIT_S):
            begun = await routed.call(calls.BACKUP_BEGIN, BackupParams(number, True), shard=0)
        assert not isinstance(begun, TopicsError)
        assert checkpoints.written == 1
        names = [ArchiveFile._make(row).name for row in begun.files]
        assert sum(name.startswith("checkpoint/") for name in names) == 1
        await call_shard(routed, calls.BACKUP_END, 0, number)


@pytest.mark.slow
async def test_a_backup_waits_for_a_forward_in_flight(routed: RoutedShards) -> None:
    for topic in "ac":
        await routed.make(topic)
    await routed.route("a>c")
    await call_all_shards(routed, calls.BACKUP_BEGIN)
    routed.hold_forwards(0, 1)  # The request of shard 0 does not arrive
    await routed.write("a", [{"data": 1}])
    moves = routed.loops[0].context.moves
    await until(lambda: moves._in_flight)
    answers: list[Any] = []

    async def hold() -> None:
        answers.append(await call_shard(routed, calls.BACKUP_HOLD, 0))

    routed.nursery.start_soon(hold)
    await until(lambda: moves.is_held)
    assert not answers
    routed.deliver_all()
    await until(lambda: answers)
    assert not isinstance(answers[0], TopicsError)
    assert routed.topic("c").head_seq == 1  # The forward in flight has completed


@pytest.mark.slow
async def test_no_move_begins_while_moves_are_held(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "HOLD_MAX_S", WAIT_S)
    for topic in "acb":
        await routed.make(topic)
    await routed.make("d", type="queue", dead_letter="l", max_deliveries=1, auto_create=True)
    await routed.route("a>c")
    await routed.write("d", [{"data": "job"}])
    await call_all_shards(routed, calls.BACKUP_BEGIN)
    await call_all_shards(routed, calls.BACKUP_HOLD)
    await routed.write("a", [{"data": 1}])
    params = calls.TopicParams("d", 1)
    taken = await routed.call(calls.CLAIM, params, b'{"node":"w","lease_ms":1000}', shard=0)
    assert len(taken["claimed"]) == 1
    await routed.call(calls.NACK, params, b'{"node":"w","seqs":[1]}', shard=0)
    answers: list[Any] = []

    async def put() -> None:
        answers.append(await routed.put("b>a", "b", "e"))

    routed.nursery.start_soon(put)
    await routed.call(calls.CLAIM, params, b'{"node":"w"}', shard=0)  # Finds that the job is dead
    moves = routed.loops[0].context.moves
    await until(lambda: len(moves._waiting) == 3)  # The router, the dead letter, the new router
    await call_all_shards(routed, calls.BACKUP_CUT)
    assert routed.topic("c").head_seq == 0
    assert "l" not in routed.loops[1].context.engine.topics
    assert not answers
    await call_all_shards(routed, calls.BACKUP_FILES)
    await until(lambda: routed.topic("c").head_seq == 1)
    await until(lambda: "l" in routed.loops[1].context.engine.topics)
    await until(lambda: answers)
    assert not isinstance(answers[0], TopicsError)


@pytest.mark.slow
async def test_a_redrive_waits_for_a_backup_and_a_backup_for_a_redrive(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "HOLD_MAX_S", WAIT_S)
    for topic in "ac":
        await routed.make(topic)
    await routed.write("a", [{"data": 1}])
    await call_all_shards(routed, calls.BACKUP_BEGIN)
    await call_all_shards(routed, calls.BACKUP_HOLD)
    answers: list[Any] = []

    async def redrive() -> None:
        params = calls.RedriveParams("a", None, 1)
        answers.append(await routed.call(calls.REDRIVE, params, b'{"to":"c"}', shard=0))

    routed.nursery.start_soon(redrive)
    moves = routed.loops[0].context.moves
    await until(lambda: moves._waiting)
    assert routed.topic("c").head_seq == 0
    await call_all_shards(routed, calls.BACKUP_CUT)
    await call_all_shards(routed, calls.BACKUP_FILES)
    await until(lambda: answers)
    assert answers[0]["moved"] == 1
    assert not moves._in_flight


@pytest.mark.slow
async def test_a_hold_expires_and_a_later_cut_is_rejected(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "HOLD_MAX_S", 0.05)
    await call_all_shards(routed, calls.BACKUP_BEGIN)
    assert isinstance(await call_shard(routed, calls.BACKUP_CUT, 0), NotReady)  # Without a hold
    assert not isinstance(await call_shard(routed, calls.BACKUP_HOLD, 0), TopicsError)
    moves = routed.loops[0].context.moves
    await call_shard(routed, calls.BACKUP_CUT, 0)
    await until(lambda: not moves.is_held)
    assert isinstance(await call_shard(routed, calls.BACKUP_FILES, 0), NotReady)
    monkeypatch.setattr(backups, "HOLD_MAX_S", WAIT_S)
    await call_all_shards(routed, calls.BACKUP_HOLD)  # Another attempt
    await call_all_shards(routed, calls.BACKUP_CUT)
    await call_all_shards(routed, calls.BACKUP_FILES)


@pytest.mark.slow
async def test_a_hold_is_rejected_if_moves_do_not_end_in_time(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "HOLD_MAX_S", 0.05)
    await call_all_shards(routed, calls.BACKUP_BEGIN)
    moves = routed.loops[0].context.moves
    moves.enter()
    assert isinstance(await call_shard(routed, calls.BACKUP_HOLD, 0), NotReady)
    assert not moves.is_held
    moves.leave()


@pytest.mark.slow
async def test_only_one_backup_runs_at_a_time(routed: RoutedShards) -> None:
    await call_shard(routed, calls.BACKUP_BEGIN, 0)
    assert isinstance(await call_shard(routed, calls.BACKUP_BEGIN, 0, 2), Throttled)
    assert isinstance(await call_shard(routed, calls.BACKUP_END, 0, 2), NotReady)
    assert is_pinned(routed, 0)
    await call_shard(routed, calls.BACKUP_END, 0)
    assert not isinstance(await call_shard(routed, calls.BACKUP_BEGIN, 0, 2), TopicsError)


@pytest.mark.slow
async def test_pins_and_holds_end_with_the_session(routed: RoutedShards) -> None:
    for call in (calls.BACKUP_BEGIN, calls.BACKUP_HOLD):
        await call_all_shards(routed, call)
    assert is_pinned(routed, 0)
    assert routed.loops[0].context.moves.is_held
    routed.disconnect(0, routed.caller)
    assert not is_pinned(routed, 0)
    assert not routed.loops[0].context.moves.is_held
    assert is_pinned(routed, 2)  # The pin of another session


@pytest.mark.slow
async def test_a_broken_pin_is_reported_at_the_end_of_the_backup(routed: RoutedShards) -> None:
    await call_shard(routed, calls.BACKUP_BEGIN, 0)
    routed.loops[0].services.sealing.reclaim.break_pin()
    failure = await call_shard(routed, calls.BACKUP_END, 0)
    assert isinstance(failure, NotReady)
    assert "space" in failure.message
    assert not isinstance(await call_shard(routed, calls.BACKUP_BEGIN, 0, 2), TopicsError)


@pytest.mark.slow
async def test_a_backup_that_ends_before_it_has_begun_leaves_no_pin(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(sealing.Sealing, "_pin_requested", never)
    answers: list[Any] = []

    async def begin() -> None:
        answers.append(await routed.call(calls.BACKUP_BEGIN, BackupParams(1), shard=0))

    routed.nursery.start_soon(begin)
    await until(lambda: routed.loops[0].services.backups._backup is not None)
    await call_shard(routed, calls.BACKUP_END, 0)
    monkeypatch.undo()
    monkeypatch.setattr(sealing, "ROUND_INTERVAL_S", 0.01)
    assert not isinstance(await call_shard(routed, calls.BACKUP_BEGIN, 0, 2), TopicsError)
    await call_shard(routed, calls.BACKUP_END, 0, 2)
    assert not is_pinned(routed, 0)
