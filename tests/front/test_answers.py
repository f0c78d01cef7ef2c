"""Complete responses: their bytes, and shared memory that is released exactly once."""

from __future__ import annotations

import pytest

from tests.support.fake_shards import FakeReply, FakeShards
from topics.formats.api.request_heads import Headers
from topics.formats.api.response_heads import JSON
from topics.front.answers import Answer, location, shard_answer


@pytest.mark.parametrize(("made", "status"), [(location("topics", "a"), 201), ((), 200)])
def test_the_bytes_of_a_reply_are_released_once_after_they_are_sent(
    made: Headers, status: int
) -> None:
    shards = FakeShards()
    answer = shard_answer(FakeReply((), b'{"a":1}', shards), made=made)
    assert (answer.status, answer.body, answer.media_type) == (status, b'{"a":1}', JSON)
    assert answer.headers == made
    for _ in range(2):  # `FakeReply` may be released once
        answer.done()
        assert (shards.replies_out, answer.body) == (0, b"")


def test_the_location_of_a_created_resource_is_an_encoded_path() -> None:
    assert location("routers", "a:b->c") == ((b"location", b"/v0/routers/a:b-%3Ec"),)


def test_needed_memory_can_be_reclaimed_before_the_response_is_sent() -> None:
    shards = FakeShards()
    answer = shard_answer(FakeReply((), b"{}", shards))
    answer.on_reclaim(answer.done)
    assert shards.replies_out == 1
    (release,) = shards.releases
    release()
    assert shards.replies_out == 0
    Answer(200, b"{}").on_reclaim(pytest.fail)


def test_on_unsent_is_called_once_if_a_response_is_not_sent() -> None:
    calls: list[int] = []
    answer = Answer(200, b"{}")
    answer.unsent()
    answer.on_unsent = lambda: calls.append(1)
    for _ in range(2):
        answer.unsent()
    assert calls == [1]
