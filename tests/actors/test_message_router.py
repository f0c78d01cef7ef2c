"""ADR 011, section by section: registration, policy, order, the rules of each kind, failures. Test
ids name the section.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cbor2
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.actors.wire import Bench, FakeBlock
from topics.actors.rpc.inbound import AlreadyAnsweredError, InboundMessage
from topics.actors.rpc.message_router import (
    MessageRouter,
    RouterConfig,
    RpcErrorPayload,
    default_error_mapper,
)
from topics.actors.rpc.subject_policy import Mode, SubjectKind, SubjectPolicy
from topics.formats.wire.envelope import encode_notification, encode_request, encode_success
from topics.formats.wire.message import ARENA, ERROR


@pytest.fixture
def bench() -> Bench:
    return Bench()


def payload_for(subject: str) -> bytes:
    if subject.startswith("rpc/"):
        return encode_request(7, subject[4:], None)
    return encode_notification(subject[6:], None) if subject.startswith("event/") else b"opaque"


# --- §1, §4, §8: who is called, and in which order
# -------------------------------------------------------------------


class Route(NamedTuple):
    """``name`` is recorded when the handler runs. ``pattern`` ends in ``*`` for a prefix."""

    name: str
    pattern: str
    mode: Mode | None = None
    in_session: bool = False

    def register(self, bench: Bench) -> Callable[[], None]:
        table = bench.session.router if self.in_session else bench.router
        if self.pattern.endswith("*"):
            return table.route_prefix(self.pattern[:-1], bench.note(self.name), mode=self.mode)
        return table.route(self.pattern, bench.note(self.name), mode=self.mode)


ADR_EXAMPLE = [Route("A", "event/user.joined"), Route("B", "event/user.*"), Route("C", "event/*")]

ORDER = {
    "§4 the example, broadcast": (ADR_EXAMPLE, "event/user.joined", "A B C"),
    "§4 the example registered backwards": (ADR_EXAMPLE[::-1], "event/user.joined", "A B C"),
    "§4 the example, exclusive": (
        [r._replace(mode="exclusive") for r in ADR_EXAMPLE],
        "event/user.joined",
        "A",
    ),
    "§4 only what matches": (ADR_EXAMPLE, "event/user.left", "B C"),
    "§4 registration order among exact": (
        [Route("1", "app/x"), Route("2", "app/x"), Route("3", "app/x")],
        "app/x",
        "1 2 3",
    ),
    "§4 registration order in one prefix": (
        [Route("1", "app/*"), Route("2", "app/*")],
        "app/x",
        "1 2",
    ),
    "§4 a prefix matches itself": ([Route("P", "app/*")], "app/", "P"),
    "§4 an exact subject is not a prefix": ([Route("X", "app/x")], "app/xy", ""),
    "§4 the empty prefix is the last": ([Route("all", "*"), Route("P", "app/*")], "app/x", "P all"),
    "§3 rpc is exclusive": (
        [Route("1", "rpc/a"), Route("2", "rpc/a"), Route("P", "rpc/*")],
        "rpc/a",
        "1",
    ),
    "§3 event is broadcast": ([Route("1", "event/a"), Route("P", "event/*")], "event/a", "1 P"),
    "§3 app is broadcast": ([Route("1", "app/a"), Route("P", "app/*")], "app/a", "1 P"),
    "§3 the empty prefix takes each subject's mode": (
        [Route("1", "*"), Route("2", "*")],
        "rpc/a",
        "1",
    ),
    "§1 rpc may broadcast": (
        [Route("tap", "rpc/a", "broadcast"), Route("P", "rpc/*")],
        "rpc/a",
        "tap P",
    ),
    "§1 an event may be exclusive": (
        [Route("1", "event/a", "exclusive"), Route("P", "event/*")],
        "event/a",
        "1",
    ),
    "§4 the first exclusive one is the last": (
        [Route("1", "app/x"), Route("2", "app/x*", "exclusive"), Route("3", "app/*")],
        "app/x",
        "1 2",
    ),
    "§8 the session before global, rank being equal": (
        [Route("g", "event/a"), Route("s", "event/a", in_session=True), Route("g2", "event/a")],
        "event/a",
        "s g g2",
    ),
    "§8 rank before scope": (
        [Route("s", "event/*", in_session=True), Route("g", "event/a")],
        "event/a",
        "g s",
    ),
    "§8 a session overrides a global method": (
        [Route("g", "rpc/a"), Route("s", "rpc/a", in_session=True)],
        "rpc/a",
        "s",
    ),
    "§8 a session's catch-all does not hide a method": (
        [Route("s", "rpc/*", in_session=True), Route("g", "rpc/a")],
        "rpc/a",
        "g",
    ),
}


@pytest.mark.parametrize(("routes", "subject", "called"), ORDER.values(), ids=ORDER.keys())
def test_handlers_run_in_the_order_of_the_document(
    bench: Bench, routes: list[Route], subject: str, called: str
) -> None:
    for route in routes:
        route.register(bench)
    for _ in range(2):  # the second time from what was resolved the first time
        bench.put(subject, payload_for(subject))
        assert bench.record == called.split()
        bench.record.clear()


@given(st.lists(st.sampled_from(["app/", "app/a", "app/ab", "app/abc", ""]), max_size=8), st.data())
def test_order_is_rank_then_registration(prefixes: list[str], data: st.DataObject) -> None:
    bench = Bench()
    modes: list[Mode | None] = [data.draw(st.sampled_from([None, "exclusive"])) for _ in prefixes]
    for number, (prefix, mode) in enumerate(zip(prefixes, modes, strict=True)):
        bench.router.route_prefix(prefix, bench.note(str(number)), mode=mode)
    bench.put("app/abc", b"")
    expected: list[str] = []
    for number in sorted(range(len(prefixes)), key=lambda n: (-len(prefixes[n]), n)):
        expected.append(str(number))
        if modes[number] == "exclusive":
            break
    assert bench.record == expected


def test_s1_unsubscribe_takes_back_one_registration_once(bench: Bench) -> None:
    first = bench.router.route("app/x", bench.note("first"))
    bench.router.route("app/x", bench.note("second"))
    bench.put("app/x", b"")
    first()
    bench.put("app/x", b"")
    first()
    bench.put("app/x", b"")
    assert bench.record == ["first", "second", "second", "second"]


def test_s1_the_same_handler_twice_is_two_registrations(bench: Bench) -> None:
    handler = bench.note("twice")
    first = bench.router.route("app/x", handler)
    bench.router.route("app/x", handler)
    bench.put("app/x", b"")
    first()
    bench.put("app/x", b"")
    assert bench.record == ["twice"] * 3


def test_s1_unroute_takes_all_of_the_subject_and_no_prefix(bench: Bench) -> None:
    bench.router.route("app/x", bench.note("1"))
    stale = bench.router.route("app/x", bench.note("2"))
    bench.router.route_prefix("app/x", bench.note("prefix"))
    bench.router.route("app/y", bench.note("other"))
    bench.router.unroute("app/x")
    bench.router.route("app/x", bench.note("new"))
    stale()
    for subject in ("app/x", "app/y"):
        bench.put(subject, b"")
    assert bench.record == ["new", "prefix", "other"]


def test_s1_clear_takes_all_of_its_own_scope(bench: Bench) -> None:
    bench.router.route("app/x", bench.note("exact"))
    bench.router.route_prefix("app/", bench.note("prefix"))
    bench.session.router.route("app/x", bench.note("session"))
    bench.put("app/x", b"")
    bench.router.clear()
    bench.put("app/x", b"")
    bench.session.router.clear()
    bench.put("app/x", b"")
    assert bench.record == ["session", "exact", "prefix", "session"]


def test_s1_an_unknown_mode_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="'both' is not one of broadcast, exclusive"):
        bench.router.route("app/x", bench.note("x"), mode="both")  # type: ignore[arg-type]


def test_s8_one_sessions_handlers_are_not_anothers(bench: Bench) -> None:
    other = Bench(bench.router)
    bench.session.router.route("app/x", bench.note("mine"))
    other.put("app/x", b"")
    bench.put("app/x", b"")
    assert (bench.record, other.record) == (["mine"], [])


# --- registrations that change under way
# -----------------------------------------------------------------------------


def test_s4_a_handler_added_in_a_dispatch_waits_for_the_next_message(bench: Bench) -> None:
    added: list[Callable[[], None]] = []

    def add(message: InboundMessage) -> None:
        bench.record.append("add")
        if not added:
            added.append(bench.router.route("app/x", bench.note("added")))

    bench.router.route("app/x", add)
    bench.put("app/x", b"")
    bench.put("app/x", b"")
    assert bench.record == ["add", "add", "added"]


def test_s4_a_handler_taken_back_in_a_dispatch_is_not_called_any_more(bench: Bench) -> None:
    bench.router.route("app/x", lambda message: take_back())
    take_back = bench.router.route("app/x", bench.note("gone"))
    bench.router.route("app/x", bench.note("stays"))
    bench.put("app/x", b"")
    assert bench.record == ["stays"]


async def test_s4_a_handler_taken_back_while_another_one_waits_is_not_called(bench: Bench) -> None:
    go_on = trio.Event()

    async def wait(message: InboundMessage) -> None:
        await go_on.wait()

    bench.router.route("app/x", wait)
    take_back = bench.router.route("app/x", bench.note("gone"))
    bench.router.route("app/x", bench.note("stays"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.put("app/x", b""))
        await trio.testing.wait_all_tasks_blocked()
        take_back()
        go_on.set()
    assert bench.record == ["stays"]


# --- §4: sequential
# --------------------------------------------------------------------------------------------------


async def test_s4_broadcast_awaits_each_handler_before_the_next(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    def slow(name: str) -> Callable[[InboundMessage], Any]:
        async def handler(message: InboundMessage) -> None:
            bench.record.append(f"{name} starts")
            await trio.sleep(1)
            bench.record.append(f"{name} ends")

        return handler

    bench.router.route("event/x", bench.note("plain 1"))
    bench.router.route("event/x", slow("a"))
    bench.router.route("event/x", bench.note("plain 2"))
    bench.router.route_prefix("event/", slow("b"))
    bench.router.route_prefix("event/", bench.note("plain 3"))
    rest = bench.event("x")
    assert bench.record == ["plain 1"]
    await rest
    assert bench.record == [
        "plain 1",
        "a starts",
        "a ends",
        "plain 2",
        "b starts",
        "b ends",
        "plain 3",
    ]


async def test_s4_a_plain_callable_that_gives_an_awaitable_is_awaited(bench: Bench) -> None:
    async def work() -> None:
        await trio.lowlevel.checkpoint()
        bench.record.append("awaited")

    bench.router.route("app/x", lambda message: work())
    bench.router.route("app/x", bench.note("after"))
    await bench.put("app/x", b"")
    assert bench.record == ["awaited", "after"]


# --- §2, §9: the message
# ---------------------------------------------------------------------------------------------


async def test_s2_a_handler_sees_all_of_the_message(bench: Bench) -> None:
    seen: list[InboundMessage] = []
    bench.router.route("rpc/append", seen.append)
    payload = encode_request(9, "append", {"topic": "a"})
    bench.put("rpc/append", payload, frame_id=9, attachment=b"body")
    (message,) = seen
    assert message.rpc is not None
    assert (message.subject, message.payload, message.attachment) == (
        "rpc/append",
        payload,
        b"body",
    )
    assert (message.peer_id, message.session, message.frame.frame_id) == (
        "front-0",
        bench.session,
        9,
    )
    assert (message.rpc.method, message.rpc.params, message.rpc.cid) == (
        "append",
        {"topic": "a"},
        9,
    )
    assert message.notification is None


def test_s2_rpc_is_there_only_for_a_request(bench: Bench) -> None:
    seen: list[InboundMessage] = []
    bench.router.route_prefix("", seen.append)
    bench.event("topic.appended", {"topic": "a"})
    bench.put("app/x", encode_request(7, "append", None))
    event, custom = seen
    assert (event.rpc, custom.rpc) == (None, None)
    assert event.notification is not None
    assert (event.notification.method, event.notification.params) == (
        "topic.appended",
        {"topic": "a"},
    )
    assert custom.notification is None


@pytest.mark.parametrize(
    "name",
    ["subject", "payload", "attachment", "peer_id", "session", "frame", "rpc", "notification"],
)
def test_s9_nothing_of_a_message_can_be_set(bench: Bench, name: str) -> None:
    seen: list[InboundMessage] = []
    bench.router.route("app/x", seen.append)
    bench.put("app/x", b"")
    with pytest.raises(AttributeError):
        setattr(seen[0], name, None)
    with pytest.raises(AttributeError):
        seen[0].frame.frame_id = 8  # type: ignore[misc]


def test_s9_every_message_goes_out_under_a_fresh_frame_id(bench: Bench) -> None:
    def handler(message: InboundMessage) -> None:
        assert message.rpc is not None
        message.send("event/x", encode_notification("x", None))
        message.send("event/x", encode_notification("x", None))
        message.rpc.reply()

    bench.router.route("rpc/a", handler)
    for cid in (7, 8):
        bench.request("a", cid=cid)
    bench.request("unknown", cid=9)
    bench.put("stream/x", b"")
    ids = bench.wire.frame_ids
    assert len(ids) == len(set(ids)) == 8
    assert not {7, 8, 9} & set(ids)


def test_s9_a_reply_keeps_subject_and_cid(bench: Bench) -> None:
    bench.router.route(
        "rpc/a", lambda message: message.rpc.reply({"n": 1}, b"body") if message.rpc else None
    )
    bench.request("a", cid=41)
    (frame,) = bench.wire.sent
    assert (frame.subject, cbor2.loads(frame.payload), frame.attachment) == (
        "rpc/a",
        {"t": "R", "cid": 41, "result": {"n": 1}},
        b"body",
    )


# --- §3: policy
# ------------------------------------------------------------------------------------------------------

MALFORMED = "malformed payload: "


def refused(code: int, message: str, about: int = 7) -> dict[str, Any]:
    return {"error_frame": True, "code": code, "message": message, "about": about}


RESERVED = refused(1003, "reserved subject prefix")
NOT_ALLOWED = refused(1002, "subject is under no allowed prefix")

POLICIES = {
    "§3 stream is reserved": (SubjectPolicy(), "stream/x", [RESERVED]),
    "§3 an unknown prefix": (SubjectPolicy(), "debug/x", [NOT_ALLOWED]),
    "§3 an empty subject": (SubjectPolicy(), "", [NOT_ALLOWED]),
    "§3 a prefix without its slash": (SubjectPolicy(), "rpc", [NOT_ALLOWED]),
    "§3 app is let through": (SubjectPolicy(), "app/x", []),
    "§3 reserved wins over allowed": (SubjectPolicy(("app/",), ("app/",)), "app/x", [RESERVED]),
    "§3 reserved inside allowed": (
        SubjectPolicy(("app/",), ("app/internal/",)),
        "app/internal/x",
        [RESERVED],
    ),
    "§3 reserved need not be allowed": (
        SubjectPolicy(("app/",), ("stream/",)),
        "stream/x",
        [RESERVED],
    ),
    "§3 a custom prefix": (SubjectPolicy(("app/", "debug/"), ()), "debug/x", []),
    "§3 a prefix that is reserved no more": (SubjectPolicy(reserved_prefixes=()), "stream/x", []),
    "§3 classify says reserved": (
        SubjectPolicy(classify=lambda subject: "reserved"),
        "app/x",
        [RESERVED],
    ),
    "§3 classify comes after reserved": (
        SubjectPolicy(classify=lambda subject: "custom"),
        "stream/x",
        [RESERVED],
    ),
    "§3 classify comes after allowed": (
        SubjectPolicy(classify=lambda subject: "custom"),
        "debug/x",
        [NOT_ALLOWED],
    ),
}


@pytest.mark.parametrize(("policy", "subject", "sent"), POLICIES.values(), ids=POLICIES.keys())
def test_s3_the_policy_decides_what_passes(
    policy: SubjectPolicy, subject: str, sent: list[dict[str, Any]]
) -> None:
    bench = Bench(MessageRouter(RouterConfig(subject_policy=policy)))
    bench.router.route_prefix("", bench.note("called"))
    for _ in range(2):
        bench.put(subject, b"opaque")
        assert bench.wire.answers() == sent
    assert bench.record == ([] if sent else ["called", "called"])


@pytest.mark.parametrize(
    "payload",
    [b"", b"opaque", encode_notification("x", None)],
    ids=["empty", "opaque", "notification"],
)
def test_s3_what_is_classified_as_rpc_must_be_an_rpc(payload: bytes) -> None:
    bench = Bench(
        MessageRouter(RouterConfig(subject_policy=SubjectPolicy(classify=lambda subject: "rpc")))
    )
    bench.router.route("app/x", bench.note("called"))
    bench.put("app/x", payload)
    (answer,) = bench.wire.answers()
    assert (answer["code"], answer["about"], answer["message"][: len(MALFORMED)]) == (
        1002,
        7,
        MALFORMED,
    )
    assert bench.record == []


def test_s3_what_is_classified_as_rpc_is_answered_as_rpc() -> None:
    bench = Bench(
        MessageRouter(RouterConfig(subject_policy=SubjectPolicy(classify=lambda subject: "rpc")))
    )
    bench.router.route("app/x", bench.note("first"))
    bench.router.route("app/x", bench.note("second"))
    bench.request("x", subject="app/x")
    assert bench.wire.answers() == [{"subject": "app/x", "t": "R", "cid": 7, "result": "first"}]
    assert bench.record == ["first"]


def test_s3_what_is_classified_as_event_must_be_a_notification() -> None:
    bench = Bench(
        MessageRouter(RouterConfig(subject_policy=SubjectPolicy(classify=lambda subject: "event")))
    )
    bench.router.route("rpc/a", bench.note("called"))
    with capture_logs() as logs:
        bench.request("a")
    assert (bench.wire.answers(), bench.record, [entry["event"] for entry in logs]) == (
        [],
        [],
        ["event dropped"],
    )


def test_s3_a_classifier_that_names_no_kind_is_a_bug_and_says_so() -> None:
    def classify(subject: str) -> SubjectKind:
        return "rpcc"  # type: ignore[return-value]

    bench = Bench(MessageRouter(RouterConfig(subject_policy=SubjectPolicy(classify=classify))))
    with pytest.raises(ValueError, match=r"classify\('app/x'\) gave 'rpcc'"):
        bench.put("app/x", b"")


@pytest.mark.parametrize("pattern", ["stream/x", "debug/x", "rpc", ""])
def test_s3_a_handler_that_no_message_can_reach_is_refused(bench: Bench, pattern: str) -> None:
    with pytest.raises(ValueError, match="no message will ever reach this handler"):
        bench.router.route(pattern, bench.note("x"))


@pytest.mark.parametrize(
    ("prefix", "possible"),
    [("stream/", False), ("debug/", False), ("", True), ("r", True), ("rpc/a", True)],
)
def test_s3_a_prefix_must_meet_an_allowed_one(bench: Bench, prefix: str, possible: bool) -> None:
    if possible:
        bench.router.route_prefix(prefix, bench.note("x"))
    else:
        with pytest.raises(ValueError, match="no message will ever reach this handler"):
            bench.session.router.route_prefix(prefix, bench.note("x"))


# --- §5: rpc
# ---------------------------------------------------------------------------------------------------------


def failure(code: int, message: str, **data: Any) -> dict[str, Any]:
    return {"subject": "rpc/append", "t": "E", "cid": 7, "code": code, "message": message} | data


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"junk",
        cbor2.dumps({"t": "Q", "cid": "7", "method": "append"}),
        encode_notification("append", None),
    ],
    ids=["empty", "not CBOR", "cid is text", "notification"],
)
def test_s5_a_malformed_envelope_is_refused_and_the_session_goes_on(
    bench: Bench, payload: bytes
) -> None:
    bench.router.route("rpc/append", bench.note("called"))
    bench.put("rpc/append", payload)
    (answer,) = bench.wire.answers()
    assert (answer["code"], answer["about"], answer["message"][: len(MALFORMED)]) == (
        1002,
        7,
        MALFORMED,
    )
    bench.request("append")
    assert bench.wire.answers() == [
        {"subject": "rpc/append", "t": "R", "cid": 7, "result": "called"}
    ]


def test_s5_malformed_comes_before_method_not_found(bench: Bench) -> None:
    bench.put("rpc/unknown", b"junk")
    assert [answer["code"] for answer in bench.wire.answers()] == [1002]


def test_s5_without_a_handler_the_method_is_not_found(bench: Bench) -> None:
    bench.request("append")
    assert bench.wire.answers() == [failure(1101, "Method not found")]
    bench.router.route("rpc/append", bench.note("served"))
    bench.request("append")
    bench.router.unroute("rpc/append")
    bench.request("append")
    assert bench.wire.answers()[1:] == [failure(1101, "Method not found")]


def test_s5_a_handler_that_raises_is_answered_with_2000(bench: Bench) -> None:
    bench.router.route("rpc/append", bench.fail("append"))
    assert bench.request("append") is None
    assert bench.wire.answers() == [failure(2000, "append failed")]


async def test_s5_an_async_handler_that_raises_is_answered_with_2000(bench: Bench) -> None:
    async def handler(message: InboundMessage) -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("later")

    bench.router.route("rpc/append", handler)
    await bench.request("append")
    assert bench.wire.answers() == [failure(2000, "later")]


def test_s5_rpc_error_carries_data_only_when_there_is_some(bench: Bench) -> None:
    bench.router.route(
        "rpc/append",
        lambda message: message.rpc.error(2001, "no", {"n": 1}) if message.rpc else None,
    )
    bench.request("append")
    bench.router.unroute("rpc/append")
    bench.router.route(
        "rpc/append", lambda message: message.rpc.error(2001, "no") if message.rpc else None
    )
    bench.request("append")
    assert bench.wire.answers() == [failure(2001, "no", data={"n": 1}), failure(2001, "no")]


def test_s5_the_second_answer_raises_and_the_first_stands(bench: Bench) -> None:
    caught: list[str] = []

    def handler(message: InboundMessage) -> None:
        assert message.rpc is not None
        message.rpc.reply("first")
        with pytest.raises(AlreadyAnsweredError) as reply:
            message.rpc.reply("second")
        with pytest.raises(AlreadyAnsweredError) as error:
            message.rpc.error(2001, "third")
        caught.extend([str(reply.value), str(error.value)])

    bench.router.route("rpc/append", handler)
    bench.request("append")
    assert bench.wire.answers() == [
        {"subject": "rpc/append", "t": "R", "cid": 7, "result": "first"}
    ]
    assert caught == ["rpc/append (cid 7) has been answered already"] * 2


def test_s5_raising_after_the_answer_is_logged(bench: Bench) -> None:
    def handler(message: InboundMessage) -> None:
        assert message.rpc is not None
        message.rpc.reply("done")
        raise ValueError("afterwards")

    bench.router.route("rpc/append", handler)
    with capture_logs() as logs:
        bench.request("append")
    assert [(entry["event"], str(entry["exc_info"])) for entry in logs] == [
        ("handler failed", "afterwards")
    ]
    assert [answer["t"] for answer in bench.wire.answers()] == ["R"]


def test_s5_a_failure_that_was_answered_ends_a_broadcast(bench: Bench) -> None:
    bench.router.route("rpc/append", bench.fail("tap"), mode="broadcast")
    bench.router.route("rpc/append", bench.note("worker"), mode="broadcast")
    bench.request("append")
    assert bench.record == ["tap"]
    assert bench.wire.answers() == [failure(2000, "tap failed")]


async def test_s5_a_handler_that_returns_a_value_made_a_mistake(bench: Bench) -> None:
    bench.router.route("rpc/append", lambda message: {"status": 200})  # type: ignore[arg-type, return-value]
    await bench.request("append")
    (answer,) = bench.wire.answers()
    assert (answer["code"], "await" in answer["message"]) == (2000, True)


async def test_s5_an_answer_may_come_after_the_handler_has_returned(bench: Bench) -> None:
    seen: list[InboundMessage] = []
    bench.router.route("rpc/append", seen.append)
    assert bench.request("append") is None
    assert bench.wire.answers() == []
    assert seen[0].rpc is not None
    seen[0].rpc.reply(1)
    assert bench.wire.answers() == [{"subject": "rpc/append", "t": "R", "cid": 7, "result": 1}]
    assert not bench.session.unanswered


# --- §6: events
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [b"", b"junk", encode_request(7, "x", None), encode_success(7, None)],
    ids=["empty", "not CBOR", "request", "success"],
)
def test_s6_what_is_no_notification_is_logged_and_dropped(bench: Bench, payload: bytes) -> None:
    bench.router.route("event/x", bench.note("called"))
    with capture_logs() as logs:
        bench.put("event/x", payload)
    assert [(entry["event"], entry["log_level"], entry["subject"]) for entry in logs] == [
        ("event dropped", "warning", "event/x")
    ]
    assert (bench.record, bench.wire.sent) == ([], [])


async def test_s6_a_handler_that_raises_is_logged_and_the_next_runs(bench: Bench) -> None:
    async def fail_later(message: InboundMessage) -> None:
        await trio.lowlevel.checkpoint()
        bench.record.append("b")
        raise ValueError("b failed")

    bench.router.route("event/x", bench.fail("a"))
    bench.router.route("event/x", fail_later)
    bench.router.route("event/x", bench.note("c"))
    with capture_logs() as logs:
        await bench.event("x")
    assert [f"{entry['log_level']} {entry['event']}: {entry['exc_info']}" for entry in logs] == [
        "warning handler failed: a failed",
        "warning handler failed: b failed",
    ]
    assert (bench.record, bench.wire.sent) == (["a", "b", "c"], [])


def test_s6_nobody_need_listen(bench: Bench) -> None:
    with capture_logs() as logs:
        assert bench.event("x") is None
        assert bench.put("app/x", b"opaque") is None
    assert (logs, bench.wire.sent) == ([], [])


def test_s6_a_custom_handler_that_raises_is_logged_and_the_next_runs(bench: Bench) -> None:
    bench.router.route("app/x", bench.fail("a"))
    bench.router.route("app/x", bench.note("b"))
    with capture_logs() as logs:
        bench.put("app/x", b"opaque")
    assert ([entry["event"] for entry in logs], bench.record, bench.wire.sent) == (
        ["handler failed"],
        ["a", "b"],
        [],
    )


# --- §7: error mapping
# -----------------------------------------------------------------------------------------------


class ValidationError(Exception):
    def __init__(self, details: list[str]) -> None:
        super().__init__("invalid")
        self.details = details


def custom_mapper(error: Exception, message: InboundMessage) -> RpcErrorPayload:
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
        pytest.param(OSError(), failure(2000, "handler failed"), id="§7 data without a CBOR form"),
        pytest.param(
            ValueError("\ud800"),
            failure(2000, "handler failed"),
            id="§7 a message without a CBOR form",
        ),
    ],
)
def test_s7_errors_are_mapped(error: Exception, answer: dict[str, Any]) -> None:
    bench = Bench(MessageRouter(RouterConfig(error_mapper=custom_mapper)))
    bench.router.route("rpc/append", bench.fail("append", error))
    with capture_logs() as logs:
        bench.request("append")
    assert bench.wire.answers() == [answer]
    assert [entry["event"] for entry in logs] == (
        ["error mapper failed"] if answer["message"] == "handler failed" else []
    )


def test_s7_a_mapper_that_answers_itself_and_then_raises_is_logged() -> None:
    def mapper(error: Exception, message: InboundMessage) -> RpcErrorPayload:
        assert message.rpc is not None
        message.rpc.error(2005, "answered by the mapper")
        raise error

    bench = Bench(MessageRouter(RouterConfig(error_mapper=mapper)))
    bench.router.route("rpc/append", bench.fail("append"))
    with capture_logs() as logs:
        bench.request("append")
    assert bench.wire.answers() == [failure(2005, "answered by the mapper")]
    assert [entry["event"] for entry in logs] == ["error mapper failed"]


def test_s7_a_result_without_a_cbor_form_is_the_handlers_error(bench: Bench) -> None:
    block = FakeBlock()
    bench.router.route(
        "rpc/append", lambda message: message.rpc.reply(object(), block) if message.rpc else None
    )
    bench.request("append")
    (answer,) = bench.wire.answers()
    assert (answer["t"], answer["code"], block.freed) == ("E", 2000, 1)


async def test_s7_a_cancelled_handler_is_not_a_failed_one(bench: Bench) -> None:
    async def forever(message: InboundMessage) -> None:
        await trio.sleep_forever()

    bench.router.route("rpc/append", forever)
    with trio.CancelScope() as scope:
        rest = bench.request("append", flags=ARENA)
        scope.cancel()
        await rest
    assert scope.cancelled_caught
    assert (bench.wire.sent, bench.wire.released) == ([], [7])


# --- attachments that lie in the peer's memory
# -----------------------------------------------------------------------


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
        pytest.param(lambda b: b.put("", b"junk", flags=ARENA | ERROR), None, id="error frame"),
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
    seen: list[InboundMessage] = []
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
    async def wait(message: InboundMessage) -> None:
        await trio.lowlevel.checkpoint()
        bench.record.append(f"released {bench.wire.released}")

    bench.router.route("event/a", wait)
    bench.router.route_prefix("event/", wait)
    await bench.event("a", flags=ARENA)
    assert (bench.record, bench.wire.released) == (["released []", "released []"], [7])


# --- whatever comes
# --------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["rpc/a", "rpc/none", "event/a", "app/a", "stream/a", "x", ""]),
    st.binary(max_size=40)
    | st.dictionaries(st.sampled_from(["t", "cid", "method"]), st.integers() | st.text()).map(
        cbor2.dumps
    ),
    st.sampled_from([0, ARENA, ERROR]),
)
def test_any_message_is_taken_without_an_exception(
    subject: str, payload: bytes, flags: int
) -> None:
    bench = Bench()
    for pattern in ("rpc/a", "event/a", "app/a"):
        bench.router.route(pattern, bench.note(pattern))
    with capture_logs() as logs:
        assert bench.put(subject, payload, flags=flags) is None
    answered, called = len(bench.wire.sent), len(bench.record)
    if flags & ERROR:
        assert (answered, called, len(logs)) == (0, 0, 1)
    elif subject == "app/a":
        assert (answered, called) == (0, 1)
    elif subject.startswith("event/"):
        assert (answered, called + len(logs)) == (0, 1)
    elif subject.startswith("rpc/") and not called and not answered:
        assert not logs  # a well-formed answer that nobody waits for
    else:
        assert answered == 1


def test_a_peer_that_makes_up_subjects_does_not_fill_the_memory(bench: Bench) -> None:
    bench.router.route_prefix("app/", bench.note("x"))
    for number in range(5000):
        bench.put(f"app/{number}", b"")
    assert len(bench.session.plans) <= 1024
    assert len(bench.record) == 5000


@pytest.mark.parametrize("subject", ["rpc/a", "rpc/none", "stream/a", "x"])
def test_a_peer_that_is_gone_before_it_is_answered_is_no_error(bench: Bench, subject: str) -> None:
    bench.router.route("rpc/a", bench.note("called"))
    bench.wire.broken = True
    assert bench.request("a", subject=subject) is None
