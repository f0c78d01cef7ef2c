"""Compression of responses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from tests.support.fake_shards import FakeReply, FakeShards
from tests.support.front import running
from topics.errors import NotReady
from topics.front.answers import Answer
from topics.front.dispatch import compressed


@pytest.mark.slow
async def test_a_response_whose_memory_is_reclaimed_during_compression_gets_503() -> None:
    class ReclaimedReply(FakeReply):
        def on_reclaim(self, release: Callable[[], object]) -> None:
            release()

    shards, notified = FakeShards(), list[str]()
    answer = Answer(200, bytes(1_000_000), ReclaimedReply({}, b"", shards))
    answer.on_unsent = lambda: notified.append("unsent")
    with pytest.raises(NotReady):
        await compressed(answer)
    assert (shards.replies_out, notified) == (0, ["unsent"])


async def test_a_compressed_response_keeps_the_on_unsent_callback() -> None:
    notified: list[str] = []
    answer = Answer(200, bytes(10_000))
    answer.on_unsent = lambda: notified.append("unsent")
    (await compressed(answer)).unsent()
    assert notified == ["unsent"]


async def test_a_response_whose_connection_ends_before_its_task_releases_its_memory() -> None:
    shards, notified = FakeShards(), list[str]()
    answer = Answer(200, bytes(10_000), FakeReply({}, b"", shards))
    answer.on_unsent = lambda: notified.append("unsent")
    held = shards.replies_out
    with trio.CancelScope() as scope:
        scope.cancel()
        await compressed(answer)
    assert (held, shards.replies_out, notified) == (1, 0, ["unsent"])


async def test_only_long_responses_are_compressed_and_only_on_request() -> None:
    async with running(shards=FakeShards(topics={"a": []}, answer_bytes=200_000)) as run:
        client = await run.connect()
        for accept, expected in (
            ("gzip, br", "gzip"),
            ("br, *;q=0.5", "gzip"),
            ("gzip;q=0", None),
            ("", None),
        ):
            answer = await client.request(
                "POST", "/v0/topics/a/diff", b"{}", accept_encoding=accept
            )
            assert answer.headers.get("content-encoding") == expected
            assert len(answer.json()["filler"]) == 200_000
        run.shards.answer_bytes = 10
        answer = await client.request("POST", "/v0/topics/a/diff", b"{}", accept_encoding="gzip")
        assert "content-encoding" not in answer.headers
