"""Appends to one topic in one loop iteration share a message, and each gets its own response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.front.conftest import Logged
from tests.support.fake_shards import FakeShards
from topics.engine.access import ANYONE, Principal, Scope
from topics.errors import TopicsError
from topics.formats.wire.calls import AppendParams
from topics.front.answers import Answer
from topics.front.data.records import (
    APPEND_ROUTE,
    JOINED_FIRST_MAX,
    JOINED_MAX,
    JOINED_MAX_BYTES,
    AppendGroups,
)
from topics.front.pressure.pressure import Pressure
from topics.front.queries import parse_query
from topics.front.request import Request

ROUTE = APPEND_ROUTE


class AppendHarness:
    """Appends to fake shards. ``responses`` has the responses in order of arrival."""

    def __init__(self) -> None:
        self.shards = FakeShards(topics={"a": []})
        self.appends = AppendGroups(self.shards, Pressure(1, lambda _: 0.0))
        self.responses: list[tuple[str, Any]] = []

    def request(self, topic: str, **fields: Any) -> Request:
        request = Request(
            *("POST", ROUTE, topic, "", "", self.shards.shard_of(topic), ANYONE),
            *(parse_query(ROUTE.parameters, b""), None, False, False, None, None),
        )
        return replace(request, **fields)

    def append(
        self,
        name: str,
        topic: str = "a",
        body: bytes | None = None,
        then: Callable[[], None] | None = None,
        *,
        with_seqs: bool = True,
        **fields: Any,
    ) -> None:
        def collect(answer: Answer | TopicsError) -> None:
            if isinstance(answer, Answer):
                self.responses.append((name, answer.status))
                answer.done()
            else:
                self.responses.append((name, answer.code))
            if then is not None:
                then()

        body = b'{"records":[{"data":"%b"}]}' % name.encode() if body is None else body
        query = parse_query(ROUTE.parameters, b"" if with_seqs else b"return_seqs=false")
        request = self.request(topic, query=query, **fields)
        assert self.appends.append(request, body, len(self.responses) + 1, collect) is None

    @property
    def sent(self) -> list[int]:
        """Return the number of requests in each message."""
        counts = []
        for method, params, _ in self.shards.calls:
            assert method == "append"
            counts.append(len(params.lengths or (0,)))
        return counts


def test_joined_appends_share_a_message_and_are_answered_in_order() -> None:
    harness = AppendHarness()
    with harness.shards.batch:
        for name in "xyz":
            harness.append(name)
        harness.append("new", "b")
        assert harness.shards.calls == []
    (_, params, body), (_, alone, _) = harness.shards.calls
    assert [body[-5:-4], params.key, params.at, params.ats] == [b"z", None, 1, [1, 1, 1]]
    assert params.lengths == [len(body) // 3] * 3
    assert alone == AppendParams("b", None, True, None, 1, may_configure=alone.may_configure)
    assert harness.responses == [("x", 200), ("y", 200), ("z", 200), ("new", 201)]
    assert len(harness.shards.topics["a"]) == 3
    assert harness.shards.replies_out == 0


def test_each_joined_append_has_its_own_failure() -> None:
    harness = AppendHarness()
    with harness.shards.batch:
        harness.append("x", "b", b"{")
        harness.append("y", "b")
        harness.append("z", "b", b"]")
    assert harness.responses == [("x", "invalid_request"), ("y", 201), ("z", "invalid_request")]


def test_a_failure_of_the_shard_fails_all_joined_appends() -> None:
    harness = AppendHarness()
    harness.shards.ready = False
    with harness.shards.batch:
        harness.append("x")
        harness.append("y")
    assert harness.responses == [("x", "not_ready"), ("y", "not_ready")]


@pytest.mark.parametrize(
    "other",
    [
        {"key": "k"},
        {"with_seqs": False},
        {"topic": "c"},
        {"principal": Principal(b"d", Scope.WRITE, ("a",))},
    ],
    ids=lambda other: next(iter(other)),
)
def test_only_requests_with_equal_parameters_are_joined(other: dict[str, Any]) -> None:
    harness = AppendHarness()
    with harness.shards.batch:
        harness.append("x")
        harness.append("y", **other)
        harness.append("z")
    assert sorted(harness.sent) == [1, 2]
    assert len(harness.responses) == 3


def test_outside_of_a_batch_each_append_is_sent_immediately() -> None:
    harness = AppendHarness()
    harness.append("x")
    harness.append("y")
    assert harness.sent == [1, 1]


def test_a_full_group_is_sent_before_the_end_of_the_batch() -> None:
    harness = AppendHarness()
    long = b'{"records":[{"data":"%b"}]}' % (b"x" * JOINED_MAX_BYTES)
    with harness.shards.batch:
        for number in range(JOINED_FIRST_MAX):
            harness.append(str(number))
        assert harness.sent == [JOINED_FIRST_MAX]
        for number in range(JOINED_MAX):
            harness.append(str(number))
        assert harness.sent == [JOINED_FIRST_MAX, JOINED_MAX]
        harness.append("one more")
        harness.append("long", body=long)
        assert harness.sent == [JOINED_FIRST_MAX, JOINED_MAX, 2]
    assert len(harness.responses) == JOINED_FIRST_MAX + JOINED_MAX + 2


def test_appends_that_follow_responses_are_joined() -> None:
    harness = AppendHarness()
    with harness.shards.batch:
        for name in "xyz":
            harness.append(name, then=lambda: harness.append("next"))
    assert harness.sent == [3, 3]
    assert harness.responses[3:] == [("next", 200)] * 3


def test_an_unexpected_error_fails_all_joined_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = AppendHarness()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(harness.shards, "call", broken)
    with harness.shards.batch:
        harness.append("x")
        harness.append("y")
    assert harness.responses == [("x", "internal"), ("y", "internal")]


def test_an_error_after_one_response_does_not_affect_other_responses(logged: Logged) -> None:
    harness = AppendHarness()

    def broken() -> None:
        raise ZeroDivisionError

    with harness.shards.batch:
        harness.append("x", then=broken)
        harness.append("y")
    assert harness.responses == [("x", 200), ("y", 200)]
    assert [(event["event"], event["route"]) for event in logged] == [("request failed", "append")]
