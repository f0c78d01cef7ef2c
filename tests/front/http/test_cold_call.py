"""A cold call's body has one owner, who frees it."""

from __future__ import annotations

import pytest

from tests.front.http.test_cold_bridge import call_of
from tests.support.fake_shards import FakeBlock, FakeShards


def test_a_body_is_taken_once() -> None:
    body = FakeBlock(9, FakeShards())
    call = call_of(b"/v0/topics/a", body)
    assert call.take_body() is body
    with pytest.raises(AssertionError, match="taken once"):
        call.take_body()
    call.drop_body()
    assert not body.freed


def test_a_body_that_nobody_takes_is_freed_once() -> None:
    body = FakeBlock(9, FakeShards())
    call = call_of(b"/v0/topics/a", body)
    call.drop_body()
    assert body.freed
    call.drop_body()  # a second time it does nothing


def test_a_short_body_needs_no_end() -> None:
    call = call_of(b"/v0/topics/a", b"{}")
    call.drop_body()
    with pytest.raises(AssertionError, match="taken once"):
        call.take_body()
