"""Shard loop: an iteration decides a batch, and services attach to it in one way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import LIMITS, ShardHarness
from tests.support.wire import encode_request
from topics.actors.link.board import Board
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import FRONT, shard_id
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import LinkSession
from topics.actors.shard import inbox
from topics.actors.shard import loop as loop_module
from topics.actors.shard.context import clock
from topics.actors.shard.loop import ShardLoop
from topics.actors.shard.service import Service
from topics.config import Settings
from topics.formats.json_text import json_bytes
from topics.formats.wire import calls
from topics.formats.wire.calls import APPEND, AppendParams
from topics.formats.wire.contract import Call
from topics.formats.wire.message import Message
from topics.storage.recovery.shard_recovery import recover


async def test_the_loop_calls_only_the_hooks_that_a_service_defines(harness: ShardHarness) -> None:
    loop = harness.loop
    hooks: list[tuple[list[Any], str]] = [
        (loop._on_config, "on_config"),
        (loop._on_rollback, "on_rollback"),
        (loop._on_closed, "on_session_closed"),
    ]
    for called, name in hooks:
        defining = [type(each) for each in loop.services if name in vars(type(each))]
        assert [type(hook.__self__) for hook in called] == defining != []
    defining = [type(each) for each in loop.services if "on_due" in vars(type(each))]
    assert [*map(type, loop._with_due)] == defining != []


async def test_a_service_with_remaining_work_runs_again_after_the_ready_tasks(
    harness: ShardHarness,
) -> None:
    order: list[str] = []

    class Busy(Service):
        def on_due(self) -> None:
            order.append("iteration")
            self.is_due = order.count("iteration") < 3

    async def other() -> None:
        order.append("other")
        await trio.lowlevel.checkpoint()

    await wait_all_tasks_blocked()
    busy = Busy()
    busy.is_due = True
    harness.loop._with_due.append(busy)
    async with trio.open_nursery() as nursery:
        harness.loop.end_iteration()
        nursery.start_soon(other)
    await wait_all_tasks_blocked()
    assert (order[0], order.count("iteration"), order[-1]) == ("iteration", 3, "iteration")
    assert "other" in order[1:3], "it was ready before the last iteration"


async def test_messages_beyond_the_limit_of_an_iteration_are_decided_in_later_iterations(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message is lost, each gets a reply, and the seqs are in the order of arrival."""
    for name, limit in (("FIFO_MAX", 3), ("WAITING_MAX", 6), ("CHECK_INTERVAL_MS", 0)):
        monkeypatch.setattr(loop_module, name, limit)
    monkeypatch.setattr(inbox, "FIFO_MAX", 3)
    monkeypatch.setattr(inbox, "ITERATION_MAX_S", 0.0)
    settings = Settings()
    board, memory = (
        Board(1),
        LinkMemory(FRONT, shard_id(0), LinkSizes.of(settings)),
    )
    shard = recover(tmp_path, 0, 1, clock(), wal_file_bytes=1 << 20, wal_sync_ms=20)
    loop, stop = ShardLoop(shard, 0, board, LIMITS), trio.Event()
    waiting_counts: list[int] = []

    def note_waiting() -> None:  # at the end of an iteration
        waiting_counts.append(loop.inbox.count)

    monkeypatch.setattr(loop.services.heartbeat, "publish_delay", note_waiting)
    nursery.start_soon(loop.run, [Link(memory, board, shard_id(0))], stop)
    router, link = MessageRouter(), Link(memory, board, FRONT)
    sessions: list[LinkSession] = []

    def arrived(frames: Any) -> None:
        for frame in frames:
            router.dispatch(sessions[0], frame)

    nursery.start_soon(
        link.run,
        lambda: sessions.append(router.open_session("shard-0", link)),
        arrived,
        lambda: None,
    )
    with trio.fail_after(20):
        while not sessions:
            await trio.lowlevel.checkpoint()
        answers, complete = list[Any](), trio.Event()

        def answered(answer: Any) -> None:
            answers.append(answer)
            if len(answers) == 20:
                complete.set()

        for number in range(20):
            body = json_bytes({"records": [{"data": number}]})
            params = AppendParams("a", None, with_seqs=True, prefixes=None, at=0)
            sessions[0].call(APPEND, params, body, answered)
        link.flush()
        await complete.wait()
    assert loop.context.engine.topic("a").head_seq == 20
    assert max(waiting_counts) > 0, "more messages had arrived than an iteration takes"
    stop.set()
    shard.wal.stop()
    nursery.cancel_scope.cancel()


async def test_a_flood_of_one_band_leaves_the_others_their_share(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests of the highest band arrive last, and the first iterations handle them."""
    monkeypatch.setattr(inbox, "ITERATION_MAX_S", 0.0)  # an iteration takes one message
    for topic, priority in (("low", -1), ("usual", 0), ("high", 800)):
        harness.make(topic, priority=priority, durability="ephemeral")
    await wait_all_tasks_blocked()
    flood = [*_put_appends(harness, "low", 200), *_put_appends(harness, "usual", 200)]
    urgent = _put_appends(harness, "high", 5)
    for _ in urgent:
        harness.loop.run_iteration()
    answered = dict(harness.bodies())
    assert [*answered] == urgent
    assert answered[urgent[0]]["performance"]["throttle_wait_ms"] == 0.0
    while harness.loop.inbox.count:
        harness.loop.run_iteration()
    late = dict(harness.bodies())
    assert sorted([*answered, *late]) == sorted(flood + urgent)
    waits = [late[number]["performance"]["throttle_wait_ms"] for number in flood if number in late]
    assert min(waits[: -inbox.FIFO_MAX]) > 0.0
    for topic, count in (("low", 200), ("usual", 200), ("high", 5)):
        assert harness.loop.context.engine.topic(topic).head_seq == count


async def test_diffs_and_claims_report_how_long_they_were_parked(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "ITERATION_MAX_S", 0.0)
    harness.make("low", priority=-1)
    harness.make("queue", type="queue", priority=-1)
    for topic in ("low", "queue"):
        _put_appends(harness, topic, 100)
    numbers = [
        *(_put_request(harness, calls.DIFF, calls.TopicParams("low", 0), b"{}") for _ in range(2)),
        _put_request(harness, calls.CLAIM, calls.TopicParams("queue", 0), b'{"node":"n"}'),
    ]
    while harness.loop.inbox.count:
        harness.loop.run_iteration()
    answers = dict(harness.bodies())
    for number in numbers[1:]:
        assert answers[number]["performance"]["throttle_wait_ms"] > 0.0


def _put_request(harness: ShardHarness, call: Call[Any, Any], params: Any, body: bytes) -> int:
    """Put a request into the inbox. Return its number."""
    number = harness._cid = harness._cid + 1
    harness._calls[number] = call
    payload = encode_request(number, call.method, params)
    message = Message(number, 0, call.subject, payload, body)
    harness.loop.inbox.put(harness.session, [message])
    return number


def _put_appends(harness: ShardHarness, topic: str, count: int) -> list[int]:
    params = AppendParams(topic, None, with_seqs=True, prefixes=None, at=0)
    body = json_bytes({"records": [{"data": 1}]})
    return [_put_request(harness, APPEND, params, body) for _ in range(count)]


# The order of the hooks


def order_of(harness: ShardHarness, hook: str) -> list[str]:
    """Return the services that define a hook, in the order of its calls."""
    return [type(each).__name__ for each in harness.loop.services if defines(each, hook)]


def defines(service: Service, hook: str) -> bool:
    return getattr(type(service), hook) is not getattr(Service, hook)


async def test_retries_run_before_the_services_that_may_add_changes_to_their_group(
    harness: ShardHarness,
) -> None:
    assert order_of(harness, "on_due")[0] == "Retries"


async def test_claims_and_streams_of_a_disconnected_front_leave_the_wait_lists(
    harness: ShardHarness,
) -> None:
    closing = order_of(harness, "on_session_closed")
    assert {"Claims", "WorkStreams"} <= set(closing)
    assert "JobDispatch" not in closing, "claims and streams remove their own claimers"
