"""ADR 011 §2, §9: what a handler is given, and the memory of attachments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from tests.support.wire import Bench, Inbound, encode_notification, encode_request, encode_success
from topics.formats.wire.message import ARENA, ERROR

# §2, §9: the message


async def test_s2_a_handler_sees_all_of_the_message(bench: Bench) -> None:
    seen: list[Inbound] = []
    bench.router.route("rpc/append", seen.append)
    payload = encode_request(9, "append", {"topic": "a"})
    bench.put("rpc/append", payload, message_id=9, attachment=b"body")
    (message,) = seen
    assert message.rpc is not None
    assert (message.subject, message.payload, message.attachment) == (
        "rpc/append",
        payload,
        b"body",
    )
    assert (message.peer_id, message.session, message.frame.message_id) == (
        "front-0",
        bench.session,
        9,
    )
    assert (message.rpc.method, message.rpc.params, message.rpc.cid) == (
        "append",
        {"topic": "a"},
        9,
    )


def test_s2_rpc_is_there_only_for_a_request(bench: Bench) -> None:
    seen: list[Inbound] = []
    bench.router.route_prefix("", seen.append)
    bench.event("topic.appended", {"topic": "a"})
    bench.put("app/x", encode_request(7, "append", None))
    event, custom = seen
    assert (event.rpc, custom.rpc) == (None, None)
    assert (event.method, event.params) == ("topic.appended", {"topic": "a"})
    assert (custom.envelope, custom.params) == (None, None)


@pytest.mark.parametrize(
    "name",
    ["subject", "payload", "attachment", "peer_id", "session", "frame", "rpc", "params"],
)
def test_s9_nothing_of_a_message_can_be_set(bench: Bench, name: str) -> None:
    seen: list[Inbound] = []
    bench.router.route("app/x", seen.append)
    bench.put("app/x", b"")
    with pytest.raises(AttributeError):
        setattr(seen[0], name, None)
    with pytest.raises(AttributeError):
        seen[0].frame.message_id = 8  # type: ignore[misc]


def test_s9_every_message_goes_out_under_a_fresh_message_id(bench: Bench) -> None:
    def handler(message: Inbound) -> None:
        assert message.rpc is not None
        message.send("event/x", encode_notification("x", None))
        message.send("event/x", encode_notification("x", None))
        message.rpc.reply()

    bench.router.route("rpc/a", handler)
    for cid in (7, 8):
        bench.request("a", cid=cid)
    bench.request("unknown", cid=9)
    bench.put("stream/x", b"")
    ids = bench.wire.message_ids
    assert len(ids) == len(set(ids)) == 8
    assert not {7, 8, 9} & set(ids)


def test_s9_a_reply_keeps_subject_and_cid(bench: Bench) -> None:
    bench.router.route(
        "rpc/a", lambda message: message.rpc.reply({"n": 1}, b"body") if message.rpc else None
    )
    bench.request("a", cid=41)
    (answer,) = bench.wire.sent
    assert (answer.subject, msgspec.msgpack.decode(answer.payload), answer.attachment) == (
        "rpc/a",
        {"t": "R", "cid": 41, "result": {"n": 1}},
        b"body",
    )


# Attachments that lie in the peer's memory


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
        pytest.param(lambda b: b.request("a", flags=ARENA), "note", id="answered request"),
        pytest.param(lambda b: b.request("a", flags=ARENA), "fail", id="failed request"),
        pytest.param(
            lambda b: b.put("rpc/a", encode_success(5, None), flags=ARENA),
            None,
            id="answer to nobody",
        ),
        pytest.param(lambda b: b.put("", b"junk", flags=ARENA | ERROR), None, id="refusal"),
    ],
)
def test_s9_memory_of_the_peer_goes_back_when_it_is_done_with(
    bench: Bench, put: Callable[[Bench], Any], handler: str
) -> None:
    if handler:
        for subject in ("rpc/a", "event/a", "app/a"):
            bench.router.route(subject, getattr(bench, handler)("handler"))
    assert put(bench) is None
    assert bench.wire.released == [7]


async def test_s9_memory_of_the_peer_is_kept_until_the_answer(bench: Bench) -> None:
    seen: list[Inbound] = []
    bench.router.route("rpc/a", seen.append)
    bench.request("a", flags=ARENA)
    assert bench.wire.released == []
    bench.session.close()
    assert seen[0].rpc is not None
    seen[0].rpc.reply()
    assert bench.wire.released == [7]


async def test_s9_memory_of_the_peer_is_kept_until_the_last_handler_has_returned(
    bench: Bench,
) -> None:
    async def wait(message: Inbound) -> None:
        await trio.lowlevel.checkpoint()
        bench.record.append(f"released {bench.wire.released}")

    bench.router.route("event/a", wait)
    bench.router.route_prefix("event/", wait)
    await bench.event("a", flags=ARENA)
    assert (bench.record, bench.wire.released) == (["released []", "released []"], [7])
