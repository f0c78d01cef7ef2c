"""Typed calls: both ends speak the calls table, and handlers get typed params."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.wire import FakeBlock, Pair
from topics.actors.rpc.inbound import InboundMessage
from topics.actors.rpc.typed_calls import InboundCall, call_soon, notify, serve, subscribe
from topics.formats.wire.calls import (
    DIFF,
    FEED_PAGE,
    NO_RESULT,
    TOPIC_PUT,
    DiffParams,
    FeedPageParams,
    NoResult,
    TopicPutParams,
    TopicPutResult,
)
from topics.formats.wire.message import PeerGone

PUT = TopicPutParams("a", ["a.", "b."], 7)
PAGE = FeedPageParams(1, 3, 3, 1, 2, {"gap_to": 2}, 9, 4, False)


async def test_a_handler_gets_the_params_and_the_caller_the_result(pair: Pair) -> None:
    seen: list[tuple[Any, bytes]] = []

    def put(request: InboundCall[TopicPutParams, TopicPutResult]) -> None:
        seen.append((request.params, bytes(request.attachment)))
        request.reply(TopicPutResult(created=True), b"answer")

    serve(pair.shard, TOPIC_PUT, put)
    call = call_soon(pair.caller, TOPIC_PUT, PUT, b"body")
    assert pair.deliver() == ["rpc/topic.put Request", "rpc/topic.put Success"]
    reply = await call.wait()
    assert (type(seen[0][0]), seen) == (TopicPutParams, [(PUT, b"body")])
    assert (TOPIC_PUT.result_of(reply.result), reply.attachment) == (
        TopicPutResult(created=True),
        b"answer",
    )


async def test_a_request_tells_of_itself(pair: Pair) -> None:
    kept: list[InboundCall[DiffParams, NoResult]] = []
    serve(pair.shard, DIFF, kept.append)
    call = call_soon(pair.caller, DIFF, DiffParams("a", 1))
    pair.deliver()
    (request,) = kept
    assert (request.subject, request.cid) == (DIFF.subject, call.cid)
    assert request.session is pair.server
    assert request.is_open
    request.outlast()
    assert not pair.server.unanswered
    request.error(2001, "no such topic", {"code": "topic_not_found"})
    assert not request.is_open
    assert pair.deliver() == [f"{DIFF.subject} Failure"]


async def test_a_registration_can_be_taken_back(pair: Pair) -> None:
    serve(pair.shard, DIFF, lambda request: request.reply(NO_RESULT))()
    call_soon(pair.caller, DIFF, DiffParams("a", 1))
    assert pair.deliver() == [f"{DIFF.subject} Request", f"{DIFF.subject} Failure"]


def test_an_event_reaches_its_handler_with_typed_params(pair: Pair) -> None:
    seen: list[tuple[Any, bytes]] = []

    def page(message: InboundMessage, params: FeedPageParams) -> None:
        seen.append((params, bytes(message.attachment)))

    subscribe(pair.front, FEED_PAGE, page)
    notify(pair.server, FEED_PAGE, PAGE, b"records")
    pair.deliver()
    assert (type(seen[0][0]), seen) == (FeedPageParams, [(PAGE, b"records")])


def test_what_is_not_sent_frees_its_block(pair: Pair) -> None:
    pair.caller.close()
    blocks = [FakeBlock(), FakeBlock()]
    with pytest.raises(PeerGone):
        call_soon(pair.caller, TOPIC_PUT, PUT, blocks[0])
    with pytest.raises(PeerGone):
        notify(pair.caller, FEED_PAGE, PAGE, blocks[1])
    assert [block.freed for block in blocks] == [1, 1]
