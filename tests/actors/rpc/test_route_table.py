"""ADR 011 §1, §3, §4: which subjects pass, which handlers a message gets, in which order, and
registrations that change meanwhile. Test ids name the section.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.support.wire import Bench, Inbound, encode_notification, payload_for
from topics.actors.rpc.message_router import MessageRouter, RouterConfig
from topics.actors.rpc.route_table import Mode, SubjectKind, SubjectPolicy

# §1, §4, §8: who is called, and in which order


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
    handler = bench.note("twice")
    first = bench.router.route("app/x", handler)
    bench.router.route("app/x", handler)
    bench.put("app/x", b"")
    for _ in range(2):
        first()
        bench.put("app/x", b"")
    assert bench.record == ["twice"] * 4


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


def test_s8_one_sessions_handlers_are_not_anothers(bench: Bench) -> None:
    other = Bench(bench.router)
    bench.session.router.route("app/x", bench.note("mine"))
    other.put("app/x", b"")
    bench.put("app/x", b"")
    assert (bench.record, other.record) == (["mine"], [])


# Registrations that change under way


def test_s4_a_handler_added_in_a_dispatch_waits_for_the_next_message(bench: Bench) -> None:
    added: list[Callable[[], None]] = []

    def add(message: Inbound) -> None:
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

    async def wait(message: Inbound) -> None:
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


# §4: sequential


async def test_s4_broadcast_awaits_each_handler_before_the_next(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    def slow(name: str) -> Callable[[Inbound], Any]:
        async def handler(message: Inbound) -> None:
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


# §3: policy


def refused(code: int, message: str, about: int = 7) -> dict[str, Any]:
    return {"refusal": True, "code": code, "message": message, "about": about}


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


def classifying(kind: SubjectKind) -> Bench:
    """All subjects are of this kind."""
    policy = SubjectPolicy(classify=lambda _subject: kind)
    return Bench(MessageRouter(RouterConfig(subject_policy=policy)))


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
    bench = classifying("rpc")
    bench.router.route("app/x", bench.note("called"))
    bench.put("app/x", payload)
    (answer,) = bench.wire.answers()
    assert (answer["code"], answer["about"], bench.record) == (1002, 7, [])
    assert answer["message"].startswith("malformed payload: ")


def test_s3_what_is_classified_as_rpc_is_answered_as_rpc() -> None:
    bench = classifying("rpc")
    bench.router.route("app/x", bench.note("first"))
    bench.router.route("app/x", bench.note("second"))
    bench.request("x", subject="app/x")
    assert bench.wire.answers() == [{"subject": "app/x", "t": "R", "cid": 7, "result": "first"}]
    assert bench.record == ["first"]


def test_s3_what_is_classified_as_event_must_be_a_notification() -> None:
    bench = classifying("event")
    bench.router.route("rpc/a", bench.note("called"))
    with capture_logs() as logs:
        bench.request("a")
    assert (bench.wire.answers(), bench.record, [entry["event"] for entry in logs]) == (
        [],
        [],
        ["event dropped"],
    )
