"""Authorisation: scopes, prefixes and topic names, the same for HTTP and WebSocket."""

from __future__ import annotations

import pytest

from topics.engine.access import ANYONE, Principal, Scope
from topics.errors import Forbidden, InvalidRequest
from topics.front.authorization import authorize, check_topic_name

WRITER = Principal(b"digest", Scope.WRITE, ("jobs.",))


def test_a_key_needs_every_scope_that_is_asked_for() -> None:
    authorize(WRITER, Scope.WRITE, "jobs.a")
    with pytest.raises(Forbidden) as raised:
        authorize(WRITER, Scope.WRITE | Scope.ADMIN, "jobs.a")
    assert raised.value.detail == {"scope": "write+admin"}


def test_a_key_needs_a_prefix_of_the_name() -> None:
    with pytest.raises(Forbidden):
        authorize(WRITER, Scope.WRITE, "logs.a")
    authorize(WRITER, Scope.WRITE)
    authorize(ANYONE, Scope.ADMIN, "logs.a")


@pytest.mark.parametrize("name", ["", "-a", "a b", "ä", "a" * 256])
def test_a_bad_name_is_refused_with_the_detail_of_the_caller(name: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_topic_name(name, field="topic")
    assert raised.value.detail == {"field": "topic"}
    check_topic_name("a" * 255)
