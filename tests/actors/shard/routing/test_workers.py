"""Tests of workers: they copy records of a source to the dests of its routers, despite failures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import trio

from tests.support.routing import RoutedShards, SentCall
from topics.actors.shard.routing import pushes
from topics.actors.shard.routing import workers as workers_module
from topics.actors.shard.routing.router_worker import (
    RETRY_MAX_S,
    RouterSource,
    RouterWorker,
    WorkerState,
)
from topics.actors.shard.routing.workers import RouterWorkers
from topics.engine.routing.hops import HOPS_MAX
from topics.formats.disk.frames import FrameKind
from topics.formats.wire.calls import (
    DELETE_RECORDS,
    DIFF,
    FORWARD,
    ROUTER_SYNC,
    TOPIC_DELETE,
    TopicDeleteParams,
    TopicParams,
)


def datas(*values: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"data": value, **fields} for value in values]


def payloads(shards: RoutedShards) -> int:
    """Return the number of FORWARD frames that contain records."""
    return sum(len(frame.parts) == 2 for frame in shards.frames(FrameKind.FORWARD))


def dests_in(shards: RoutedShards, shard: int, count: int) -> list[str]:
    """Return names of topics that belong to one shard."""
    names = (f"dest{number}" for number in range(100))
    return [name for name in names if shards.shard_of(name) == shard][:count]


def seen_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list to which the pause before each retry is added, in seconds."""
    pauses: list[float] = []
    retry = RouterWorkers._retry

    def retried(self: RouterWorkers, source: RouterSource, workers: Iterable[RouterWorker]) -> None:
        waiting = list(workers)
        retry(self, source, waiting)
        pauses.extend(worker.retry_s for worker in waiting)

    monkeypatch.setattr(RouterWorkers, "_retry", retried)
    return pauses


async def test_records_are_forwarded_to_dests_on_all_shards_in_order(routed: RoutedShards) -> None:
    await routed.route("a>b", "a>c", "a>d")
    await routed.write("a", datas(1, 2))
    await routed.write("a", datas(3))
    await routed.settle()
    assert [routed.datas(name) for name in "bcd"] == [[1, 2, 3]] * 3
    assert routed.reached("a>b") == (3, 3)


async def test_forwards_are_not_sent_in_the_iteration_of_the_commit(routed: RoutedShards) -> None:
    await routed.route("a>d")
    await routed.settle()
    context = routed.loops[0].context
    iteration, committed_in, sent_in = 0, list[int](), list[int]()
    begin, on_commit = context.begin_iteration, context.commits.on_commit

    def begin_iteration() -> None:
        nonlocal iteration
        iteration += 1
        begin()

    def committed(change: Any) -> None:
        on_commit(change)
        committed_in.append(iteration)

    def sent_calls(found: SentCall) -> bool:
        if found.subject == FORWARD.subject:
            sent_in.append(iteration)
        return True

    context.begin_iteration, context.commits.on_commit = begin_iteration, committed  # type: ignore[method-assign]
    routed.on_call = sent_calls
    await routed.write("a", datas(1))
    await routed.until(lambda: sent_in)
    assert sent_in[0] > committed_in[0]


async def test_work_beyond_the_time_of_an_iteration_is_sent_in_the_next(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    await routed.route("a>b", "a>c", "d>f", "d>g")
    await routed.settle()
    monkeypatch.setattr(workers_module, "WORK_S", 0)
    context = routed.loops[0].context
    workers = routed.loops[0].services.workers
    await routed.write("a", datas(1))
    await routed.write("d", datas(2))
    await routed.settle()
    for name in "ad":
        context.begin_iteration()
        workers._wake(workers._sources[routed.topic(name).id])
    context.end_iteration()
    await routed.until(lambda: not workers._due)
    assert [routed.datas(name) for name in "bcfg"] == [[1], [1], [2], [2]]


async def routed_with_long_pauses(routed: RoutedShards, patch: pytest.MonkeyPatch) -> None:
    """Create the router a>b with a pause of half a second after each round."""
    await routed.route("a>b")
    await routed.settle()
    for name in ("PAUSE_MIN_S", "PAUSE_MAX_S"):
        patch.setattr(workers_module, name, 0.5)


@pytest.mark.slow
async def test_rounds_are_delayed_after_they_exceed_their_share_of_time(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    await routed_with_long_pauses(routed, monkeypatch)
    monkeypatch.setattr(workers_module, "CREDIT_MAX_S", 1.2)
    routed.loops[0].services.workers._free_at = 0.0
    took: list[float] = []
    for number in range(4):
        began = trio.current_time()
        await routed.write("a", datas(number))
        await routed.until(lambda: routed.topic("b").head_seq == len(took) + 1)
        took.append(trio.current_time() - began)
    assert max(took[:3]) < 0.2 < took[3], "three rounds use up the credit"


async def test_rounds_that_run_without_a_pause_do_not_lengthen_the_next_pause(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    await routed_with_long_pauses(routed, monkeypatch)
    monkeypatch.setattr(workers_module, "BATCH_RECORDS", 1)  # one round per record
    await routed.write("a", datas(*range(10)))
    await routed.settle()
    assert len(routed.sent()) == 10
    workers = routed.loops[0].services.workers
    assert workers._free_at <= trio.current_time() + workers_module.PAUSE_MAX_S


async def test_reads_and_deletes_of_a_dest_do_not_include_forwards_in_flight(
    routed: RoutedShards, nursery: trio.Nursery
) -> None:
    await routed.route("a>b")
    await routed.settle()
    routed.hold_forwards(0, 2)
    await routed.write("a", datas(1, tag="t"))
    await routed.until(routed.sent)
    params = TopicParams("b", 1)
    page = await routed.call(DIFF, params, b"{}", shard=2)
    assert (page["records"], page["head_seq"]) == ([], 0)
    erased = await routed.call(DELETE_RECORDS, params, b'{"match":"t"}', shard=2)
    assert erased["deleted"] == 0
    found: list[Any] = []

    async def delete() -> None:
        params = TopicDeleteParams("b", True, None, 1)
        found.append(await routed.call(TOPIC_DELETE, params, shard=2))

    nursery.start_soon(delete)
    held = routed.loops[2].context.held
    await routed.until(lambda: held.is_held("b"))
    routed.deliver_all()
    await routed.until(lambda: found)
    assert (found[0]["deleted"], found[0]["routers_removed"]) == (True, ["a>b"])
    assert routed.datas("a") == [1]


async def test_no_round_follows_a_reply_that_leaves_no_work(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    await routed.route("a>b", "a>c", "a>d")
    await routed.settle()
    rounds: list[object] = []
    work = RouterWorkers._work

    def counted(self: RouterWorkers) -> None:
        rounds.append(self)
        work(self)

    monkeypatch.setattr(RouterWorkers, "_work", counted)
    monkeypatch.setattr(workers_module, "WORK_S", 60.0)  # all work in one iteration
    await routed.write("a", datas(1))
    await routed.settle()
    await trio.sleep(0.02)
    assert len(rounds) == 1
    assert [routed.datas(name) for name in "bcd"] == [[1]] * 3


async def test_records_appended_during_a_forward_are_sent_in_the_next_one(
    routed: RoutedShards,
) -> None:
    await routed.route("a>b")
    await routed.settle()
    routed.hold_forwards(0, 2)
    await routed.write("a", datas(1))
    await routed.until(routed.sent)
    await routed.write("a", datas(2))
    await routed.write("a", datas(3))
    await trio.sleep(0.05)
    assert len(routed.sent()) == 1
    routed.deliver_all()
    await routed.settle()
    assert [(each.from_seq, each.to_seq) for each in routed.sent()] == [(0, 1), (1, 3)]
    assert routed.datas("b") == [1, 2, 3]


async def test_routers_with_the_same_options_share_messages_and_frames(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "TARGETS_MAX", 8)
    dests = dests_in(routed, 2, 18)
    await routed.route(*(f"a>{dest}" for dest in dests))
    await routed.route("a>b", preserve_tag=False)
    await routed.settle()
    await routed.write("a", datas(1, tag="x"))
    await routed.settle()
    assert sorted(len(each.targets) for each in routed.sent()) == [1, 2, 8, 8]
    assert len(routed.frames(FrameKind.FORWARD)) == 4
    assert payloads(routed) == 1, "the log of their shard contains the records once"
    for dest in dests:
        assert [record["$tag"] for record in routed.pages(dest)[0]] == ["x"]
    assert "$tag" not in routed.pages("b")[0][0]


@pytest.mark.slow
async def test_a_full_dest_blocks_only_its_own_router(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = seen_pauses(monkeypatch)
    await routed.make("b", cap_records=2, discard="reject")
    await routed.route("a>b", "a>f")
    await routed.write("a", datas(1, 2, 3))
    _, worker = routed.worker("a>b")
    await routed.until(lambda: pauses and pauses[-1] > 0.1)
    assert {0.02, 0.04, 0.08, 0.16} <= set(pauses)
    assert max(pauses) <= RETRY_MAX_S
    assert worker.state in (WorkerState.RETRYING, WorkerState.IN_FLIGHT)
    await routed.write("a", datas(4))
    await routed.until(lambda: routed.datas("f") == [1, 2, 3, 4])
    assert (routed.datas("b"), routed.reached("a>b")) == ([1, 2], (2, 2))
    pauses.clear()
    await routed.make("b", cap_records=3, discard="reject")
    await routed.until(lambda: routed.datas("b") == [1, 2, 3])
    await routed.until(lambda: 0.02 in pauses)  # after a forward the first pause is short
    await routed.make("b", cap_records=9, discard="reject")
    await routed.settle()
    assert routed.datas("b") == [1, 2, 3, 4]


@pytest.mark.slow
async def test_a_full_dest_is_probed_for_capacity_without_records(routed: RoutedShards) -> None:
    await routed.make("b", cap_bytes=150, discard="reject")
    await routed.route("a>b")
    await routed.write("a", datas("x" * 80, "y" * 80))
    _, worker = routed.worker("a>b")
    await routed.until(lambda: worker.need)
    begun, logged = len(routed.sent_calls), len(routed.logged)
    await routed.until(lambda: worker.retry_s > 0.1)
    tries = [each for each in routed.sent_calls[begun:] if each.subject == FORWARD.subject]
    assert len(tries) >= 2
    assert {(each.params.need, each.body) for each in tries} == {(worker.need, b"")}
    assert len(routed.logged) == logged
    await routed.make("b", cap_bytes=1000, discard="reject")
    await routed.settle()
    assert routed.datas("b") == ["x" * 80, "y" * 80]


@pytest.mark.slow
async def test_retry_pauses_are_bounded(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "RETRY_MAX_S", 0.05)
    await routed.route("a>b")
    await routed.settle()
    await routed.kill(2)
    await routed.write("a", datas(1))
    _, worker = routed.worker("a>b")
    await routed.until(lambda: worker.retry_s == 0.05)
    tries = len(routed.sent_calls)
    await routed.until(lambda: len(routed.sent_calls) > tries + 3)
    assert worker.retry_s == 0.05


async def test_a_restarted_shard_receives_the_missed_records_once(routed: RoutedShards) -> None:
    await routed.route("a>b", "b>c")
    await routed.write("a", datas(1))
    await routed.settle()
    await routed.kill(2)
    await routed.write("a", datas(2, 3))
    routed.start(2)
    await routed.settle()
    await routed.kill(0)
    routed.start(0)
    await routed.write("a", datas(4))
    await routed.settle()
    assert [routed.datas(name) for name in "bc"] == [[1, 2, 3, 4]] * 2
    assert (await routed.get("a>b"))["forwarded_total"] == 4


async def test_a_forward_whose_reply_is_lost_is_applied_once(routed: RoutedShards) -> None:
    await routed.route("a>b")
    await routed.settle()
    routed.hold_forwards(2, 0)
    await routed.write("a", datas(1, 2))
    await routed.until(lambda: routed.datas("b") == [1, 2])
    await routed.write("a", datas(3))
    routed.disconnect(0, 2)
    routed.deliver_all()
    routed.connect(0, 2)
    await routed.settle()
    assert routed.datas("b") == [1, 2, 3]
    assert (await routed.get("a>b"))["forwarded_total"] == 3


async def test_sealed_records_are_written_once_in_each_shard(routed: RoutedShards) -> None:
    await routed.route("a>b", "a>f", "a>c")
    await routed.settle()
    for shard in (1, 2):
        await routed.kill(shard)
    await routed.write("a", datas(1, 2))
    await routed.write("a", datas(3))
    await routed.seal("a")
    for shard in (1, 2):
        routed.start(shard)
    await routed.settle()
    assert [routed.datas(name) for name in "bfc"] == [[1, 2, 3]] * 3
    assert payloads(routed) == 2 * len({each.batch for each in routed.sent()})


async def test_ephemeral_records_are_written_once_in_each_shard_with_a_log(
    routed: RoutedShards,
) -> None:
    await routed.make("a", durability="ephemeral")
    await routed.route("a>b", "a>f", "a>c", "a>d")
    await routed.write("a", datas(1, 2))
    await routed.settle()
    assert [routed.datas(name) for name in "bfcd"] == [[1, 2]] * 4
    assert payloads(routed) == 3


async def test_a_payload_is_written_again_if_the_frame_is_in_another_log_file(
    routed: RoutedShards,
) -> None:
    """Frames of a log file refer only to payloads in the same file."""
    await routed.make("d", cap_records=1, discard="reject")
    await routed.route("a>d")
    await routed.write("a", datas(1, 2))
    await routed.until(lambda: routed.datas("d") == [1])
    assert payloads(routed) == 0
    await routed.end_file(0)
    await routed.make("d", cap_records=9, discard="reject")
    await routed.settle()
    assert routed.datas("d") == [1, 2]
    assert payloads(routed) == 1


@pytest.mark.slow
async def test_skipped_records_are_reported_to_the_dest_after_a_delay(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert workers_module.LOG_SKIPPED_S == 1.0
    monkeypatch.setattr(workers_module, "LOG_SKIPPED_S", 0.2)
    await routed.route("a>b", filter=["tag", "Eq", "x"])
    await routed.settle()
    for tag in "yxyy":
        await routed.write("a", datas(tag, tag=tag))
        await routed.settle()
    assert routed.datas("b") == ["x"]
    assert routed.reached("a>b") == (2, 1)
    assert routed.worker("a>b")[1].seen == 4
    assert len(routed.sent()) == 1
    await routed.until(lambda: routed.reached("a>b") == (4, 1))
    assert len(routed.sent()) == 2, "one message for both skipped records"


async def test_skipped_records_stay_skipped_when_the_filter_changes(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "LOG_SKIPPED_S", 60)
    await routed.route("a>b", filter=["tag", "Eq", "x"])
    await routed.write("a", datas(1, 2, tag="y"))
    await routed.settle()
    await routed.route("a>b", filter=["tag", "Eq", "y"])
    await routed.until(lambda: routed.reached("a>b") == (2, 0))
    await routed.kill(0)
    routed.start(0)
    await routed.write("a", datas(3, tag="y"))
    await routed.settle()
    assert routed.datas("b") == [3]


async def test_records_deleted_between_attempts_are_not_forwarded(routed: RoutedShards) -> None:
    await routed.make("a", durability="ephemeral")
    await routed.make("b", cap_records=1, discard="reject")
    await routed.route("a>b")
    await routed.write("a", [*datas(1), *datas(2, 3, tag="deleted"), *datas(4)])
    await routed.until(lambda: routed.datas("b") == [1])
    await routed.delete_records("a", match=["tag", "Eq", "deleted"])
    await routed.make("b", cap_records=9, discard="reject")
    await routed.settle()
    assert routed.datas("b") == [1, 4]
    assert (await routed.get("a>b"))["forwarded_total"] == 2


async def test_a_retry_copies_no_record_that_was_deleted_or_evicted_in_the_meantime(
    routed: RoutedShards,
) -> None:
    await routed.make("a", cap_records=3)
    await routed.route("a>b", "c>d")
    await routed.settle()
    for one, other in ((0, 2), (1, 0)):
        routed.disconnect(one, other)
    sent = len(routed.sent())
    await routed.write("a", datas(1, 2, 3))
    await routed.write("c", [*datas(1), *datas(2, tag="deleted"), *datas(3)])
    await routed.until(lambda: len(routed.sent()) >= sent + 2)
    await routed.write("a", datas(4))
    await routed.delete_records("c", match=["tag", "Eq", "deleted"])
    for one, other in ((0, 2), (1, 0)):
        routed.connect(one, other)
    await routed.settle()
    assert (routed.datas("b"), routed.datas("d")) == ([2, 3, 4], [1, 3])


async def test_a_cycle_stops_after_eight_hops_across_a_restart(routed: RoutedShards) -> None:
    await routed.route("a>b")
    await routed.route("b>a", allow_cycle=True)
    await routed.settle()
    routed.on_message = lambda *found: found[2] != FORWARD.subject or len(routed.sent()) < 5
    await routed.write("a", datas(1))
    await routed.until(lambda: len(routed.sent()) == 5)
    for shard in (2, 0):
        await routed.kill(shard)
    routed.on_message = lambda *_: True
    for shard in (0, 2):
        routed.start(shard)
    await routed.until(lambda: len(routed.datas("b")) == 4)
    await routed.until(lambda: len(routed.datas("a")) == 5)
    await routed.settle()
    await trio.sleep(0.05)
    assert (routed.datas("a"), routed.datas("b")) == ([1] * 5, [1] * 4)


@pytest.mark.slow
@pytest.mark.parametrize("dest", ["b", "d"])
async def test_a_forward_in_flight_to_a_former_dest_is_refused_and_not_counted(
    routed: RoutedShards, nursery: trio.Nursery, dest: str
) -> None:
    await routed.route(f"a>{dest}")
    await routed.write("a", datas(1, 2))
    await routed.settle()
    sent = len(routed.sent())
    routed.on_call = lambda each: each.subject != FORWARD.subject
    await routed.write("a", datas(3))
    await routed.until(lambda: len(routed.sent()) > sent)
    nursery.start_soon(routed.put, f"a>{dest}", "a", "c")
    source, worker = routed.worker(f"a>{dest}")
    await routed.until(lambda: worker.is_removed)
    assert source.workers == {}
    routed.call_now()
    await routed.until(
        lambda: (1, routed.loops[0].context.engine.routers.router(f"a>{dest}").dest) == (1, "c")
    )
    await routed.settle()
    assert (await routed.get(f"a>{dest}"))["forwarded_total"] == 2
    await routed.write("a", datas(4))
    await routed.settle()
    assert (routed.datas(dest), routed.datas("c")) == ([1, 2], [4])
    assert (await routed.get(f"a>{dest}"))["forwarded_total"] == 3


async def test_the_total_of_an_idle_router_is_returned_immediately(routed: RoutedShards) -> None:
    await routed.route("a>b")
    await routed.write("a", datas(1, 2))
    await routed.settle()
    workers, totals = routed.loops[0].services.workers, list[int]()
    router = routed.router_id("a>b")
    workers.remove(router, totals.append)
    workers.remove(router, totals.append)
    assert totals == [2]
    assert (workers.worker(router), workers.stats(router)) == (None, None)
    await routed.write("a", datas(3))
    await trio.sleep(0.05)
    assert routed.datas("b") == [1, 2]


async def test_stats_contain_the_total_and_the_lag(routed: RoutedShards) -> None:
    await routed.make("b", cap_records=2, discard="reject")
    await routed.route("a>b", "a>f")
    await routed.write("a", datas(1, 2, 3, 4, 5))
    await routed.until(lambda: routed.worker("a>b")[1].state is WorkerState.RETRYING)
    await routed.until(lambda: routed.datas("f") == [1, 2, 3, 4, 5])
    await trio.sleep(0.02)
    found = await routed.get("a>b")
    assert (found["forwarded_total"], found["lag_records"]) == (2, 3)
    assert 10 <= found["lag_ms"] < 20_000
    found = await routed.get("a>f")
    assert (found["forwarded_total"], found["lag_records"], found["lag_ms"]) == (5, 0, 0)


# Sessions and links


@pytest.mark.slow
async def test_a_source_that_missed_the_removal_of_a_router_forwards_nothing(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "REPLY_MAX_S", 0.1)
    await routed.put("r", "c", "b")
    await routed.append("c", 1, 2, 3)
    await routed.until(lambda: routed.topic("b").head_seq == 3)
    routed.on_message = lambda _, to, subject: (to, subject) != (1, ROUTER_SYNC.subject)
    assert (await routed.delete("r"))["deleted"]
    await routed.append("c", 4)
    await trio.sleep(0.1)
    assert routed.topic("b").head_seq == 3
    routed.deliver_all()
    await routed.append("c", 5)
    await trio.sleep(0.1)
    assert routed.topic("b").head_seq == 3


@pytest.mark.slow
async def test_a_loss_in_a_router_cycle_is_not_reported_endlessly(routed: RoutedShards) -> None:
    await routed.put("r", "c", "b")
    await routed.put("s", "b", "c", allow_cycle=True)
    await routed.append("c", 1)
    await routed.until(lambda: routed.topic("c").head_seq > 1)
    routed.disconnect(1, 2)
    for number in range(5):
        await routed.append("c", number)
    await routed.make("c", cap_records=2)
    routed.connect(1, 2)
    await routed.until(lambda: routed.topic("b").trimmed)
    heads = [0, 0]
    while (now := [routed.topic(name).head_seq for name in "bc"]) != heads:
        heads = now
        await trio.sleep(0.2)
        assert max(heads) < 100


async def test_a_payload_in_the_same_log_is_referenced_and_not_copied(routed: RoutedShards) -> None:
    await routed.route("a>d", "a>e", "d>dest0")
    assert routed.shard_of("dest0") == 0
    await routed.write("a", datas(1, 2))
    await routed.settle()
    assert [routed.datas(name) for name in ("d", "e", "dest0")] == [[1, 2]] * 3
    assert payloads(routed) == 0
    assert {each.body for each in routed.sent_calls if each.subject == FORWARD.subject} == {b""}


async def test_a_cycle_stops_after_eight_hops(routed: RoutedShards) -> None:
    await routed.route("a>b")
    await routed.route("b>a", allow_cycle=True)
    await routed.write("a", datas(1))
    await routed.settle()
    await routed.until(lambda: len(routed.datas("a")) + len(routed.datas("b")) == 1 + HOPS_MAX)
    await routed.settle()
    assert (routed.datas("a"), routed.datas("b")) == ([1] * 5, [1] * 4)
