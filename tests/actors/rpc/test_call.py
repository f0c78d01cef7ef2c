"""Calls and events between two sessions: typed at both ends, and how calls end."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from tests.support.wire import (
    Asked,
    Bench,
    FakeBlock,
    Inbound,
    Pair,
    encode_failure,
    encode_success,
)
from topics.actors.rpc.inbound import InboundEvent
from topics.actors.rpc.session import RemoteError
from topics.actors.rpc.typed_calls import InboundCall, serve, subscribe
from topics.formats.wire.calls import (
    FEED_PAGE,
    TOPIC_PUT,
    CallCancelledParams,
    DiffParams,
    FeedPageParams,
    TopicPutParams,
    TopicPutResult,
)
from topics.formats.wire.contract import Call
from topics.formats.wire.message import ARENA, ERROR, Message, PeerGone


class Number(NamedTuple):
    number: int | None


DIFF = Call("diff", DiffParams, Number)
PUT = TopicPutParams("a", ["a.", "b."], 7)
PARAMS = DiffParams("a", 1)
PAGE = FeedPageParams(1, 3, 3, 1, 2, {"gap_to": 2}, 9, 4, False)


def answer(pair: Pair, cid: int, *, flags: int = ARENA) -> None:
    """The peer answers the call, from its arena."""
    payload = encode_success(cid, [5])
    pair.front.dispatch(pair.caller, Message(9, flags, DIFF.subject, payload, memoryview(b"body")))


# Calls


def test_a_handler_gets_the_params_and_the_caller_the_result(pair: Pair) -> None:
    seen: list[tuple[Any, bytes]] = []

    def put(request: InboundCall[TopicPutParams, TopicPutResult]) -> None:
        seen.append((request.params, bytes(request.attachment)))
        request.reply(TopicPutResult(created=True), b"answer")

    serve(pair.shard, TOPIC_PUT, put)
    asked = pair.ask(TOPIC_PUT, PUT, b"body")
    assert [message.message_id for message in pair.to_shard.sent] == [asked.cid]
    assert pair.deliver() == ["rpc/topic.put Request", "rpc/topic.put Success"]
    reply = asked.reply()
    assert (type(seen[0][0]), seen) == (TopicPutParams, [(PUT, b"body")])
    assert (type(reply.result), reply.result) == (TopicPutResult, TopicPutResult(created=True))
    assert (reply.body, asked.pending.is_over) == (b"answer", True)


async def test_a_request_tells_of_itself(pair: Pair) -> None:
    kept: list[InboundCall[DiffParams, Number]] = []
    serve(pair.shard, DIFF, kept.append)
    asked = pair.ask(DIFF, PARAMS)
    pair.deliver()
    (request,) = kept
    assert (request.subject, request.method, request.cid) == (DIFF.subject, "diff", asked.cid)
    assert (request.session, request.is_open, request.rpc) == (pair.server, True, request)
    request.outlast()
    assert not pair.server.unanswered
    request.error(2001, "no such topic", {"code": "topic_not_found"})
    assert not request.is_open
    assert pair.deliver() == ["rpc/diff Failure"]
    (error,) = asked.told
    assert isinstance(error, RemoteError)
    assert (error.code, error.message, error.data) == (
        2001,
        "no such topic",
        {"code": "topic_not_found"},
    )
    assert str(error) == "no such topic (2001)"


def test_a_registration_can_be_taken_back(pair: Pair) -> None:
    serve(pair.shard, DIFF, lambda request: request.reply(Number(None)))()
    pair.ask(DIFF, PARAMS)
    assert pair.deliver() == ["rpc/diff Request", "rpc/diff Failure"]


async def test_calls_are_answered_in_any_order(pair: Pair) -> None:
    waiting: list[Inbound] = []
    serve(pair.shard, DIFF, waiting.append)
    calls = [pair.ask(DIFF, PARAMS) for _ in range(3)]
    pair.deliver()
    for n in (2, 0, 1):
        waiting[n].reply(Number(n))
        pair.deliver()
        assert calls[n].reply().result == Number(n)


def test_both_sides_may_call(pair: Pair) -> None:
    serve(pair.front, DIFF, lambda request: request.reply(Number(1)))
    serve(pair.shard, DIFF, lambda request: request.reply(Number(2)))
    calls = [pair.ask(DIFF, PARAMS), Asked(pair.server, DIFF, PARAMS)]
    pair.deliver()
    assert [call.reply().result for call in calls] == [Number(2), Number(1)]


@pytest.mark.parametrize(("subject", "code"), [("stream/x", 1003), ("debug/x", 1002)])
def test_a_refused_message_that_is_no_call_is_logged(pair: Pair, subject: str, code: int) -> None:
    pair.caller.send(subject, b"")
    with capture_logs() as logs:
        pair.deliver()
    assert [(entry["event"], entry["code"]) for entry in logs] == [("message refused", code)]


def test_a_refused_call_fails(pair: Pair) -> None:
    asked = pair.ask(DIFF, PARAMS)
    (request,) = pair.to_shard.take()
    pair.to_shard.send("rpc/diff", b"damaged", message_id=request.message_id)
    assert pair.deliver() == ["rpc/diff Malformed", "refusal"]
    (error,) = asked.told
    assert error.code == 1002
    assert error.message.startswith("malformed payload: ")


def test_a_refusal_is_never_answered() -> None:
    bench = Bench()
    with capture_logs() as logs:
        bench.put("stream/x", b"junk", flags=ERROR)
    assert ([entry["event"] for entry in logs], bench.wire.sent) == (["refusal dropped"], [])


# Events


def test_an_event_reaches_its_handler_with_typed_params(pair: Pair) -> None:
    seen: list[tuple[Any, bytes]] = []

    def page(event: InboundEvent[FeedPageParams]) -> None:
        seen.append((event.params, bytes(event.attachment)))

    subscribe(pair.front, FEED_PAGE, page)
    pair.server.notify(FEED_PAGE, PAGE, b"records")
    pair.deliver()
    assert (type(seen[0][0]), seen) == (FeedPageParams, [(PAGE, b"records")])


# Calls that end otherwise


def test_closing_fails_the_calls_under_way_before_the_listeners_hear(pair: Pair) -> None:
    asked = pair.ask(DIFF, PARAMS)
    pair.caller.on_closed(lambda session: asked.told.append("closed"))
    pair.caller.close()
    assert list(map(str, asked.told)) == [
        "the link session with shard-0 closed, call 101 was pending",
        "closed",
    ]


@pytest.mark.parametrize("how", ["closed", "broken"])
def test_no_call_starts_when_the_peer_is_gone_and_its_block_is_freed(pair: Pair, how: str) -> None:
    if how == "closed":
        pair.caller.close()
    else:
        pair.to_shard.broken = True
    blocks = [FakeBlock(), FakeBlock()]
    with pytest.raises(PeerGone):
        pair.ask(TOPIC_PUT, PUT, blocks[0])
    with pytest.raises(PeerGone):
        pair.caller.notify(FEED_PAGE, PAGE, blocks[1])
    assert (pair.to_shard.sent, pair.caller.calls) == ([], {})
    if how == "closed":  # else the transport has taken them
        assert [block.freed for block in blocks] == [1, 1]


def test_an_abandoned_call_is_told_to_the_peer_and_a_late_answer_released(pair: Pair) -> None:
    cancelled: list[InboundEvent[CallCancelledParams]] = []
    pair.shard.route("event/call.cancelled", cancelled.append, params=CallCancelledParams)
    asked = pair.ask(DIFF, PARAMS)
    pair.to_shard.take()
    for _ in range(2):
        asked.pending.abandon()
    assert pair.deliver() == ["event/call.cancelled Notification"]
    assert [event.params for event in cancelled] == [CallCancelledParams(asked.cid)]
    answer(pair, asked.cid)
    assert (asked.told, pair.to_shard.released) == ([], [9])


@pytest.mark.parametrize(
    "late",
    [encode_failure(102, 2000, "late"), encode_success(102, None)],
    ids=["error", "success"],
)
def test_a_late_answer_disturbs_no_other_call(pair: Pair, late: bytes) -> None:
    kept, given_up = pair.ask(DIFF, PARAMS), pair.ask(DIFF, PARAMS)
    given_up.pending.abandon()
    pair.front.dispatch(pair.caller, Message(9, 0, "rpc/diff", late, b""))
    answer(pair, kept.cid, flags=0)
    assert (kept.reply().result, given_up.told) == (Number(5), [])


@pytest.mark.parametrize("how", ["abandoned", "failed"])
@pytest.mark.parametrize("is_wanted", [True, False])
def test_an_answer_that_nobody_waits_for_goes_once_to_who_wants_it(
    pair: Pair, how: str, is_wanted: bool
) -> None:
    asked, late = pair.ask(DIFF, PARAMS), list[Any]()
    if is_wanted:
        asked.pending.on_late = lambda reply: late.append(reply.result)
    if how == "abandoned":
        asked.pending.abandon()
    else:
        pair.caller.fail_calls(lambda _: True)
    for _ in range(2):
        answer(pair, asked.cid)
    assert late == ([Number(5)] if is_wanted else [])
    assert (pair.to_shard.released, pair.caller.calls) == ([9, 9], {})
    assert list(map(type, asked.told)) == ([] if how == "abandoned" else [PeerGone])


def test_abandoning_when_the_peer_is_gone_is_no_error(pair: Pair) -> None:
    asked = pair.ask(DIFF, PARAMS)
    pair.to_shard.broken = True
    asked.pending.abandon()
    assert (asked.pending.is_over, asked.told) == (True, [])


def test_a_reply_is_released_once_and_abandoning_it_does_nothing(pair: Pair) -> None:
    asked = pair.ask(DIFF, PARAMS)
    pair.to_shard.take()
    answer(pair, asked.cid)
    asked.pending.abandon()
    assert (pair.to_shard.released, pair.to_shard.sent) == ([], [])
    reply = asked.reply()
    assert bytes(reply.body) == b"body"
    reply.release()
    assert (reply.body, pair.to_shard.released) == (b"", [9])


def test_a_call_that_fails_may_abandon_another_one(pair: Pair) -> None:
    others: list[Asked] = []
    first = pair.caller.call(DIFF, PARAMS, b"", lambda _: others[0].pending.abandon())
    others += [pair.ask(DIFF, PARAMS), pair.ask(DIFF, PARAMS)]
    pair.caller.close()
    assert (first.is_over, others[0].told) == (True, [])
    assert list(map(type, others[1].told)) == [PeerGone]


def test_what_cannot_be_encoded_starts_no_call_and_frees_its_block(pair: Pair) -> None:
    blocks = [FakeBlock(), FakeBlock()]
    with pytest.raises(TypeError, match="unsupported"):
        pair.ask(DIFF, DiffParams(object(), 1), blocks[0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unsupported"):
        pair.caller.notify(FEED_PAGE, PAGE._replace(tombstone={"a": object()}), blocks[1])
    assert ([block.freed for block in blocks], pair.to_shard.sent) == ([1, 1], [])


def test_a_block_goes_to_the_transport_as_it_is(pair: Pair) -> None:
    block = FakeBlock()
    pair.ask(DIFF, PARAMS, block)
    assert (pair.to_shard.blocks, block.freed) == ([block], 0)
