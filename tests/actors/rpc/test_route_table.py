"""`decisions/0003` §1, §3, §4: which subjects are accepted, which handlers a message gets, in which
order, and registrations that change in the meantime. The names of the tests contain the section.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.support.wire import Inbound, RouterHarness, encode_notification, payload_for
from topics.actors.rpc.message_router import MessageRouter, MessageRouterConfig
from topics.actors.rpc.route_table import Mode, SubjectKind, SubjectPolicy

# §1, §4, §8: which handlers are called, and in which order


# name=pattern: ``*`` ends a prefix, ``!`` is exclusive, ``+`` broadcast, ``@`` a handler of one
# session.
ORDER = """
§4 the example, broadcast                 |A=event/u.j B=event/u.* C=event/*    |event/u.j|A B C
§4 the example backwards                  |C=event/* B=event/u.* A=event/u.j    |event/u.j|A B C
§4 the example, exclusive                 |A=event/u.j! B=event/u.*! C=event/*! |event/u.j|A
§4 only what matches                      |A=event/u.j B=event/u.* C=event/*    |event/u.k|B C
§4 registration order among exact         |1=app/x 2=app/x 3=app/x              |app/x    |1 2 3
§4 registration order in one prefix       |1=app/* 2=app/*                      |app/x    |1 2
§4 a prefix matches itself                |P=app/*                              |app/     |P
§4 an exact subject is not a prefix       |X=app/x                              |app/xy   |
§4 the empty prefix is the last           |all=* P=app/*                        |app/x    |P all
§4 rank first, then registration          |1=app/* 2=app/a* 3=* 4=app/a* 5=app/*|app/ab   |2 4 1 5 3
§4 the first exclusive one is the last    |1=app/x 2=app/x*! 3=app/*            |app/x    |1 2
§3 rpc is exclusive                       |1=rpc/a 2=rpc/a P=rpc/*              |rpc/a    |1
§3 event is broadcast                     |1=event/a P=event/*                  |event/a  |1 P
§3 app is broadcast                       |1=app/a P=app/*                      |app/a    |1 P
§3 the empty prefix has no mode of its own|1=* 2=*                              |rpc/a    |1
§1 rpc may broadcast                      |tap=rpc/a+ P=rpc/*                   |rpc/a    |tap P
§1 an event may be exclusive              |1=event/a! P=event/*                 |event/a  |1
§8 the session before global              |g=event/a s=event/a@ g2=event/a      |event/a  |s g g2
§8 rank before scope                      |s=event/*@ g=event/a                 |event/a  |g s
§8 a session overrides a global method    |g=rpc/a s=rpc/a@                     |rpc/a    |s
§8 a session's catch-all hides no method  |s=rpc/*@ g=rpc/a                     |rpc/a    |g
"""
MODES: dict[str, Mode] = {"!": "exclusive", "+": "broadcast"}


def register(harness: RouterHarness, route: str) -> None:
    name, _, pattern = route.partition("=")
    text = pattern.rstrip("*!+@")
    table = harness.session.router if "@" in pattern else harness.router
    mode = next((MODES[mark] for mark in pattern if mark in MODES), None)
    add = table.route_prefix if "*" in pattern else table.route
    add(text, harness.note(name), mode=mode)


@pytest.mark.parametrize("row", ORDER.strip().splitlines(), ids=lambda row: row.split("|")[0])
def test_handlers_run_in_the_order_that_the_document_specifies(
    harness: RouterHarness, row: str
) -> None:
    _, routes, subject, called = (part.strip() for part in row.split("|"))
    for route in routes.split():
        register(harness, route)
    for _ in range(2):  # The second iteration uses the cached resolution
        harness.put(subject, payload_for(subject))
        assert harness.record == called.split()
        harness.record.clear()


def test_s1_unsubscribe_removes_one_registration_once(harness: RouterHarness) -> None:
    handler = harness.note("twice")
    first = harness.router.route("app/x", handler)
    harness.router.route("app/x", handler)
    harness.put("app/x", b"")
    for _ in range(2):
        first()
        harness.put("app/x", b"")
    assert harness.record == ["twice"] * 4


def test_s1_unroute_removes_all_handlers_of_the_subject_and_no_prefix(
    harness: RouterHarness,
) -> None:
    harness.router.route("app/x", harness.note("1"))
    stale = harness.router.route("app/x", harness.note("2"))
    harness.router.route_prefix("app/x", harness.note("prefix"))
    harness.router.route("app/y", harness.note("other"))
    harness.router.unroute("app/x")
    harness.router.route("app/x", harness.note("new"))
    stale()
    for subject in ("app/x", "app/y"):
        harness.put(subject, b"")
    assert harness.record == ["new", "prefix", "other"]


def test_s1_clear_removes_all_handlers_of_its_own_scope(harness: RouterHarness) -> None:
    harness.router.route("app/x", harness.note("exact"))
    harness.router.route_prefix("app/", harness.note("prefix"))
    harness.session.router.route("app/x", harness.note("session"))
    harness.put("app/x", b"")
    harness.router.clear()
    harness.put("app/x", b"")
    harness.session.router.clear()
    harness.put("app/x", b"")
    assert harness.record == ["session", "exact", "prefix", "session"]


def test_s8_handlers_of_one_session_do_not_receive_messages_of_another(
    harness: RouterHarness,
) -> None:
    other = RouterHarness(harness.router)
    harness.session.router.route("app/x", harness.note("mine"))
    other.put("app/x", b"")
    harness.put("app/x", b"")
    assert (harness.record, other.record) == (["mine"], [])


# Registrations that change during a dispatch


def test_s4_a_handler_added_during_a_dispatch_receives_only_later_messages(
    harness: RouterHarness,
) -> None:
    added: list[Callable[[], None]] = []

    def add(message: Inbound) -> None:
        harness.record.append("add")
        if not added:
            added.append(harness.router.route("app/x", harness.note("added")))

    harness.router.route("app/x", add)
    harness.put("app/x", b"")
    harness.put("app/x", b"")
    assert harness.record == ["add", "add", "added"]


def test_s4_a_handler_removed_during_a_dispatch_is_not_called(harness: RouterHarness) -> None:
    harness.router.route("app/x", lambda message: unsubscribe())
    unsubscribe = harness.router.route("app/x", harness.note("removed"))
    harness.router.route("app/x", harness.note("kept"))
    harness.put("app/x", b"")
    assert harness.record == ["kept"]


async def test_s4_a_handler_removed_while_another_one_waits_is_not_called(
    harness: RouterHarness,
) -> None:
    resume = trio.Event()

    async def wait(message: Inbound) -> None:
        await resume.wait()

    harness.router.route("app/x", wait)
    unsubscribe = harness.router.route("app/x", harness.note("removed"))
    harness.router.route("app/x", harness.note("kept"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: harness.put("app/x", b""))
        await trio.testing.wait_all_tasks_blocked()
        unsubscribe()
        resume.set()
    assert harness.record == ["kept"]


# §4: sequential


async def test_s4_broadcast_awaits_each_handler_before_the_next(
    harness: RouterHarness, autojump_clock: trio.testing.MockClock
) -> None:
    def slow(name: str) -> Callable[[Inbound], Any]:
        async def handler(message: Inbound) -> None:
            harness.record.append(f"{name} starts")
            await trio.sleep(1)
            harness.record.append(f"{name} ends")

        return handler

    harness.router.route("event/x", harness.note("plain 1"))
    harness.router.route("event/x", slow("a"))
    harness.router.route("event/x", harness.note("plain 2"))
    harness.router.route_prefix("event/", slow("b"))
    harness.router.route_prefix("event/", harness.note("plain 3"))
    rest = harness.event("x")
    assert harness.record == ["plain 1"]
    await rest
    assert harness.record == [
        "plain 1",
        "a starts",
        "a ends",
        "plain 2",
        "b starts",
        "b ends",
        "plain 3",
    ]


# §3: policy


def refused(code: int, message: str) -> list[dict[str, Any]]:
    return [{"refusal": True, "code": code, "message": message, "about": 7}]


RESERVED = refused(1003, "reserved subject prefix")
NOT_ALLOWED = refused(1002, "subject has no allowed prefix")
AS_CUSTOM = SubjectPolicy(classify=lambda _subject: "custom")
POLICIES: list[tuple[str, SubjectPolicy, str, list[dict[str, Any]]]] = [
    ("stream is reserved", SubjectPolicy(), "stream/x", RESERVED),
    ("an unknown prefix", SubjectPolicy(), "debug/x", NOT_ALLOWED),
    ("an empty subject", SubjectPolicy(), "", NOT_ALLOWED),
    ("a prefix without its slash", SubjectPolicy(), "rpc", NOT_ALLOWED),
    ("app is let through", SubjectPolicy(), "app/x", []),
    ("reserved wins over allowed", SubjectPolicy(("app/",), ("app/",)), "app/x", RESERVED),
    ("reserved inside allowed", SubjectPolicy(("app/",), ("app/in/",)), "app/in/x", RESERVED),
    ("reserved need not be allowed", SubjectPolicy(("app/",), ("stream/",)), "stream/x", RESERVED),
    ("a custom prefix", SubjectPolicy(("app/", "debug/"), ()), "debug/x", []),
    ("a prefix that is reserved no more", SubjectPolicy(reserved_prefixes=()), "stream/x", []),
    ("classify says so", SubjectPolicy(classify=lambda _subject: "reserved"), "app/x", RESERVED),
    ("reserved takes precedence over classify", AS_CUSTOM, "stream/x", RESERVED),
    ("allowed takes precedence over classify", AS_CUSTOM, "debug/x", NOT_ALLOWED),
]


def classifying(kind: SubjectKind) -> RouterHarness:
    """Return a harness that classifies all subjects as this kind."""
    policy = SubjectPolicy(classify=lambda _subject: kind)
    return RouterHarness(MessageRouter(MessageRouterConfig(subject_policy=policy)))


@pytest.mark.parametrize(("rule", "policy", "subject", "sent"), POLICIES)
def test_s3_the_policy_decides_which_subjects_are_accepted(
    rule: str, policy: SubjectPolicy, subject: str, sent: list[dict[str, Any]]
) -> None:
    harness = RouterHarness(MessageRouter(MessageRouterConfig(subject_policy=policy)))
    harness.router.route_prefix("", harness.note("called"))
    for _ in range(2):
        harness.put(subject, b"opaque")
        assert harness.wire.answers() == sent, rule
    assert harness.record == ([] if sent else ["called", "called"])


@pytest.mark.parametrize(
    "payload",
    [b"", b"opaque", encode_notification("x", None)],
    ids=["empty", "opaque", "notification"],
)
def test_s3_a_subject_classified_as_rpc_requires_a_request(payload: bytes) -> None:
    harness = classifying("rpc")
    harness.router.route("app/x", harness.note("called"))
    harness.put("app/x", payload)
    (answer,) = harness.wire.answers()
    assert (answer["code"], answer["about"], harness.record) == (1002, 7, [])
    assert answer["message"].startswith("malformed payload: ")


def test_s3_a_subject_classified_as_rpc_gets_a_reply() -> None:
    harness = classifying("rpc")
    harness.router.route("app/x", harness.note("first"))
    harness.router.route("app/x", harness.note("second"))
    harness.request("x", subject="app/x")
    assert harness.wire.answers() == [{"subject": "app/x", "t": "R", "cid": 7, "result": "first"}]
    assert harness.record == ["first"]


def test_s3_a_subject_classified_as_event_requires_a_notification() -> None:
    harness = classifying("event")
    harness.router.route("rpc/a", harness.note("called"))
    with capture_logs() as logs:
        harness.request("a")
    assert (harness.wire.answers(), harness.record, [entry["event"] for entry in logs]) == (
        [],
        [],
        ["event dropped"],
    )
