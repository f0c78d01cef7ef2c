"""`decisions/0003` §5 to §7: requests, events and failed handlers. The names of the tests contain
the section.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.support.wire import (
    FakeBlock,
    Inbound,
    RouterHarness,
    encode_notification,
    encode_request,
    encode_success,
    payload_for,
)
from topics.actors.rpc.message_router import (
    MessageRouter,
    MessageRouterConfig,
    RpcErrorPayload,
    default_error_mapper,
)
from topics.actors.rpc.session import AlreadyAnsweredError
from topics.formats.wire.envelope import encode
from topics.formats.wire.message import ARENA, ERROR

MALFORMED = "malformed payload: "

# §5: rpc


def failure(code: int, message: str, **data: Any) -> dict[str, Any]:
    return {"subject": "rpc/append", "t": "E", "cid": 7, "code": code, "message": message} | data


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"junk",
        encode({"t": "Q", "cid": "7", "method": "append"}),
        encode_notification("append", None),
    ],
    ids=["empty", "not MessagePack", "cid is text", "notification"],
)
def test_s5_a_malformed_envelope_is_refused_and_the_session_continues(
    harness: RouterHarness, payload: bytes
) -> None:
    harness.router.route("rpc/append", harness.note("called"))
    harness.put("rpc/append", payload)
    harness.put("rpc/unknown", payload)
    answer, unknown = harness.wire.answers()
    assert (answer["code"], answer["about"], answer["message"][: len(MALFORMED)]) == (
        1002,
        7,
        MALFORMED,
    )
    assert unknown["code"] == 1002, "a malformed envelope is refused before its method is resolved"
    harness.request("append")
    assert harness.wire.answers() == [
        {"subject": "rpc/append", "t": "R", "cid": 7, "result": "called"}
    ]


def test_s5_a_method_without_a_handler_is_not_found(harness: RouterHarness) -> None:
    harness.request("append")
    assert harness.wire.answers() == [failure(1101, "Method not found")]
    harness.router.route("rpc/append", harness.note("served"))
    harness.request("append")
    harness.router.unroute("rpc/append")
    harness.request("append")
    assert harness.wire.answers()[1:] == [failure(1101, "Method not found")]


@pytest.mark.parametrize("is_async", [False, True])
async def test_s5_a_handler_that_raises_fails_its_request_with_2000(
    harness: RouterHarness, is_async: bool
) -> None:
    async def later(message: Inbound) -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("append failed")

    harness.router.route("rpc/append", later if is_async else harness.fail("append"))
    if (rest := harness.request("append")) is not None:
        await rest
    assert harness.wire.answers() == [failure(2000, "append failed")]


def test_s5_a_second_reply_raises_and_the_first_is_kept(harness: RouterHarness) -> None:
    caught: list[str] = []

    def handler(message: Inbound) -> None:
        assert message.rpc is not None
        message.rpc.reply("first")
        with pytest.raises(AlreadyAnsweredError) as reply:
            message.rpc.reply("second")
        with pytest.raises(AlreadyAnsweredError) as error:
            message.rpc.error(2001, "third")
        caught.extend([str(reply.value), str(error.value)])

    harness.router.route("rpc/append", handler)
    harness.request("append")
    assert harness.wire.answers() == [
        {"subject": "rpc/append", "t": "R", "cid": 7, "result": "first"}
    ]
    assert caught == ["rpc/append (cid 7) has already been answered"] * 2


def test_s5_an_exception_after_the_reply_is_logged(harness: RouterHarness) -> None:
    def handler(message: Inbound) -> None:
        assert message.rpc is not None
        message.rpc.reply("done")
        raise ValueError("afterwards")

    harness.router.route("rpc/append", handler)
    with capture_logs() as logs:
        harness.request("append")
    assert [(entry["event"], str(entry["exc_info"])) for entry in logs] == [
        ("handler failed", "afterwards")
    ]
    assert [answer["t"] for answer in harness.wire.answers()] == ["R"]


def test_s5_a_failure_that_was_replied_ends_a_broadcast(harness: RouterHarness) -> None:
    harness.router.route("rpc/append", harness.fail("tap"), mode="broadcast")
    harness.router.route("rpc/append", harness.note("worker"), mode="broadcast")
    harness.request("append")
    assert harness.record == ["tap"]
    assert harness.wire.answers() == [failure(2000, "tap failed")]


async def test_s5_a_handler_that_returns_a_value_fails_its_request(harness: RouterHarness) -> None:
    harness.router.route("rpc/append", lambda message: {"status": 200})  # type: ignore[arg-type, return-value]
    await harness.request("append")
    (answer,) = harness.wire.answers()
    assert (answer["code"], "await" in answer["message"]) == (2000, True)


async def test_s5_a_reply_may_follow_after_the_handler_has_returned(harness: RouterHarness) -> None:
    seen: list[Inbound] = []
    harness.router.route("rpc/append", seen.append)
    assert harness.request("append") is None
    assert harness.wire.answers() == []
    assert seen[0].rpc is not None
    seen[0].rpc.reply(1)
    assert harness.wire.answers() == [{"subject": "rpc/append", "t": "R", "cid": 7, "result": 1}]
    assert not harness.session.unanswered


# §6: events


@pytest.mark.parametrize(
    "payload",
    [b"", b"junk", encode_request(7, "x", None), encode_success(7, None)],
    ids=["empty", "not MessagePack", "request", "success"],
)
def test_s6_a_payload_that_is_not_a_notification_is_logged_and_dropped(
    harness: RouterHarness, payload: bytes
) -> None:
    harness.router.route("event/x", harness.note("called"))
    with capture_logs() as logs:
        harness.put("event/x", payload)
    assert [(entry["event"], entry["log_level"], entry["subject"]) for entry in logs] == [
        ("event dropped", "warning", "event/x")
    ]
    assert (harness.record, harness.wire.sent) == ([], [])


@pytest.mark.parametrize("subject", ["event/x", "app/x"])
async def test_s6_a_handler_that_raises_is_logged_and_the_next_one_runs(
    harness: RouterHarness, subject: str
) -> None:
    async def fail_later(message: Inbound) -> None:
        await trio.lowlevel.checkpoint()
        harness.record.append("b")
        raise ValueError("b failed")

    harness.router.route(subject, harness.fail("a"))
    harness.router.route(subject, fail_later)
    harness.router.route(subject, harness.note("c"))
    with capture_logs() as logs:
        await harness.put(subject, payload_for(subject))
    assert [f"{entry['log_level']} {entry['event']}: {entry['exc_info']}" for entry in logs] == [
        "warning handler failed: a failed",
        "warning handler failed: b failed",
    ]
    assert (harness.record, harness.wire.sent) == (["a", "b", "c"], [])


def test_s6_an_event_without_a_listener_is_ignored(harness: RouterHarness) -> None:
    with capture_logs() as logs:
        assert harness.event("x") is None
        assert harness.put("app/x", b"opaque") is None
    assert (logs, harness.wire.sent) == ([], [])


# §7: error mapping


class ValidationError(Exception):
    def __init__(self, details: list[str]) -> None:
        super().__init__("invalid")
        self.details = details


def custom_mapper(error: Exception, message: Inbound) -> RpcErrorPayload:
    if isinstance(error, ValidationError):
        return RpcErrorPayload(2001, "Validation failed", error.details)
    if isinstance(error, KeyError):
        return RpcErrorPayload(2002, f"Resource not found by {message.peer_id}")
    if isinstance(error, OSError):
        return RpcErrorPayload(2003, "not encodable", object())
    if str(error) == "no mapping":
        raise LookupError("the mapper is broken")
    return default_error_mapper(error, message)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        pytest.param(
            ValidationError(["n"]),
            failure(2001, "Validation failed", data=["n"]),
            id="§7 code, message and data",
        ),
        pytest.param(
            KeyError("x"),
            failure(2002, "Resource not found by front-0"),
            id="§7 the mapper sees the message",
        ),
        pytest.param(ValueError("plain"), failure(2000, "plain"), id="§7 the default mapper"),
        pytest.param(
            ExceptionGroup("both", [ValueError()]),
            failure(2000, "both (1 sub-exception)"),
            id="§7 a group",
        ),
        pytest.param(
            ValueError("no mapping"), failure(2000, "handler failed"), id="§7 a mapper that raises"
        ),
        pytest.param(
            OSError(), failure(2000, "handler failed"), id="§7 data that cannot be encoded"
        ),
        pytest.param(
            ValueError("\ud800"),
            failure(2000, "handler failed"),
            id="§7 a message that cannot be encoded",
        ),
    ],
)
def test_s7_exceptions_are_mapped_to_errors(error: Exception, answer: dict[str, Any]) -> None:
    harness = RouterHarness(MessageRouter(MessageRouterConfig(error_mapper=custom_mapper)))
    harness.router.route("rpc/append", harness.fail("append", error))
    with capture_logs() as logs:
        harness.request("append")
    assert harness.wire.answers() == [answer]
    assert [entry["event"] for entry in logs] == (
        ["error mapper failed"] if answer["message"] == "handler failed" else []
    )


def test_s7_a_result_that_cannot_be_encoded_fails_the_request(harness: RouterHarness) -> None:
    block = FakeBlock()
    harness.router.route(
        "rpc/append", lambda message: message.rpc.reply(object(), block) if message.rpc else None
    )
    harness.request("append")
    (answer,) = harness.wire.answers()
    assert (answer["t"], answer["code"], block.freed) == ("E", 2000, 1)


async def test_s7_a_cancelled_handler_is_not_a_failed_one(harness: RouterHarness) -> None:
    async def forever(message: Inbound) -> None:
        await trio.sleep_forever()

    harness.router.route("rpc/append", forever)
    with trio.CancelScope() as scope:
        rest = harness.request("append", flags=ARENA)
        scope.cancel()
        await rest
    assert scope.cancelled_caught
    assert (harness.wire.sent, harness.wire.released) == ([], [7])


# Any message


@given(
    st.sampled_from(["rpc/a", "rpc/none", "event/a", "app/a", "stream/a", "x", ""]),
    st.binary(max_size=40)
    | st.dictionaries(
        st.sampled_from(["t", "cid", "method"]), st.integers(-(2**63), 2**63) | st.text()
    ).map(encode),
    st.sampled_from([0, ARENA, ERROR]),
)
def test_any_message_is_handled_without_an_exception(
    subject: str, payload: bytes, flags: int
) -> None:
    harness = RouterHarness()
    for pattern in ("rpc/a", "event/a", "app/a"):
        harness.router.route(pattern, harness.note(pattern))
    with capture_logs() as logs:
        assert harness.put(subject, payload, flags=flags) is None
    answered, called = len(harness.wire.sent), len(harness.record)
    if flags & ERROR:
        assert (answered, called, len(logs)) == (0, 0, 1)
    elif subject == "app/a":
        assert (answered, called) == (0, 1)
    elif subject.startswith("event/"):
        assert (answered, called + len(logs)) == (0, 1)
    elif subject.startswith("rpc/") and not called and not answered:
        assert not logs  # A well-formed reply without a pending call
    else:
        assert answered == 1


@pytest.mark.parametrize("subject", ["rpc/a", "rpc/none", "stream/a", "x"])
def test_a_disconnected_peer_is_not_an_error_for_a_reply(
    harness: RouterHarness, subject: str
) -> None:
    harness.router.route("rpc/a", harness.note("called"))
    harness.wire.broken = True
    assert harness.request("a", subject=subject) is None


# §5: timeouts in virtual time. A test that lets time pass names the clock.


TIMEOUT = {"subject": "rpc/append", "t": "E", "cid": 7, "code": 1103, "message": "Handler timeout"}


class UnresponsiveRouter:
    """A router whose handler keeps every request and replies to none."""

    def __init__(self, nursery: trio.Nursery, timeout_ms: int = 30_000) -> None:
        self.harness = RouterHarness(MessageRouter(MessageRouterConfig(rpc_timeout_ms=timeout_ms)))
        self.kept: list[Inbound] = []
        self.harness.router.route("rpc/append", self._keep)
        nursery.start_soon(self.harness.router.expire_overdue)

    def _keep(self, message: Inbound) -> None:
        assert message.rpc is not None
        self.kept.append(message.rpc)


@pytest.fixture
async def silent(nursery: trio.Nursery) -> UnresponsiveRouter:
    return UnresponsiveRouter(nursery)


async def test_s5_a_request_without_a_reply_times_out_after_exactly_thirty_seconds(
    autojump_clock: MockClock, silent: UnresponsiveRouter
) -> None:
    start = trio.current_time()
    silent.harness.request()
    await trio.sleep_until(start + 29.999)
    assert silent.harness.wire.answers() == []
    with capture_logs() as logs:
        await trio.sleep_until(start + 30.001)
    assert silent.harness.wire.answers() == [TIMEOUT]
    assert [(entry["event"], entry["cid"]) for entry in logs] == [("rpc timed out", 7)]


async def test_s5_the_timeout_is_configurable(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    silent = UnresponsiveRouter(nursery, timeout_ms=50)
    silent.harness.request()
    await trio.sleep(0.049)
    assert silent.harness.wire.answers() == []
    await trio.sleep(0.002)
    assert silent.harness.wire.answers() == [TIMEOUT]


async def test_s5_each_request_has_its_own_deadline(
    autojump_clock: MockClock, silent: UnresponsiveRouter
) -> None:
    other = RouterHarness(silent.harness.router)
    start = trio.current_time()
    for cid, (harness, at) in enumerate(
        [(silent.harness, 0), (other, 1), (silent.harness, 5), (other, 20)]
    ):
        await trio.sleep_until(start + at)
        harness.request(cid=cid)
    silent.kept[2].reply()
    assert [answer["cid"] for answer in silent.harness.wire.answers()] == [2]
    expired: list[str] = []
    for then in (29.9, 30.1, 31.1, 35.1, 49.9, 50.1):
        await trio.sleep_until(start + then)
        cids = [answer["cid"] for answer in silent.harness.wire.answers() + other.wire.answers()]
        expired.append(f"{then}: {cids}")
    assert expired == ["29.9: []", "30.1: [0]", "31.1: [1]", "35.1: []", "49.9: []", "50.1: [3]"]


async def test_s5_a_request_after_an_idle_time_has_a_timeout_too(
    autojump_clock: MockClock, silent: UnresponsiveRouter
) -> None:
    for _ in range(3):
        await trio.sleep(100)
        silent.harness.request()
        await trio.sleep(30.001)
        assert silent.harness.wire.answers() == [TIMEOUT]


async def test_s5_a_reply_in_time_leaves_no_state(
    autojump_clock: MockClock, silent: UnresponsiveRouter
) -> None:
    silent.harness.request()
    assert len(silent.harness.session.unanswered) == 1
    await trio.sleep(29)
    silent.kept[0].reply("in time")
    assert not silent.harness.session.unanswered
    await trio.sleep(100)
    assert [answer["t"] for answer in silent.harness.wire.answers()] == ["R"]


async def test_s5_a_late_reply_is_dropped_and_logged_once(
    autojump_clock: MockClock, silent: UnresponsiveRouter
) -> None:
    silent.harness.request(flags=ARENA)
    await trio.sleep(31)
    assert silent.harness.wire.answers() == [TIMEOUT]
    assert silent.harness.wire.released == []  # The handler may still be reading
    block = FakeBlock()
    with capture_logs() as logs:
        silent.kept[0].reply("late", block)
    assert [(entry["event"], entry["cid"]) for entry in logs] == [("late reply dropped", 7)]
    assert (silent.harness.wire.sent, silent.harness.wire.released, block.freed) == ([], [7], 1)
    with pytest.raises(AlreadyAnsweredError):
        silent.kept[0].reply("later still")


async def test_s5_an_async_handler_times_out_and_is_not_stopped(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    harness = RouterHarness()
    nursery.start_soon(harness.router.expire_overdue)

    async def slow(message: Inbound) -> None:
        assert message.rpc is not None
        await trio.sleep(40)
        harness.record.append(f"open {message.is_open}")
        message.rpc.reply("late")

    harness.router.route("rpc/append", slow)
    nursery.start_soon(lambda: harness.request(flags=ARENA))
    await trio.sleep(30.5)
    assert (harness.wire.answers(), harness.record) == ([TIMEOUT], [])
    await trio.sleep(10)
    assert (harness.wire.answers(), harness.record, harness.wire.released) == (
        [],
        ["open False"],
        [7],
    )


async def test_s5_a_handler_that_raises_after_its_timeout_is_logged(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    harness = RouterHarness()
    nursery.start_soon(harness.router.expire_overdue)

    async def slow(message: Inbound) -> None:
        await trio.sleep(40)
        raise ValueError("too late")

    harness.router.route("rpc/append", slow)
    nursery.start_soon(lambda: harness.request(flags=ARENA))
    with capture_logs() as logs:
        await trio.sleep(41)
    assert [entry["event"] for entry in logs] == ["rpc timed out", "handler failed"]
    assert (harness.wire.answers(), harness.wire.released) == ([TIMEOUT], [7])


async def test_s5_requests_of_a_closed_session_do_not_time_out(
    autojump_clock: MockClock, silent: UnresponsiveRouter
) -> None:
    silent.harness.request()
    silent.harness.session.close()
    assert not silent.harness.session.unanswered
    with capture_logs() as logs:
        await trio.sleep(100)
    assert (silent.harness.wire.sent, logs) == ([], [])


async def test_s5_a_disconnected_peer_is_not_an_error_at_the_deadline(
    autojump_clock: MockClock, silent: UnresponsiveRouter
) -> None:
    silent.harness.request()
    silent.harness.wire.broken = True
    await trio.sleep(31)
    silent.harness.wire.broken = False
    silent.harness.request(cid=8)
    await trio.sleep(31)
    assert [answer["cid"] for answer in silent.harness.wire.answers()] == [8]
