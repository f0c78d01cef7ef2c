"""Calls and notifications between two sessions, and how calls end."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.support.wire import Bench, FakeBlock, Pair, rpc_of
from topics.actors.rpc.call import PendingCall, RemoteError, RpcReply
from topics.actors.rpc.inbound import InboundMessage, RpcContext
from topics.actors.rpc.stepping import NOW, Command
from topics.formats.wire.envelope import encode_failure, encode_success
from topics.formats.wire.message import ARENA, ERROR, Message, PeerGone

# Calls


async def test_a_call_gets_the_answer_of_the_other_side(pair: Pair, nursery: trio.Nursery) -> None:
    pair.shard.route(
        "rpc/append",
        lambda m: rpc_of(m).reply([rpc_of(m).method, rpc_of(m).params], bytes(m.attachment) + b"!"),
    )
    replies: list[RpcReply] = []

    async def ask() -> None:
        replies.append(await pair.caller.call("append", {"topic": "a"}, b"body"))

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked()
    assert pair.deliver() == ["rpc/append Request", "rpc/append Success"]
    await trio.testing.wait_all_tasks_blocked()
    assert [(reply.result, reply.attachment) for reply in replies] == [
        (["append", {"topic": "a"}], b"body!")
    ]


async def test_the_cid_is_the_id_of_the_request(pair: Pair) -> None:
    call = pair.caller.call_soon("append", None)
    assert [message.message_id for message in pair.to_shard.sent] == [call.cid]


async def test_calls_are_answered_in_any_order(pair: Pair, nursery: trio.Nursery) -> None:
    waiting: list[RpcContext] = []
    pair.shard.route("rpc/append", lambda message: waiting.append(rpc_of(message)))
    record: list[str] = []

    async def ask(n: int) -> None:
        reply = await pair.caller.call("append", n)
        record.append(f"{n} got {reply.result}")

    for n in range(3):
        nursery.start_soon(ask, n)
        await trio.testing.wait_all_tasks_blocked()
    pair.deliver()
    for n in (2, 0, 1):
        waiting[n].reply(n * 10)
        pair.deliver()
        await trio.testing.wait_all_tasks_blocked()
    assert record == ["2 got 20", "0 got 0", "1 got 10"]


async def test_an_error_answer_is_raised(pair: Pair) -> None:
    pair.shard.route(
        "rpc/append",
        lambda message: rpc_of(message).error(2001, "no such topic", {"code": "topic_not_found"}),
    )
    call = pair.caller.call_soon("append", None)
    pair.deliver()
    with pytest.raises(RemoteError) as info:
        await call.wait()
    assert (info.value.code, info.value.message, info.value.data) == (
        2001,
        "no such topic",
        {"code": "topic_not_found"},
    )
    assert str(info.value) == "no such topic (2001)"


@pytest.mark.parametrize(("subject", "code"), [("stream/x", 1003), ("debug/x", 1002)])
async def test_a_refused_message_that_is_no_call_is_logged(
    pair: Pair, subject: str, code: int
) -> None:
    pair.caller.send(subject, b"")
    with capture_logs() as logs:
        pair.deliver()
    assert [(entry["event"], entry["code"]) for entry in logs] == [("message refused", code)]


async def test_a_refused_call_fails(pair: Pair) -> None:
    call = pair.caller.call_soon("append", None)
    (request,) = pair.to_shard.take()
    pair.to_shard.send("rpc/append", b"damaged", message_id=request.message_id)
    assert pair.deliver() == ["rpc/append Malformed", "refusal"]
    with pytest.raises(RemoteError, match=r"malformed payload: .* \(1002\)"):
        await call.wait()


async def test_both_sides_may_call(pair: Pair) -> None:
    pair.front.route("rpc/where", lambda message: rpc_of(message).reply("front"))
    pair.shard.route("rpc/where", lambda message: rpc_of(message).reply("shard"))
    calls = [pair.caller.call_soon("where", None), pair.server.call_soon("where", None)]
    pair.deliver()
    assert [(await call.wait()).result for call in calls] == ["shard", "front"]


async def test_a_notification_reaches_the_handlers_of_its_event(pair: Pair) -> None:
    seen: list[InboundMessage] = []
    pair.shard.route("event/topic.appended", seen.append)
    pair.caller.notify("topic.appended", {"topic": "a"}, b"body")
    pair.deliver()
    assert seen[0].notification is not None
    assert (seen[0].notification.params, seen[0].attachment) == ({"topic": "a"}, b"body")


# Calls that end otherwise


async def test_closing_fails_the_calls_that_wait_and_those_that_nobody_awaits_yet(
    pair: Pair,
) -> None:
    record: list[str] = []

    async def ask() -> None:
        try:
            await pair.caller.call("append", None)
        except PeerGone as error:
            record.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        early = pair.caller.call_soon("append", None)
        pair.caller.on_closed(lambda session: record.append("closed"))
        pair.caller.close()
    assert record == ["closed", "the link session with shard-0 closed, call 101 was pending"]
    with pytest.raises(PeerGone):
        await early.wait()


@pytest.mark.parametrize("how", ["closed", "broken"])
async def test_no_call_starts_when_the_peer_is_gone(pair: Pair, how: str) -> None:
    if how == "closed":
        pair.caller.close()
    else:
        pair.to_shard.broken = True
    with pytest.raises(PeerGone):
        await pair.caller.call("append", None)
    with pytest.raises(PeerGone):
        pair.caller.notify("topic.appended", None)
    pair.to_shard.broken = False
    assert pair.to_shard.sent == []


async def test_a_cancelled_call_is_forgotten_and_a_late_answer_released(pair: Pair) -> None:
    waiting: list[RpcContext] = []
    pair.shard.route("rpc/diff", lambda message: waiting.append(rpc_of(message)))
    cancelled: list[object] = []
    pair.shard.route(
        "event/call.cancelled", lambda m: cancelled.append(m.notification and m.notification.params)
    )
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.caller.call, "diff", None)
            await trio.testing.wait_all_tasks_blocked()
            pair.deliver()
            scope.cancel()
    assert pair.deliver() == ["event/call.cancelled Notification"]
    assert cancelled == [[waiting[0].cid]]
    answer = encode_success(waiting[0].cid, None)
    pair.front.dispatch(pair.caller, Message(9, ARENA, "rpc/diff", answer, memoryview(b"body")))
    assert pair.to_shard.released == [9]


@pytest.mark.parametrize(
    "answer",
    [encode_failure(102, 2000, "late"), encode_success(102, None)],
    ids=["error", "success"],
)
async def test_a_late_answer_wakes_nobody_and_disturbs_no_other_call(
    pair: Pair, answer: bytes
) -> None:
    kept = pair.caller.call_soon("diff", None)
    given_up = pair.caller.call_soon("diff", None)
    given_up.abandon()
    pair.front.dispatch(pair.caller, Message(9, 0, "rpc/diff", answer, b""))
    pair.front.dispatch(
        pair.caller, Message(10, 0, "rpc/diff", encode_success(kept.cid, "mine"), b"")
    )
    assert (await kept.wait()).result == "mine"


@pytest.mark.parametrize("how", ["abandoned", "failed", "answered before"])
@pytest.mark.parametrize("is_wanted", [True, False])
async def test_an_answer_that_nobody_waits_for_goes_once_to_who_wants_it(
    pair: Pair, how: str, is_wanted: bool
) -> None:
    call = pair.caller.call_soon("diff", None)
    late: list[object] = []
    if is_wanted:
        call.on_late = lambda reply: late.append(reply.result)
    if how == "abandoned":
        call.abandon()
    elif how == "failed":
        pair.caller.fail_calls(lambda _: True)
    answer = encode_success(call.cid, "late")
    for _ in range(2):
        pair.front.dispatch(pair.caller, Message(9, ARENA, "rpc/diff", answer, memoryview(b"")))
    if how == "answered before":
        call.abandon()
    assert late == (["late"] if is_wanted else [])
    assert pair.to_shard.released == [9, 9]
    assert pair.caller._given_up == {}


async def test_a_cancelled_call_whose_peer_is_gone_is_just_cancelled(pair: Pair) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.caller.call, "diff", None)
            await trio.testing.wait_all_tasks_blocked()
            pair.to_shard.broken = True
            scope.cancel()
    assert scope.cancelled_caught


async def test_a_caller_that_is_cancelled_while_the_answer_is_on_its_way_to_it_still_gets_it(
    pair: Pair,
) -> None:
    """Between the wake-up and the task's turn the reply is the task's: nothing may lose the memory
    that it names.
    """
    got: list[RpcReply] = []

    async def ask() -> None:
        got.append(await pair.caller.call("diff", None))

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            (request,) = pair.to_shard.take()
            answer = Message(
                9, ARENA, "rpc/diff", encode_success(request.message_id, 1), memoryview(b"body")
            )
            pair.front.dispatch(pair.caller, answer)
            scope.cancel()
    assert [reply.result for reply in got] == [1]
    assert (pair.to_shard.released, pair.to_shard.sent) == ([], [])
    got[0].release()
    assert pair.to_shard.released == [9]


async def answered_call(pair: Pair) -> PendingCall:
    call = pair.caller.call_soon("diff", None)
    pair.to_shard.take()
    answer = Message(9, ARENA, "rpc/diff", encode_success(call.cid, 1), memoryview(b"body"))
    pair.front.dispatch(pair.caller, answer)
    return call


async def test_an_answer_that_came_before_the_wait_is_released_when_the_wait_is_cancelled(
    pair: Pair,
) -> None:
    call = await answered_call(pair)
    with trio.CancelScope() as scope:
        scope.cancel()
        await call.wait()
    assert scope.cancelled_caught
    assert (pair.to_shard.released, pair.to_shard.sent) == ([9], [])


async def test_an_abandoned_answer_is_released_once(pair: Pair) -> None:
    call = await answered_call(pair)
    call.abandon()
    call.abandon()
    assert pair.to_shard.released == [9]
    with pytest.raises(RuntimeError, match="is over"):
        await call.wait()


async def test_abandoning_after_the_answer_was_taken_releases_nothing(pair: Pair) -> None:
    call = await answered_call(pair)
    reply = await call.wait()
    call.abandon()
    assert (reply.result, pair.to_shard.released) == (1, [])
    with pytest.raises(RuntimeError, match="is over"):
        await call.wait()


async def test_one_task_waits_for_a_call_and_nobody_abandons_it_meanwhile(
    pair: Pair, nursery: trio.Nursery
) -> None:
    pair.shard.route("rpc/diff", lambda message: rpc_of(message).reply())
    call = pair.caller.call_soon("diff", None)
    nursery.start_soon(call.wait)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(RuntimeError, match="another task waits"):
        await call.wait()
    with pytest.raises(RuntimeError, match="cancel it instead"):
        call.abandon()
    pair.deliver()


async def test_what_has_no_cbor_form_starts_no_call_and_frees_its_block(pair: Pair) -> None:
    blocks = [FakeBlock(), FakeBlock()]
    with pytest.raises(Exception, match="cannot encode type"):
        pair.caller.call_soon("append", object(), blocks[0])
    with pytest.raises(Exception, match="cannot encode type"):
        pair.caller.notify("append", object(), blocks[1])
    assert ([block.freed for block in blocks], pair.to_shard.sent) == ([1, 1], [])


async def test_a_block_goes_to_the_transport_as_it_is(pair: Pair) -> None:
    block = FakeBlock()
    pair.caller.call_soon("append", None, block)
    assert (pair.to_shard.blocks, block.freed) == ([block], 0)


def test_a_refusal_is_never_answered() -> None:
    bench = Bench()
    with capture_logs() as logs:
        bench.put("stream/x", b"junk", flags=ERROR)
    assert ([entry["event"] for entry in logs], bench.wire.sent) == (["refusal dropped"], [])


# Calls of stepped coroutines


class Hand:
    """A driver that keeps the answer."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def answered(self, answer: Any) -> None:
        self.answers.append(answer)

    def failed(self, error: Exception) -> None:
        self.answers.append(error)


def stepped(driver: Hand, coroutine: Coroutine[Any, Any, RpcReply], value: object = None) -> object:
    """One step."""
    NOW.driver = driver
    try:
        return coroutine.send(value)
    finally:
        NOW.driver = None


async def test_a_stepped_call_is_answered_through_its_driver(pair: Pair) -> None:
    pair.shard.route("rpc/append", lambda message: rpc_of(message).reply("done"))
    driver, call = Hand(), pair.caller.call_soon("append", None)
    waiting = call.wait()
    assert stepped(driver, waiting) is Command.ANSWER
    pair.deliver()
    (answer,) = driver.answers
    with pytest.raises(StopIteration) as over:
        stepped(driver, waiting, answer)
    assert over.value.value.result == "done"


async def test_a_stepped_call_raises_what_its_answer_says(pair: Pair) -> None:
    driver, call = Hand(), pair.caller.call_soon("append", None)
    waiting = call.wait()
    assert stepped(driver, waiting) is Command.ANSWER
    pair.caller.close()
    (error,) = driver.answers
    with pytest.raises(PeerGone):
        waiting.throw(error)


async def test_an_answer_that_came_before_a_step_is_taken_at_once(pair: Pair) -> None:
    call = await answered_call(pair)
    with pytest.raises(StopIteration) as over:
        stepped(Hand(), call.wait())
    assert over.value.value.result == 1
    with pytest.raises(RuntimeError, match="is over"):
        stepped(Hand(), call.wait())


async def test_a_stepped_call_whose_coroutine_is_closed_is_abandoned(pair: Pair) -> None:
    driver, call = Hand(), pair.caller.call_soon("diff", None)
    (request,) = pair.to_shard.take()
    waiting = call.wait()
    stepped(driver, waiting)
    waiting.close()
    (told,) = pair.to_shard.take()
    assert told.subject == "event/call.cancelled"
    answer = encode_success(request.message_id, None)
    pair.front.dispatch(pair.caller, Message(9, ARENA, "rpc/diff", answer, memoryview(b"body")))
    assert (pair.to_shard.released, driver.answers) == ([9], [])


async def test_a_close_passes_over_a_call_that_an_earlier_one_has_abandoned(pair: Pair) -> None:
    first, second, third = (pair.caller.call_soon("diff", n) for n in range(3))
    failed: list[str] = []
    first.then(lambda _: second.abandon())
    second.then(lambda _: failed.append("second"))
    third.then(lambda _: failed.append("third"))
    pair.caller.close()
    assert (first.is_over, failed) == (True, ["third"])


async def test_one_stepped_coroutine_waits_for_a_call(pair: Pair) -> None:
    call = pair.caller.call_soon("diff", None)
    first = call.wait()
    stepped(Hand(), first)
    with pytest.raises(RuntimeError, match="another coroutine waits"):
        stepped(Hand(), call.wait())
    first.close()
