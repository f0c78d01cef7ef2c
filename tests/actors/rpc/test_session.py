"""`decisions/0003` §2, §8, §9: link sessions, the messages and calls on them, and their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.support.wire import (
    FakeBlock,
    Inbound,
    ObservedCall,
    Pair,
    RouterHarness,
    encode_failure,
    encode_notification,
    encode_request,
    encode_success,
    rpc_of,
)
from topics.actors.rpc.session import InboundMessage, LinkSession, RemoteError
from topics.formats.wire.calls import (
    FEED_PAGE,
    TOPIC_PUT,
    CallCancelledParams,
    FeedPageParams,
    PutResult,
    TopicParams,
    TopicPutParams,
)
from topics.formats.wire.contract import Call
from topics.formats.wire.message import ARENA, ERROR, Message, PeerClosed

# §8: cleanup


def test_s8_close_listeners_still_see_the_registrations() -> None:
    harness = RouterHarness()
    harness.session.router.route("app/x", harness.note("session"))
    seen: list[str] = []

    def listener(session: LinkSession) -> None:
        seen.append(f"closed {session.closed}, {len(session.router.matching('app/x'))} registered")

    harness.session.on_closed(listener)
    harness.session.on_closed(listener)
    harness.session.close()
    assert seen == ["closed True, 1 registered"] * 2
    assert harness.session.router.matching("app/x") == []


def test_s8_a_close_is_reported_once() -> None:
    harness, seen = RouterHarness(), list[str]()
    harness.session.on_closed(lambda session: seen.append("first"))
    harness.session.on_closed(lambda session: session.close())
    harness.session.close()
    harness.session.close()
    assert seen == ["first"]


def test_s8_a_listener_that_raises_stops_neither_the_next_one_nor_the_cleanup() -> None:
    harness, seen = RouterHarness(), list[str]()

    def fail(session: LinkSession) -> None:
        raise ValueError("listener failed")

    harness.session.router.route("app/x", harness.note("session"))
    harness.session.on_closed(fail)
    harness.session.on_closed(lambda session: seen.append("next"))
    with capture_logs() as logs:
        harness.session.close()
    assert [(entry["event"], str(entry["exc_info"])) for entry in logs] == [
        ("close listener failed", "listener failed")
    ]
    assert (seen, harness.session.router.matching("app/x")) == (["next"], [])


def test_s8_only_global_handlers_survive_a_reconnect() -> None:
    first = RouterHarness()
    first.router.route("app/x", first.note("global"))
    first.session.router.route("app/x", first.note("session"))
    first.put("app/x", b"")
    first.session.close()
    second = RouterHarness(first.router)
    second.put("app/x", b"")
    assert first.record == ["session", "global", "global"]


def test_s8_closing_the_router_closes_the_sessions_and_removes_all_handlers() -> None:
    harness, seen = RouterHarness(), list[str]()
    other = RouterHarness(harness.router)
    harness.router.route("app/x", harness.note("global"))
    for each in (harness, other):
        each.session.router.route("app/x", each.note("session"))
        each.session.on_closed(
            lambda session: seen.append(
                f"{len(session.router.matching('app/x'))} + {len(harness.router.matching('app/x'))}"
            )
        )
    harness.router.close()
    assert seen == ["1 + 1", "1 + 1"]
    assert harness.session.closed
    assert other.session.closed
    assert harness.router.matching("app/x") == []


def test_s8_a_message_on_a_closed_session_is_dropped_and_its_memory_released() -> None:
    harness = RouterHarness()
    harness.router.route("app/x", harness.note("called"))
    harness.session.close()
    assert harness.put("app/x", b"", flags=ARENA) is None
    assert (harness.record, harness.wire.sent, harness.wire.released) == ([], [], [7])


async def test_s8_a_reply_after_the_end_of_the_session_is_not_sent() -> None:
    harness, seen = RouterHarness(), list[Inbound]()
    harness.router.route("rpc/append", seen.append)
    harness.request()
    harness.session.close()
    block = FakeBlock()
    rpc_of(seen[0]).reply(None, block)
    with pytest.raises(PeerClosed, match="the link session with front-0 is closed"):
        seen[0].send("event/x", b"", block)
    assert (harness.wire.sent, block.freed) == ([], 2)


# §2, §9: the message that a handler receives, and the memory of attachments


# §2, §9: the message


async def test_s2_a_handler_sees_the_complete_message(harness: RouterHarness) -> None:
    seen: list[Inbound] = []
    harness.router.route("rpc/append", seen.append)
    payload = encode_request(9, "append", {"topic": "a"})
    harness.put("rpc/append", payload, message_id=9, attachment=b"body")
    (message,) = seen
    assert message.rpc is not None
    assert (message.subject, message.payload, message.attachment) == (
        "rpc/append",
        payload,
        b"body",
    )
    assert (message.peer_id, message.session, message.frame.message_id) == (
        "front-0",
        harness.session,
        9,
    )
    assert (message.rpc.method, message.rpc.params, message.rpc.cid) == (
        "append",
        {"topic": "a"},
        9,
    )


def test_s2_only_a_request_has_an_rpc(harness: RouterHarness) -> None:
    seen: list[Inbound] = []
    harness.router.route_prefix("", seen.append)
    harness.event("topic.appended", {"topic": "a"})
    harness.put("app/x", encode_request(7, "append", None))
    event, custom = seen
    assert (event.rpc, custom.rpc) == (None, None)
    assert (event.method, event.params) == ("topic.appended", {"topic": "a"})
    assert (custom.envelope, custom.params) == (None, None)


@pytest.mark.parametrize(
    "name",
    ["subject", "payload", "attachment", "peer_id", "session", "frame", "rpc", "params"],
)
def test_s9_no_attribute_of_a_message_can_be_set(harness: RouterHarness, name: str) -> None:
    seen: list[Inbound] = []
    harness.router.route("app/x", seen.append)
    harness.put("app/x", b"")
    with pytest.raises(AttributeError):
        setattr(seen[0], name, None)
    with pytest.raises(AttributeError):
        seen[0].frame.message_id = 8  # type: ignore[misc]


def test_s9_every_message_is_sent_with_a_new_message_id(harness: RouterHarness) -> None:
    def handler(message: Inbound) -> None:
        assert message.rpc is not None
        message.send("event/x", encode_notification("x", None))
        message.send("event/x", encode_notification("x", None))
        message.rpc.reply()

    harness.router.route("rpc/a", handler)
    for cid in (7, 8):
        harness.request("a", cid=cid)
    harness.request("unknown", cid=9)
    harness.put("stream/x", b"")
    ids = harness.wire.message_ids
    assert len(ids) == len(set(ids)) == 8
    assert not {7, 8, 9} & set(ids)


def test_s9_a_reply_keeps_subject_and_cid(harness: RouterHarness) -> None:
    harness.router.route(
        "rpc/a", lambda message: message.rpc.reply({"n": 1}, b"body") if message.rpc else None
    )
    harness.request("a", cid=41)
    (answer,) = harness.wire.sent
    assert (answer.subject, msgspec.msgpack.decode(answer.payload), answer.attachment) == (
        "rpc/a",
        {"t": "R", "cid": 41, "result": {"n": 1}},
        b"body",
    )


# Attachments in the memory of the peer


@pytest.mark.parametrize(
    ("put", "handler"),
    [
        pytest.param(lambda b: b.request("a", flags=ARENA), None, id="no such method"),
        pytest.param(lambda b: b.put("rpc/a", b"junk", flags=ARENA), None, id="malformed"),
        pytest.param(lambda b: b.put("stream/a", b"", flags=ARENA), None, id="reserved"),
        pytest.param(lambda b: b.put("debug/a", b"", flags=ARENA), None, id="not allowed"),
        pytest.param(lambda b: b.put("event/a", b"junk", flags=ARENA), None, id="dropped event"),
        pytest.param(lambda b: b.event("a", flags=ARENA), None, id="event without listeners"),
        pytest.param(lambda b: b.event("a", flags=ARENA), "note", id="event"),
        pytest.param(lambda b: b.put("app/a", b"", flags=ARENA), "note", id="custom"),
        pytest.param(lambda b: b.request("a", flags=ARENA), "note", id="request with a reply"),
        pytest.param(lambda b: b.request("a", flags=ARENA), "fail", id="failed request"),
        pytest.param(
            lambda b: b.put("rpc/a", encode_success(5, None), flags=ARENA),
            None,
            id="reply without a call",
        ),
        pytest.param(lambda b: b.put("", b"junk", flags=ARENA | ERROR), None, id="refusal"),
    ],
)
def test_s9_memory_of_the_peer_is_released_after_the_message_is_handled(
    harness: RouterHarness, put: Callable[[RouterHarness], Any], handler: str
) -> None:
    if handler:
        for subject in ("rpc/a", "event/a", "app/a"):
            harness.router.route(subject, getattr(harness, handler)("handler"))
    assert put(harness) is None
    assert harness.wire.released == [7]


async def test_s9_memory_of_the_peer_is_kept_until_the_reply(harness: RouterHarness) -> None:
    seen: list[Inbound] = []
    harness.router.route("rpc/a", seen.append)
    harness.request("a", flags=ARENA)
    assert harness.wire.released == []
    harness.session.close()
    assert seen[0].rpc is not None
    seen[0].rpc.reply()
    assert harness.wire.released == [7]


async def test_s9_memory_of_the_peer_is_kept_until_the_last_handler_has_returned(
    harness: RouterHarness,
) -> None:
    async def wait(message: Inbound) -> None:
        await trio.lowlevel.checkpoint()
        harness.record.append(f"released {harness.wire.released}")

    harness.router.route("event/a", wait)
    harness.router.route_prefix("event/", wait)
    await harness.event("a", flags=ARENA)
    assert (harness.record, harness.wire.released) == (["released []", "released []"], [7])


async def test_a_request_that_releases_an_inline_attachment_frees_its_memory(
    harness: RouterHarness,
) -> None:
    """A long poll waits for half a minute after its body was decoded."""
    seen: list[Inbound] = []
    harness.router.route("rpc/a", seen.append)
    message = Message(7, 0, "rpc/a", encode_request(1, "a", ()), b"x" * 100)
    assert harness.router.dispatch(harness.session, message) is None
    (inbound,) = seen
    assert inbound.attachment == b"x" * 100
    inbound.release()
    inbound.release()
    assert (inbound.attachment, message.attachment, message.payload) == (b"", b"", b"")
    assert inbound.rpc is not None
    inbound.rpc.reply()
    assert harness.wire.released == []


# Calls and events between two sessions


class Number(NamedTuple):
    number: int | None


DIFF = Call("diff", TopicParams, Number)
PUT = TopicPutParams("a", ["a.", "b."], 7)
PARAMS = TopicParams("a", 1)
PAGE = FeedPageParams(1, 3, 3, 1, 2, {"gap_to": 2}, 9, 4, False)


def answer(pair: Pair, cid: int, *, flags: int = ARENA) -> None:
    """Reply to the call from the arena of the peer."""
    payload = encode_success(cid, [5])
    pair.front.dispatch(pair.caller, Message(9, flags, DIFF.subject, payload, memoryview(b"body")))


# Calls


def test_a_handler_receives_the_params_and_the_caller_the_result(pair: Pair) -> None:
    seen: list[tuple[Any, bytes]] = []

    def put(request: InboundMessage[TopicPutParams, PutResult]) -> None:
        seen.append((request.params, bytes(request.attachment)))
        request.reply(PutResult(created=True), b"answer")

    pair.shard.serve(TOPIC_PUT, put)
    call = pair.call(TOPIC_PUT, PUT, b"body")
    assert [message.message_id for message in pair.to_shard.sent] == [call.cid]
    assert pair.deliver() == ["rpc/topic.put Request", "rpc/topic.put Success"]
    reply = call.reply()
    assert (type(seen[0][0]), seen) == (TopicPutParams, [(PUT, b"body")])
    assert (type(reply.result), reply.result) == (PutResult, PutResult(created=True))
    assert (reply.body, call.pending.is_done) == (b"answer", True)


async def test_a_request_has_the_attributes_of_its_call(pair: Pair) -> None:
    kept: list[InboundMessage[TopicParams, Number]] = []
    pair.shard.serve(DIFF, kept.append)
    call = pair.call(DIFF, PARAMS)
    pair.deliver()
    (request,) = kept
    assert (request.subject, request.method, request.cid) == (DIFF.subject, "diff", call.cid)
    assert (request.session, request.is_open, request.rpc) == (pair.server, True, request)
    request.disable_timeout()
    assert not pair.server.unanswered
    request.error(2001, "no such topic", {"code": "topic_not_found"})
    assert not request.is_open
    assert pair.deliver() == ["rpc/diff Failure"]
    (error,) = call.outcomes
    assert isinstance(error, RemoteError)
    assert (error.code, error.message, error.data) == (
        2001,
        "no such topic",
        {"code": "topic_not_found"},
    )
    assert str(error) == "no such topic (2001)"


async def test_calls_may_be_completed_in_any_order(pair: Pair) -> None:
    waiting: list[Inbound] = []
    pair.shard.serve(DIFF, waiting.append)
    calls = [pair.call(DIFF, PARAMS) for _ in range(3)]
    pair.deliver()
    for n in (2, 0, 1):
        waiting[n].reply(Number(n))
        pair.deliver()
        assert calls[n].reply().result == Number(n)


def test_both_ends_may_make_calls(pair: Pair) -> None:
    pair.front.serve(DIFF, lambda request: request.reply(Number(1)))
    pair.shard.serve(DIFF, lambda request: request.reply(Number(2)))
    calls = [pair.call(DIFF, PARAMS), ObservedCall(pair.server, DIFF, PARAMS)]
    pair.deliver()
    assert [call.reply().result for call in calls] == [Number(2), Number(1)]


@pytest.mark.parametrize(("subject", "code"), [("stream/x", 1003), ("debug/x", 1002)])
def test_a_refused_message_that_is_not_a_call_is_logged(
    pair: Pair, subject: str, code: int
) -> None:
    pair.caller.send(subject, b"")
    with capture_logs() as logs:
        pair.deliver()
    assert [(entry["event"], entry["code"]) for entry in logs] == [("message refused", code)]


def test_a_refused_call_fails(pair: Pair) -> None:
    call = pair.call(DIFF, PARAMS)
    (request,) = pair.to_shard.take()
    pair.to_shard.send("rpc/diff", b"damaged", message_id=request.message_id)
    assert pair.deliver() == ["rpc/diff Malformed", "refusal"]
    (error,) = call.outcomes
    assert error.code == 1002
    assert error.message.startswith("malformed payload: ")


def test_a_refusal_gets_no_reply() -> None:
    harness = RouterHarness()
    with capture_logs() as logs:
        harness.put("stream/x", b"junk", flags=ERROR)
    assert ([entry["event"] for entry in logs], harness.wire.sent) == (["refusal dropped"], [])


# Events


def test_an_event_reaches_its_handler_with_typed_params(pair: Pair) -> None:
    seen: list[tuple[Any, bytes]] = []

    def page(event: InboundMessage[FeedPageParams, Any]) -> None:
        seen.append((event.params, bytes(event.attachment)))

    pair.front.subscribe(FEED_PAGE, page)
    pair.server.notify(FEED_PAGE, PAGE, b"records")
    pair.deliver()
    assert (type(seen[0][0]), seen) == (FeedPageParams, [(PAGE, b"records")])


# Calls that end in other ways


def test_closing_a_session_fails_its_pending_calls_before_the_listeners_run(pair: Pair) -> None:
    call = pair.call(DIFF, PARAMS)
    pair.caller.on_closed(lambda session: call.outcomes.append("closed"))
    pair.caller.close()
    assert list(map(str, call.outcomes)) == [
        "the link session with shard-0 closed while call 101 was pending",
        "closed",
    ]


@pytest.mark.parametrize("how", ["closed", "broken"])
def test_no_call_starts_without_a_peer_and_its_block_is_freed(pair: Pair, how: str) -> None:
    if how == "closed":
        pair.caller.close()
    else:
        pair.to_shard.broken = True
    blocks = [FakeBlock(), FakeBlock()]
    with pytest.raises(PeerClosed):
        pair.call(TOPIC_PUT, PUT, blocks[0])
    with pytest.raises(PeerClosed):
        pair.caller.notify(FEED_PAGE, PAGE, blocks[1])
    assert (pair.to_shard.sent, pair.caller.calls) == ([], {})
    if how == "closed":  # Otherwise the transport has taken them
        assert [block.freed for block in blocks] == [1, 1]


def test_an_abandoned_call_is_reported_to_the_peer_and_its_late_reply_released(pair: Pair) -> None:
    cancelled: list[InboundMessage[CallCancelledParams, Any]] = []
    pair.shard.route("event/call.cancelled", cancelled.append, params=CallCancelledParams)
    call = pair.call(DIFF, PARAMS)
    pair.to_shard.take()
    for _ in range(2):
        call.pending.abandon()
    assert pair.deliver() == ["event/call.cancelled Notification"]
    assert [event.params for event in cancelled] == [CallCancelledParams(call.cid)]
    answer(pair, call.cid)
    assert (call.outcomes, pair.to_shard.released) == ([], [9])


@pytest.mark.parametrize(
    "late",
    [encode_failure(102, 2000, "late"), encode_success(102, None)],
    ids=["error", "success"],
)
def test_a_late_reply_does_not_affect_other_calls(pair: Pair, late: bytes) -> None:
    kept, abandoned = pair.call(DIFF, PARAMS), pair.call(DIFF, PARAMS)
    abandoned.pending.abandon()
    pair.front.dispatch(pair.caller, Message(9, 0, "rpc/diff", late, b""))
    answer(pair, kept.cid, flags=0)
    assert (kept.reply().result, abandoned.outcomes) == (Number(5), [])


@pytest.mark.parametrize("how", ["abandoned", "failed"])
@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_late_reply_is_passed_once_to_the_function_that_requested_it(
    pair: Pair, how: str, is_wanted: bool
) -> None:
    call, late = pair.call(DIFF, PARAMS), list[Any]()
    if is_wanted:
        call.pending.on_late = lambda reply: late.append(reply.result)
    if how == "abandoned":
        call.pending.abandon()
    else:
        pair.caller.fail_calls(lambda _: True)
    for _ in range(2):
        answer(pair, call.cid)
    assert late == ([Number(5)] if is_wanted else [])
    assert (pair.to_shard.released, pair.caller.calls) == ([9, 9], {})
    assert list(map(type, call.outcomes)) == ([] if how == "abandoned" else [PeerClosed])


def test_abandoning_a_call_of_a_disconnected_peer_is_not_an_error(pair: Pair) -> None:
    call = pair.call(DIFF, PARAMS)
    pair.to_shard.broken = True
    call.pending.abandon()
    assert (call.pending.is_done, call.outcomes) == (True, [])


def test_a_reply_is_released_once_and_abandoning_it_does_nothing(pair: Pair) -> None:
    call = pair.call(DIFF, PARAMS)
    pair.to_shard.take()
    answer(pair, call.cid)
    call.pending.abandon()
    assert (pair.to_shard.released, pair.to_shard.sent) == ([], [])
    reply = call.reply()
    assert bytes(reply.body) == b"body"
    reply.release()
    assert (reply.body, pair.to_shard.released) == (b"", [9])


def test_a_call_that_fails_may_abandon_another_one(pair: Pair) -> None:
    others: list[ObservedCall] = []
    first = pair.caller.call(DIFF, PARAMS, b"", lambda _: others[0].pending.abandon())
    others += [pair.call(DIFF, PARAMS), pair.call(DIFF, PARAMS)]
    pair.caller.close()
    assert (first.is_done, others[0].outcomes) == (True, [])
    assert list(map(type, others[1].outcomes)) == [PeerClosed]


def test_params_that_cannot_be_encoded_start_no_call_and_free_their_block(pair: Pair) -> None:
    blocks = [FakeBlock(), FakeBlock()]
    with pytest.raises(TypeError, match="unsupported"):
        pair.call(DIFF, TopicParams(object(), 1), blocks[0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unsupported"):
        pair.caller.notify(FEED_PAGE, PAGE._replace(tombstone={"a": object()}), blocks[1])
    assert ([block.freed for block in blocks], pair.to_shard.sent) == ([1, 1], [])
