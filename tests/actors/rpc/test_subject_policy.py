"""ADR 011 §3: which subjects pass, and of which kind they are."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.wire import Bench, encode_notification
from topics.actors.rpc.message_router import (
    MessageRouter,
    RouterConfig,
)
from topics.actors.rpc.route_table import SubjectKind, SubjectPolicy

# §3: policy

MALFORMED = "malformed payload: "


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
